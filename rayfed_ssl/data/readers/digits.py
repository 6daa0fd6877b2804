"""scikit-learn's 1,797 handwritten digits: no file and no network needed."""

from __future__ import annotations

import numpy as np

from rayfed_ssl.data.holdout import TEST_SHARE, stratified_halves
from rayfed_ssl.data.images import Listing, Source


def digits_source(limits: dict[str, int | None]) -> Source:
    """8x8 grey images of 17 levels, scaled to 0..255; a fixed fifth of each class is test."""
    return Source((), lambda split: _listing(split, limits[split]))


def _listing(split: str, limit: int | None) -> Listing:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = np.asarray(bunch.target, dtype=np.int64)
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    rest, held_out = stratified_halves(labels, TEST_SHARE)
    rows = (held_out if split == "test" else rest)[:limit]
    names = tuple(str(name) for name in bunch.target_names)
    return Listing(labels[rows], names, lambda: ((f"digits {row}", pixels[row]) for row in rows))
