"""Says whether two runs have the same data set, and so test images on which their accuracies can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLACE = ("name", "path", "layout", "columns", "revision", "test_limit")  # of ``data``: which images are tested on


def have_other_images(one: tuple[str | None, Mapping[str, Any]], other: tuple[str | None, Mapping[str, Any]]) -> bool:
    """Whether two runs, each by the digest of its images and its ``data`` block, have different data sets.

    Equal digests say that the images are the same, wherever they lie. Where the digests differ, another size, fewer
    training images or another split of the same place may be why, and the test images are the same ones. Where a run
    did not record a digest, the source and its path have to tell.
    """
    (a, mine), (b, theirs) = one, other
    if a is not None and a == b:
        return False
    if any(mine.get(key) != theirs.get(key) for key in PLACE):
        return True
    return a is not None and b is not None and mine == theirs
