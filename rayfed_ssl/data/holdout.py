"""The fifth of each class that is held out for tests where images come without a test split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.text import printable

TEST_SHARE = 0.2
MOST_NAMED = 20  # classes without a test image


def stratified_halves(labels: NDArray[np.int64], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers (rest, held out), each sorted: a share of every class, rounded, drawn the same way in every run.

    Rows without a label (negative) are in the rest: nothing could be measured on them.
    """
    draw = numpy_generator(0, "source", "test split")
    held_out = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels[labels >= 0]):
        rows = draw.permutation(np.flatnonzero(labels == label))
        held_out[rows[: round(share * len(rows))]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def untested(
    labels: NDArray[np.int64], held_out: NDArray[np.int64], class_names: Sequence[str], share: float
) -> tuple[str, ...]:
    """A line on the classes of which no row is held out, being too small; none where each has one."""
    missing = [class_names[label] for label in np.setdiff1d(labels[labels >= 0], labels[held_out])]
    if not missing:
        return ()
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    names = ", ".join(printable(name, 80) for name in missing[:MOST_NAMED]) + more
    classes = f"class {names} has" if len(missing) == 1 else f"classes {names} have"
    return (f"{classes} no test image: too few images to hold a share of {share:g} out",)
