"""Evaluate the exported encoder(s) of a run again, on the run's images: other protocols, without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import pack
from rayfed_ssl.config import RunConfig, load
from rayfed_ssl.evaluation import EvaluationConfig, settings
from rayfed_ssl.federated.bench import Workbench
from rayfed_ssl.federated.federation import deal
from rayfed_ssl.models.exported import descriptions, read_description
from rayfed_ssl.models.values import load_values, read_safetensors
from rayfed_ssl.reporting.tables import write_json


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
    # Every network is filled from the folder or untrained, so the file that the run began with need not be here.
    config = config.model_copy(update={"model": config.model.model_copy(update={"start": None})})
    bench = Workbench(config, deal(config))
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
    load_values(network.encoder, read_safetensors(one.values), f"encoder {one.encoder!r}", str(one.values))
    return bench.evaluate(one.encoder, pack(network))
