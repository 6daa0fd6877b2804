"""Evaluate the exported encoder(s) of a run again, on the run's images: other protocols, without training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import pack
from rayfed_ssl.config import RunConfig, load
from rayfed_ssl.evaluation import EvaluationConfig, settings
from rayfed_ssl.federated.bench import Workbench
from rayfed_ssl.federated.federation import deal
from rayfed_ssl.reporting.tables import write_json
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
    for path in sorted((run / "encoder").glob("*.json")):
        try:
            description = json.loads(path.read_text(encoding="utf-8"))
            found.append(Exported(path.stem, description["encoder"], path.with_name(description["values"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: found no description of an encoder ({error!r}); it is damaged") from None
    if not found:
        state = "it has not finished" if (run / "config.yaml").exists() else "it is no run folder"
        raise UserError(f"{run}: found no encoder in {run / 'encoder'}; {state}")
    return found


def reevaluate(run: Path, protocols: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy of each exported encoder, of the untrained ones and of the raw pixels; written to ``evaluation.json``.

    Args:
        protocols: which; by default the run's own.
    Returns:
        ``{"accuracy": {encoder: {protocol: value}}, "untrained": {architecture: {..}}, "pixels": {..}, "evaluation"}``
    Raises:
        UserError: no encoder there, an unknown protocol, or images that are gone.
    """
    encoders = exported(run)
    config = load(run / "config.yaml", [f"evaluation.protocols=[{','.join(protocols)}]"] if protocols else [])
    if not config.evaluation.protocols:
        allowed = ", ".join(sorted(set(EvaluationConfig().protocols)))
        raise UserError(f"--protocol: found none, in the run's configuration neither; must be one of {allowed}")
    federation = deal(config)
    check_same_images(run, federation)
    bench = Workbench(config, federation)
    pixels = {"fewshot": bench.evaluate_pixels()}
    document = {
        "accuracy": {one.name: _accuracy(bench, config, one) for one in encoders},
        "untrained": {name: bench.evaluate(name, None) for name in sorted({one.encoder for one in encoders})},
        "pixels": pixels,
        "evaluation": settings(config.evaluation),
    }
    write_json(run / "evaluation.json", document)
    return document


def _accuracy(bench: Workbench, config: RunConfig, one: Exported) -> dict[str, float]:
    """The values stand in a network whose heads are untrained: the protocols look at the encoder only."""
    network = bench.network(one.encoder)
    try:
        values = load_file(one.values)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{one.values}: cannot be read ({error}); it is damaged or missing") from None
    missing, unexpected = network.encoder.load_state_dict(values, strict=False)
    wrong = [*unexpected, *(key for key in missing if not key.endswith("num_batches_tracked"))]
    if wrong:
        raise UserError(f"{one.values}: found values that do not fit encoder {one.encoder!r} ({', '.join(wrong[:3])})")
    return bench.evaluate(one.encoder, pack(network))
