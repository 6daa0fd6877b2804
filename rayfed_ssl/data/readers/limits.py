"""Notes on ``data.limit``: which classes it leaves out (the first rows of a sorted file are of few classes)."""

from __future__ import annotations

from collections.abc import Mapping, Sized

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note

KEYS = {"train": ("limit", "training"), "test": ("test_limit", "test")}  # split -> its key, and what its images are


def unseen_classes(
    split: str, labels: NDArray[np.int64], taken: NDArray[np.int64], advice: str = ""
) -> tuple[Note, ...]:
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
    return (Note.shareable(f"{key}: {found}", advice),)


def of_all(limits: Mapping[str, int | None], train: Sized, test: Sized) -> str:
    """Ends a line that counts all images of the two splits, where a limit takes fewer of one."""
    cut = []
    for split, images in (("train", train), ("test", test)):
        limit = limits[split]
        if limit is not None and limit < len(images):
            cut.append(KEYS[split][0])
    return f" (of all images; {' and '.join(cut)} take{'s' if len(cut) == 1 else ''} fewer)" if cut else ""


def first_rows(
    columns: Mapping[str, NDArray[np.int64] | None], limits: Mapping[str, int | None]
) -> dict[str, NDArray[np.int64] | None]:
    """The rows of each split that the limits leave, where they are the first."""
    return {split: None if rows is None else rows[: limits[split]] for split, rows in columns.items()}


FIRST_ROWS = "; they are the first rows: shuffle the rows of files that are sorted by class"
