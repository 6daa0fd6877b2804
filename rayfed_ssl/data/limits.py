"""What a limit on a data set's images leaves of its classes: of rows sorted by class the first ones are of few."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

KEYS = {"train": ("limit", "training"), "test": ("test_limit", "test")}  # split -> its key, and what its images are


def unseen_classes(
    split: str, labels: NDArray[np.int64], taken: NDArray[np.int64], advice: str = ""
) -> tuple[str, ...]:
    """A line where images are left out and no image of some class is taken; none where each class has one.

    Args:
        split: "train" or "test".
        labels: of all N images of the split, negative where unknown.
        taken: the row numbers of those that the limit leaves.
        advice: ends the line.
    """
    known, left = (np.unique(some[some >= 0]) for some in (labels, labels[taken]))
    if len(left) == len(known):
        return ()
    key, images = KEYS[split]
    found = f"{len(taken)} of {len(labels)} {images} images are taken, which show {len(left)} of {len(known)} classes"
    return (f"{key}: {found}{advice}",)


FIRST_ROWS = "; they are the first rows: shuffle the rows of files that are sorted by class"
