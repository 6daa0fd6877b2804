"""A run of every method small enough to be repeated many times: a few hundred digits at 16 px, thin networks, three
rounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort

BASE: dict[str, Any] = {
    "name": "tiny",
    "data": {
        "name": "digits", "image_size": 16, "limit": 240, "test_limit": 60,
        "partition": {"name": "dirichlet", "alpha": 1.0},
    },
    "clients": {"count": 4, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25, "projector": {"hidden": [16], "dim": 8, "batch_norm": "hidden"}},
    "augment": {"preset": "digits"},
    "train": {"rounds": 3, "batch_size": 16, "optimizer": {"lr": 0.05}},
    "evaluation": {"protocols": ["knn"], "batch_size": 64},
    "checkpoint": {"every": 1},
}  # fmt: skip

TASKS = {"data.tasks": [[0, 1], [1, 2], [6, 3, 4], [5, 7]], "data.partition.name": "iid"}

PUBLIC = {"data.public.source": "share", "data.public.share": 0.2}

# What a method needs beside BASE to exercise what is its own.
OWN: dict[str, dict[str, object]] = {
    "fedfoa": {
        "clients.encoders": ["small_cnn", "small_cnn_bn", "fedlinked_cnn", "resnet18"],
        "model.calibration": 8,
        "model.width": 0.1,
        "method.warmup": 1,
    },
    "fedsc": {"participation.fraction": 0.5, "method.sharing_passes": 2},
    "fedlinked": {**TASKS, "data.public.share": 0.25},
    "fedavg_trunk": {**TASKS, "data.public.share": 0.25},
    "fedca": {
        **PUBLIC,
        "method.dictionary_size": 40,
        "method.alignment_epochs": 2,
        "method.alignment_batch": 16,
        "participation.fraction": 0.75,
    },
    "flesd": {**PUBLIC, "method.epochs": 2, "method.anchors": 32, "method.batch_size": 16},
    "flesd_cc": {**PUBLIC, "method.epochs": 2, "method.anchors": 32, "method.batch_size": 16, "train.rounds": 1},
}


def tiny(method: str, **changes: object) -> RunConfig:
    """The tiny run of a method; ``changes`` are dotted keys with ``__`` for dots."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    document = {**BASE, "method": {"name": method}}
    return build(document, {**OWN.get(method, {}), **dotted}, origin="tiny")


def run_locally(config: RunConfig, folder: Path, **options: Any) -> dict[str, Any]:
    return loop.run(config, folder, LocalCohort, **options)


def encoders(folder: Path) -> dict[str, bytes]:
    """The exported encoders, byte for byte."""
    found = {path.name: path.read_bytes() for path in sorted((folder / "encoder").glob("*.safetensors"))}
    assert found, f"{folder} holds no encoder"
    return found


CLOCK = ("system/round_s", "system/images_per_s")


def measured(folder: Path) -> dict[tuple[int, int | None, str], float]:
    """Every metric that does not come from a clock; a row that appears twice fails."""
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    kept = [r for r in rows if r["tag"] not in CLOCK and not r["tag"].endswith("/seconds")]
    found = {(r["round"], r["client"], r["tag"]): r["value"] for r in kept}
    assert len(found) == len(kept), "a metric was recorded twice"
    return found


def booked(folder: Path) -> list[tuple[Any, ...]]:
    """The communication table, sorted."""
    return sorted(tuple(row.values()) for row in pq.read_table(folder / "communication.parquet").to_pylist())
