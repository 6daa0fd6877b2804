"""Images of several bands as NumPy arrays, and how these are scaled to 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig

SIZE = 16


def bands(count: int, channels: int = 5, high: int = 256, seed: int = 0) -> np.ndarray:
    kind = np.uint8 if high == 256 else np.uint16
    return np.random.default_rng(seed).integers(0, high, (count, SIZE, SIZE, channels)).astype(kind)


def read(path: Path, cache: str = "cache", **keys: Any) -> Dataset:
    config = {"name": "arrays", "path": path, "image_size": SIZE, "channels": 5, **keys}
    return load(SourceConfig.model_validate(config), path.parent / cache)


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def percentiles(values: np.ndarray) -> list[float]:
    """The smallest values that 0.5% and 99.5% of all do not exceed."""
    ordered = np.sort(values.ravel())
    return [float(ordered[int(np.ceil(share * len(ordered) / 1000)) - 1]) for share in (5, 995)]


def scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((values.astype(float).clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)
