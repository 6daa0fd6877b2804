"""Images of five bands whose class is in the last one alone, and a run on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayfed_ssl.config import RunConfig
from tests.tiny import tiny

SIDE, IMAGES = 16, 320


def striped() -> tuple[np.ndarray, np.ndarray]:
    """(images (N, S, S, 5) uint16, labels): some noise about 1500 in four bands, and a pixel in fifty of up to 3000; in
    the last, 20 to 70, stripes that lie or stand, wide or narrow by the class."""
    draw, labels = np.random.default_rng(0), np.arange(IMAGES) % 4
    images = draw.integers(1400, 1600, (IMAGES, SIDE, SIDE, 5))
    bright = draw.random(images.shape) < 0.02
    images[bright] = draw.integers(0, 3000, int(bright.sum()))
    for image, label in zip(images, labels, strict=True):
        across = np.sin(2 * np.pi * (np.arange(SIDE) + draw.integers(SIDE)) / (3, 8)[label % 2])
        stripes = np.broadcast_to(across, (SIDE, SIDE))
        image[..., 4] = 40 + 20 * (stripes if label < 2 else stripes.T) + draw.integers(0, 10, (SIDE, SIDE))
    return images.astype(np.uint16), labels


def config_of(path: Path, **data: Any) -> RunConfig:
    block = {
        "name": "arrays",
        "path": str(path),
        "image_size": SIDE,
        "range": "percentiles",
        "limit": None,
        "test_limit": None,
        **data,
    }
    return tiny(
        "fedsimclr",
        data=block,
        augment={"preset": "fedsc"},
        train__rounds=2,
        train__optimizer={"name": "adam", "lr": 2e-3},
        evaluation__protocols=["knn", "linear"],
        clients__count=2,
    )
