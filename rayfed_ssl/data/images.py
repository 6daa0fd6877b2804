"""Images as everything else sees them: one uint8 array per split, with labels, class names and natural groups.

Shape legend: N images, H height, W width. Pixels are usually a read-only view of a memory-mapped file (see ``store``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Payload = bytes | Path | NDArray[np.uint8] | None
"""An image before decoding: an encoded file's bytes or path, or pixels (H, W) or (H, W, 3); None if it is missing."""


@dataclass(frozen=True)
class Images:
    """One split.

    ``pixels`` (N, H, W, 3) uint8, C-contiguous; ``labels`` (N,) int64, -1 where unknown; ``class_names[label]``;
    ``groups`` (N,) int64, the natural group (client folder) of each image, -1 for none; ``group_names[group]``.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """Both splits. ``digest`` is of the decoded content (pixels, labels, groups, names): equal digests, equal data.

    ``skipped`` names the images that could not be decoded and were left out (``on_bad_image: skip``).
    ``test`` has no rows where the training images are unlabelled and no test folder exists.
    """

    name: str
    train: Images
    test: Images
    digest: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """One split before decoding: what a source hands to the store.

    ``read`` yields N pairs (name for error messages, payload), in the order of ``labels``.
    """

    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    read: Callable[[], Iterator[tuple[str, Payload]]]
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: its files (for the cache key) and a way to list a split ("train" or "test")."""

    files: tuple[Path, ...]
    listing: Callable[[str], Listing]
