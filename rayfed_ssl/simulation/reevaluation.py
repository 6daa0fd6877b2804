"""Evaluate the exported encoder(s) of a run again, on the run's images: other protocols, without training."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_ssl import evaluation
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import pack
from rayfed_ssl.config import RunConfig, load_untrusted
from rayfed_ssl.evaluation import PROTOCOLS, Comparison
from rayfed_ssl.federated.bench import Workbench
from rayfed_ssl.federated.federation import deal
from rayfed_ssl.models.exported import descriptions, read_description
from rayfed_ssl.models.network import Network
from rayfed_ssl.models.values import load_values, read_safetensors
from rayfed_ssl.reporting.tables import write_json
from rayfed_ssl.settings.files import parse_overrides
from rayfed_ssl.simulation.checks import check_same_images


@dataclass(frozen=True)
class Exported:
    """One encoder of ``encoder/``: its file name without suffix, its architecture, its values."""

    name: str
    encoder: str
    values: Path


def exported(run: Path) -> list[Exported]:
    """The encoders of a run folder. Raises UserError where there are none."""
    found = []
    for path in descriptions(run / "encoder"):
        values, description = read_description(path)
        found.append(Exported(path.stem, str(description["encoder"]), values))
    if not found:
        state = "it has not finished" if (run / "config.yaml").exists() else "it is no run folder"
        raise UserError(f"{run}: found no encoder in {run / 'encoder'}; {state}")
    return found


def reevaluate(
    run: Path, protocols: Sequence[str] = (), changes: Sequence[str] = (), *, trust_imports: bool = False
) -> dict[str, Any]:
    """Measure each exported encoder, the untrained ones and the raw pixels; what it finds is added to
    ``evaluation.json``, where results of other protocols stay.

    Args:
        protocols: which; by default the run's own.
        changes: ``key=value`` for settings of ``evaluation`` other than the run's.
        trust_imports: whether to run code that the run folder brings along.
    Returns:
        What ``evaluation.json`` now holds: ``accuracy``, ``select`` and ``features`` are ``{encoder: {tag: value}}``,
        ``untrained`` is ``{architecture: {tag: value}}``, ``pixels`` ``{tag: value}``, and ``evaluation`` the settings
        behind each protocol's results. Untrained encoders stand as ``untrained NAME`` in ``features``, comparisons of
        encoders as ``between encoders``.
    Raises:
        UserError: no encoder there, an unknown protocol, a change that is not allowed, or images that are gone.
    """
    if (run / "config.yaml").exists():
        load_untrusted(run / "config.yaml", trust_imports=trust_imports)  # protocols may be among its imports
    for name in protocols:
        if name not in PROTOCOLS:
            raise UserError(PROTOCOLS.unknown("--protocol", name))
    encoders = exported(run)
    known = earlier(run / "evaluation.json")
    config, comparisons = _configured(run, protocols, changes, trust_imports)
    # Every network is filled from the folder or untrained, so the file that the run began with need not be here.
    config = config.model_copy(update={"model": config.model.model_copy(update={"start": None})})
    federation = deal(config)
    check_same_images(run, federation)
    train, test = federation.dataset.train, federation.dataset.test
    evaluation.check(config.evaluation, train.labels, test.labels, config.data.image_size)
    bench = Workbench(config, federation)
    found = Found()
    for name in sorted({one.encoder for one in encoders}) if config.evaluation.protocols else []:
        found.note("untrained", name, f"untrained {name}", bench.evaluate(name, None))
    for one in encoders if config.evaluation.protocols else []:
        found.note("accuracy", one.name, one.name, bench.evaluate(one.encoder, pack(_loaded(bench, one))))
    if config.evaluation.labelled:
        found.document["pixels"] = {"fewshot": bench.evaluate_pixels()}
    for name in comparisons:
        row = PROTOCOLS[name]
        assert isinstance(row, Comparison)
        frozen = {one.name: bench.frozen(copy.deepcopy(_loaded(bench, one))) for one in encoders}
        pixels = test.pixels if len(test) else train.pixels
        found.note("accuracy", BETWEEN, BETWEEN, row.compare(frozen, pixels, config.evaluation.of(name)))
    measured = (*config.evaluation.protocols, *comparisons)
    found.document["evaluation"] = {name: evaluation.settings_of(config.evaluation, name) for name in measured}
    document = added(known, found.document, measured)
    write_json(run / "evaluation.json", document)
    return document


BETWEEN = "between encoders"
CHANGEABLE = ("metrics", "train_images", "batch_size", "options")


class Found:
    """Values sorted by what they are: scores, values on held-out images, descriptions of features."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}

    def note(self, block: str, name: str, described: str, values: Mapping[str, float]) -> None:
        """Scores go to ``block`` under ``name``, all else to the block its tag begins with, under ``described``."""
        for tag, value in values.items():
            group, slash, rest = tag.partition("/")
            where, who, what = (group, described, rest) if slash else (block, name, tag)
            self.document.setdefault(where, {}).setdefault(who, {})[what] = value


def _configured(
    run: Path, protocols: Sequence[str], changes: Sequence[str], trust_imports: bool
) -> tuple[RunConfig, list[str]]:
    """The run's settings with what is to be measured, and which protocols compare encoders."""
    comparisons = [name for name in dict.fromkeys(protocols) if isinstance(PROTOCOLS[name], Comparison)]
    for key in parse_overrides(changes):
        block, _, rest = key.partition(".")
        if block != "evaluation" or rest.split(".")[0] not in (*CHANGEABLE, *PROTOCOLS):
            allowed = ", ".join(f"evaluation.{name}" for name in (*CHANGEABLE, *PROTOCOLS))
            raise UserError(f"{key}: found a change of what the run was; allowed here: {allowed}")
    alone = [name for name in dict.fromkeys(protocols) if name not in comparisons]
    chosen = [f"evaluation.protocols=[{','.join(alone)}]"] if protocols else []
    config = load_untrusted(run / "config.yaml", [*changes, *chosen], trust_imports=trust_imports)
    if not config.evaluation.protocols and not comparisons:
        allowed = ", ".join(PROTOCOLS)
        raise UserError(f"--protocol: found none, in the run's configuration neither; must be one of {allowed}")
    return config, comparisons


def earlier(path: Path) -> dict[str, Any]:
    """What an earlier evaluation wrote, each protocol with all settings behind its results. Raises UserError."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        blocks = {name: dict(block) for name, block in document.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); mend it, or move it away to begin anew") from None
    own = blocks.get("evaluation", {})
    common = {key: value for key, value in own.items() if not isinstance(value, dict)}
    blocks["evaluation"] = {key: {**common, **value} for key, value in own.items() if isinstance(value, dict)}
    return blocks


def added(known: Mapping[str, Any], new: Mapping[str, Any], measured: Sequence[str]) -> dict[str, Any]:
    """``known`` with ``new`` in it. Earlier scores of a protocol that was ``measured`` again go: theirs were other
    settings.
    """
    merged: dict[str, Any] = {}
    for block in [*known, *(name for name in new if name not in known)]:
        before, now = known.get(block, {}), new.get(block, {})
        if block in ("accuracy", "untrained", "select"):
            names = [*before, *(name for name in now if name not in before)]
            merged[block] = {name: {**_others(before.get(name, {}), measured), **now.get(name, {})} for name in names}
        elif block == "features":
            names = [*before, *(name for name in now if name not in before)]
            merged[block] = {name: {**before.get(name, {}), **now.get(name, {})} for name in names}
        else:
            merged[block] = {**before, **now}
    return merged


def _others(values: Mapping[str, float], measured: Sequence[str]) -> dict[str, float]:
    """The values whose tag belongs to none of the protocols ``measured``."""
    return {
        tag: value
        for tag, value in values.items()
        if not any(tag == name or tag.startswith(f"{name}_") for name in measured)
    }


def _loaded(bench: Workbench, one: Exported) -> Network:
    """A network with the exported values, its heads untrained: the protocols look at the encoder only."""
    network = bench.network(one.encoder)
    load_values(network.encoder, read_safetensors(one.values), f"encoder {one.encoder!r}", str(one.values))
    return network
