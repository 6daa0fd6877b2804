"""A data set as all other code sees it: one uint8 array per split, with labels, class names, clients and groups.

Shape legend: N images, H height, W width, C channels: 1 for grey images, 3 for colours, else bands. Pixels are usually
a read-only view of a memory-mapped file (see ``pixels.store``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.text import plural
from rayfed_ssl.data.source_notes import Line

MOST_CLASSES = 2**20
"""Labels must be below this number: classifiers, histograms and class names are as large as the largest label."""

NONE_HELD_OUT = (
    "has no test images, and of no class enough images to hold a fifth out: labelled images need test images"
)
"""What is wrong with labelled images without a test split of which none could be held out."""

MOST_BANDS = 64
"""The most channels that an image may have."""

Payload = bytes | Path | NDArray[np.generic] | None
"""An image before decoding: an encoded file's bytes or path, or pixels, (H, W) or (H, W, C); None if it is missing.

Pixels have C = 1, 3 or 4 channels as uint8, or 1 or 3 channels of more bits, which are scaled as those of a file are.
If the channels are bands (``are_bands``), there may be any number of them, at any depth.
"""


def are_bands(channels: int) -> bool:
    """Whether images of so many channels are neither grey nor colours: each channel is a band, such as a satellite's,
    and none is transparency.
    """
    return channels not in (1, 3)


class BadImage(Exception):
    """An image that cannot be decoded; the text is the reason. ``to_set`` is the key, such as ``range``, in the images'
    configuration block that would have to be set to decode it, if the reason names one.
    """

    to_set: str | None = None

    @classmethod
    def unless_set(cls, key: str, reason: str) -> Self:
        """The error of an image that the right value of ``key`` may decode."""
        bad = cls(reason)
        bad.to_set = key
        return bad


@dataclass(frozen=True)
class Images:
    """One split.

    ``pixels`` (N, H, W, C) uint8, C-contiguous; ``labels`` (N,) int64, -1 where unknown; ``class_names[label]``;
    ``clients`` (N,) int64, the client of each image (client folder, value of the column ``data.columns.client``), -1:
    none; ``client_names[client]``. Training and test images share the numbers of clients, so a client may have its own
    test images. ``groups`` (N,) int64, a number for whom or what each image shows (value of the column
    ``data.columns.group``, or what ``data.group`` finds in its path), -1 for unknown: images of one group are held out
    together.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    clients: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, indices: NDArray[np.int64]) -> Images:
        """Only these images, with a copy of their pixels."""
        clients, groups = (None if column is None else column[indices] for column in (self.clients, self.groups))
        pixels, labels = self.pixels[indices], self.labels[indices]
        return replace(self, pixels=pixels, labels=labels, clients=clients, groups=groups)


@dataclass(frozen=True)
class Scaling:
    """How images of more than 8 bits were scaled: ``images`` of them became 0..255, each by the range ``by``."""

    images: int
    by: str

    def __str__(self) -> str:
        deep = "of more than 8 bits"
        return plural(self.images, f"image {deep} was", f"images {deep} were") + (
            f" scaled to 0..255, {'' if self.images == 1 else 'each '}by {self.by}"
        )


@dataclass(frozen=True)
class Dataset:
    """Both splits. ``digest`` covers the decoded content (pixels, labels, clients, groups, names): equal digests mean
    equal data.

    ``skipped`` names the images of both splits that could not be decoded and were left out (``on_bad_image: skip``).
    ``notes`` are lines that a run prints on how the images were read, such as the range by which images of more than 8
    bits were scaled, or the revision that was downloaded. ``scaling`` holds the former; None if no image had more than
    8 bits. ``test`` has no rows if the training images are unlabelled and no test folder exists, or if only the
    training images were asked for. ``copies`` (K, 2) are the images with the pixels of an earlier one: its row, and the
    first row that has them; rows count through training and then test images. None if copies were not searched for.
    ``names`` (split -> (n,) text) is what each image is called: its file, from the root of the data, or the row of a
    Parquet file. ``train_digests`` (N,) is a number for the pixels of each training image, as it was decoded. ``grey``:
    whether all images of both splits are grey, though they have three channels. ``range`` is the (lowest, highest)
    value by which images of more than 8 bits were scaled: the values of the percentiles if these were asked for, and
    perhaps a pair for each band. None: each image by its own range.
    """

    name: str
    train: Images
    test: Images
    digest: str
    skipped: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    scaling: Scaling | None = None
    copies: NDArray[np.int64] | None = None
    names: Mapping[str, pa.StringArray] = field(default_factory=dict)
    train_digests: Callable[[], NDArray[np.uint64]] = lambda: np.empty(0, np.uint64)
    grey: bool = False
    range: tuple[float, float] | tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True)
class Listing:
    """One split before decoding: what a source hands to the store.

    ``read`` yields N pairs (name for error messages, payload), in the order of ``labels``. ``notes`` become notes of
    the data set, as those of ``Source`` do, and are kept with the images. The rest is as in ``Images``.
    """

    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    read: Callable[[], Iterator[tuple[str, Payload]]]
    clients: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()
    notes: Sequence[Line] = ()
    groups: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Source:
    """The place that a data set comes from.

    ``files`` are all files whose content decides the images: the cache is keyed by them, and they have to be regular
    files; messages name images in their order. ``root`` is the folder that the names in that key are relative to; it is
    set if the folders above a file mean something, and is by default the deepest folder that holds all files.
    ``listing`` lists a split ("train" or "test"); it is called only if the split is not in the cache yet. ``check``
    raises UserError if there are no test images to measure by, or none that fit the training images; it is not called
    if only the training images are wanted. ``notes`` become notes of the data set; a model card leaves out those that
    are plain text. ``alone`` lists the training images if only these are wanted and nothing needs to be held out of
    them; None: as ``listing`` does. ``doubt`` says why folders may not be classes, and which ``data.layout`` to set in
    place of the default if a test split is to be read; empty: no doubt.
    """

    files: tuple[Path, ...]
    listing: Callable[[str], Listing]
    notes: Sequence[Line] = ()
    check: Callable[[], None] = lambda: None
    root: Path | None = None
    alone: Callable[[], Listing] | None = None
    doubt: str = ""
