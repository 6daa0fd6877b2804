"""A sweep small enough for tests: two clients, three rounds of a thin network on a few digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tune.config import Sweep
from tune.files import load

RUN: dict[str, Any] = {
    "method": {"name": "fedsimclr"},
    "data": {"name": "digits", "image_size": 8, "limit": 120, "test_limit": 30},
    "clients": {"count": 2, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25, "projector": {"hidden": [16], "dim": 8, "batch_norm": "hidden"}},
    "augment": {"preset": "digits"},
    "train": {"rounds": 3, "batch_size": 16, "optimizer": {"lr": 0.05}},
    "evaluation": {"protocols": ["knn"], "batch_size": 64, "fewshot": {"draws": 1}},
    "checkpoint": {"every": 1},
    "figures": False,
}
LR = "train.optimizer.lr"
GRID = {"space": {LR: {"grid": [0.001, 0.01, 0.1]}, "objective.temperature": {"grid": [0.1, 0.5]}}}


def written(folder: Path, *, run: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A sweep's file and its base in ``folder``; by default a grid of 3 x 2."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(run or RUN, sort_keys=False))
    path = folder / "lr.yaml"
    path.write_text(yaml.safe_dump({"base": "run.yaml", **(keys or GRID)}, sort_keys=False))
    return path


def sweep(folder: Path, *changes: str, **keys: Any) -> Sweep:
    return load(written(folder, **keys), changes)
