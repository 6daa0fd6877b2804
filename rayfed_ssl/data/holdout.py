"""The fifth of each class that is held out for tests where images come without a test split."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.seeding import numpy_generator

TEST_SHARE = 0.2


def stratified_halves(labels: NDArray[np.int64], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers (rest, held out), each sorted: a share of every class, rounded, drawn the same way in every run."""
    draw = numpy_generator(0, "source", "test split")
    held_out = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = draw.permutation(np.flatnonzero(labels == label))
        held_out[rows[: round(share * len(rows))]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
