"""Notes on the pixels of stored splits: what was scaled, clipped and lost, images of one colour, and test images that
almost equal a training image.

Shape legend: K images that have an earlier copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.squares import Background
from rayfed_ssl.data.images import Scaling, are_bands
from rayfed_ssl.data.pixels.copies import of_one_colour
from rayfed_ssl.data.pixels.near_copies import MOST_SHOWN, kept_near_copies, note
from rayfed_ssl.data.pixels.notes import counted, misfitting, outside_of, plain
from rayfed_ssl.data.pixels.store import Stored
from rayfed_ssl.data.source_notes import Line


def pixel_notes(
    found: Mapping[str, Stored],
    counts: Mapping[str, int],
    scaling: Scaling | None,
    form: ImageForm,
    key: str,
    *,
    percentiles: bool,
) -> tuple[Line, ...]:
    """Lines on the splits ``found``: first those of each split's listing, then lines on the pixels of all splits.

    Args:
        counts: how many images of all splits have each trait of ``store.NOTICED``.
        scaling: how images of more than 8 bits were scaled; None if there are none.
        form: the form that images were decoded to, with the range that was used.
        percentiles: whether that range was found by ``data.range=percentiles``.
    """
    notes: list[Line] = [line for stored in found.values() for line in stored.notes]
    if scaling is not None:
        outside, splits = outside_of(form.range, key, percentiles), [stored.misfits for stored in found.values()]
        bands = are_bands(form.channels)
        notes += str(scaling), *misfitting(splits, outside, key, bands=bands, percentiles=percentiles)
    notes += counted(counts, form.background, key)
    return *notes, *plain_notes(found, counts["transparent"], form.background, key)


def plain_notes(found: Mapping[str, Stored], transparent: int, background: Background, key: str) -> tuple[Note, ...]:
    """A line on images of one single colour, with the names of some, if there are any."""
    rows, colours = of_one_colour(*(stored.images.pixels for stored in found.values()))
    names = pa.chunked_array([stored.names for stored in found.values()], pa.string())
    return plain(colours, transparent, background, key, names.take(rows).to_pylist())


def near_copy_notes(
    found: Mapping[str, Stored], copies: NDArray[np.int64], digest: str, file: Path, group: str
) -> tuple[Note, ...]:
    """A line on test images that almost equal a training image, if there are many.

    Args:
        found: both splits.
        copies: (K, 2) the exact copies, as ``copies.copies`` returns them; they are not counted again.
        digest: the digest of both splits.
        file: where the result of the search is kept.
        group: the key that keeps images together.
    """
    train, test = found["train"], found["test"]
    first = len(train.images)
    ours = copies[(copies[:, 0] >= first) & (copies[:, 1] < first), 0] - first
    copied = np.isin(np.arange(len(test.images)), ours)
    near = kept_near_copies(train.images.pixels, test.images.pixels, copied, digest, file)
    shown = near.pairs[:MOST_SHOWN]
    names = [str(train.names[row]) for _, row in shown], [str(test.names[row]) for row, _ in shown]
    return note(near, (first, len(test.images)), names, group)
