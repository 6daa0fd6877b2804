"""Notes on ``data.limit``: how many classes it leaves out. The first rows of a file sorted by class show only a few."""

from __future__ import annotations

from collections.abc import Mapping, Sized

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note

KEYS = {"train": ("limit", "training"), "test": ("test_limit", "test")}  # split -> its key, and what its images are


def unseen_classes(
    split: str, labels: NDArray[np.int64], taken: NDArray[np.int64], advice: str = ""
) -> tuple[Note, ...]:
    """A line if no image of some class is taken; none if every class has one.

    Args:
        split: "train" or "test".
        labels: the labels of all N images of the split, negative if unknown.
        taken: the row numbers of the images that the limit leaves.
        advice: ends the line.
    """
    known, left = (np.unique(values[values >= 0]) for values in (labels, labels[taken]))
    if len(left) == len(known):
        return ()
    key, images = KEYS[split]
    text = f"{len(taken)} of {len(labels)} {images} images are taken, which show {len(left)} of {len(known)} classes"
    return (Note.shareable(f"{key}: {text}", advice),)


def of_all(limits: Mapping[str, int | None], train: Sized, test: Sized) -> str:
    """The end of a line that counts all images of the two splits, if a limit takes fewer of one; else ""."""
    cut = []
    for split, images in (("train", train), ("test", test)):
        limit = limits[split]
        if limit is not None and limit < len(images):
            cut.append(KEYS[split][0])
    return f" (of all images; {' and '.join(cut)} take{'s' if len(cut) == 1 else ''} fewer)" if cut else ""


def first_rows(
    columns: Mapping[str, NDArray[np.int64] | None], limits: Mapping[str, int | None]
) -> dict[str, NDArray[np.int64] | None]:
    """The columns of each split with the first rows alone, as many as the limits leave."""
    return {split: None if rows is None else rows[: limits[split]] for split, rows in columns.items()}


FIRST_ROWS = "; they are the first rows: shuffle the rows of files that are sorted by class"
