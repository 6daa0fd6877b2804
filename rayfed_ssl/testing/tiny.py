"""Runs small enough to be repeated many times, and their results in a form that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.extensions import gather
from rayfed_ssl.records.outcomes import FILE as OUTCOMES
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort

BASE: dict[str, Any] = {
    "name": "tiny",
    "data": {
        "name": "digits", "image_size": 8, "limit": 160, "test_limit": 60,
        "partition": {"name": "dirichlet", "alpha": 1.0},
    },
    "clients": {"count": 4, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25, "projector": {"hidden": [16], "dim": 8, "batch_norm": "hidden"}},
    "augment": {"preset": "digits"},
    "train": {"rounds": 3, "batch_size": 16, "optimizer": {"lr": 0.05}},
    "evaluation": {"protocols": ["knn"], "batch_size": 64, "fewshot": {"draws": 1}},
    "checkpoint": {"every": 1},
    "figures": False,
}  # fmt: skip
"""160 digits at 8 px, a thin network with BatchNorm, four unequal clients, three rounds."""

CLOCK = ("system/round_s", "system/images_per_s")


def tiny_run(method: str, changes: Mapping[str, object] | None = None, beside: Path | None = None) -> RunConfig:
    """The tiny run of a method.

    Args:
        changes: dotted keys, such as ``{"method.warmup": 1}``; ``imports`` is read here, too.
        beside: the folder that paths in ``imports`` are relative to; by default the working folder.
    """
    dotted = dict(changes or {})
    imports = gather(dotted.pop("imports", None), beside or Path())
    return build({**BASE, "method": {"name": method}}, dotted, origin="tiny", imports=imports)


def run_locally(config: RunConfig, folder: Path, **options: Any) -> dict[str, Any]:
    """The run, in this process; its summary."""
    return loop.run(config, folder, LocalCohort, **options)


def encoders(folder: Path) -> dict[str, bytes]:
    """The exported encoders of a run, byte for byte."""
    found = {path.name: path.read_bytes() for path in sorted((folder / "encoder").glob("*.safetensors"))}
    assert found, f"{folder} holds no encoder"
    return found


def measured(folder: Path) -> dict[tuple[int, int | None, str], float]:
    """Every metric of a run that does not come from a clock; a row that appears twice fails."""
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    kept = [r for r in rows if r["tag"] not in CLOCK and not r["tag"].endswith("/seconds")]
    found = {(r["round"], r["client"], r["tag"]): r["value"] for r in kept}
    assert len(found) == len(kept), "a metric was recorded twice"
    return found


def booked(folder: Path) -> list[tuple[Any, ...]]:
    """The communication table of a run, sorted."""
    return sorted(tuple(row.values()) for row in pq.read_table(folder / "communication.parquet").to_pylist())


def outcomes(folder: Path) -> bytes | None:
    """The outcomes of a run's last evaluation, byte for byte; None where it has no score that classifies."""
    path = folder / OUTCOMES
    return path.read_bytes() if path.exists() else None
