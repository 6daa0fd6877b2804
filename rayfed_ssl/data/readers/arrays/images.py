"""Arrays of images: which shapes and types are read, and in which order an image's axes are.

Shape legend: N images, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.data.decoding.bands import Bands, bands_axis
from rayfed_ssl.data.decoding.bit_depth import HIGH_BIT_DEPTH_TYPES, as_decoded
from rayfed_ssl.data.images import MOST_BANDS, Payload, are_bands
from rayfed_ssl.data.readers.arrays.files import Header

SHAPES = "(N, H, W), (N, H, W, C) with 1, 3 or 4 channels, (N, C, H, W) with 1 or 3"


@dataclass(frozen=True)
class ImageArray:
    """An array of images. ``axes`` is the order of an image's axes that makes it (H, W) or (H, W, C). ``channels`` is
    C, 1 for (H, W), or the number of chosen bands. ``by_band``: whether images are read band by band.
    """

    header: Header
    axes: tuple[int, ...]
    channels: int
    by_band: bool = False

    def __len__(self) -> int:
        return self.header.shape[0]

    def images(self, chosen: NDArray[np.int64], key: str) -> Iterator[tuple[str, Payload]]:
        """The (name, pixels) of the images with the numbers ``chosen``, which ascend. Raises UserError for a damaged
        file.
        """
        for row, values in zip(chosen, self.header.rows(chosen, key), strict=True):
            yield self.header.row(int(row)), as_decoded(values.transpose(self.axes), self.by_band)


def image_array(array: Header, key: str, wanted: int = 3, bands: Bands | None = None) -> ImageArray:
    """The array as images, which have bands if ``wanted``, the run's channels, says so, or if ``bands`` are chosen.
    Raises UserError for shapes and types that are no images, and for shapes that may mean two things.
    """
    shape, kind = array.shape, array.dtype.name
    high_bit_depth = kind in HIGH_BIT_DEPTH_TYPES
    if not high_bit_depth and kind not in ("uint8", "bool"):
        hint = "; of values in 0 .. 255: images.astype('uint8')" if array.dtype.kind in "iu" else ""
        raise UserError(
            f"{key}.path: {array.called} is of type {printable(kind)}; images are uint8, bool, "
            f"{', '.join(HIGH_BIT_DEPTH_TYPES)}{hint}"
        )
    if bands is not None:
        axes, channels = _chosen_axes(array, key, bands), len(bands)
    else:
        axes = _band_axes(array, key, wanted) if are_bands(wanted) else _axes(array, key)
        channels = 1 if len(axes) == 2 else (*shape[1:],)[axes[2]]
    if 0 in shape:
        raise UserError(f"{key}.path: {array.called} is of shape {shape}: it holds no pixels")
    if high_bit_depth and channels == 4 and not are_bands(wanted):
        raise UserError(
            f"{key}.path: {array.called} has 4 channels of type {kind}; transparency is read of uint8; allowed: 1 or 3 "
            f"channels, or uint8, or {key}.channels=4, which reads four bands"
        )
    return ImageArray(array, axes, channels, bands is not None or are_bands(wanted))


def _axes(array: Header, key: str) -> tuple[int, ...]:
    """The order of an image's axes that makes it (H, W) or (H, W, C). Raises UserError if there is none, or if two are
    possible.
    """
    shape, hint = array.shape, ""
    if len(shape) == 3 and shape[2] not in (1, 3, 4):
        return 0, 1
    if len(shape) == 4:
        last, first = shape[3] in (1, 3, 4), shape[1] in (1, 3)
        if last and not first:
            return 0, 1, 2
        if first and not last:
            return 1, 2, 0
    if len(shape) == 3:
        hint = "; may be one image, (H, W, C), or narrow grey ones: add an axis, images[None] or images[..., None]"
    elif len(shape) == 4 and last:
        hint = "; channels may be the second axis or the last: images.transpose(0, 2, 3, 1) puts the second last"
    elif len(shape) > 3:
        bands = _bands_perhaps(shape)
        hint = "; volumes are not read: save slices of them"
        hint += f"; {key}.channels={bands} reads images of {bands} bands" if bands else ""
    elif len(shape) == 2:
        hint = "; flattened images are to be saved in their shape: images.reshape(-1, H, W)"
    raise UserError(f"{key}.path: {array.called} is of shape {shape}; images are {SHAPES}{hint}")


def _bands_perhaps(shape: tuple[int, ...]) -> int:
    """How many bands images of this shape may have: the length of an axis shorter than both sides, or 0."""
    if len(shape) != 4:
        return 0
    _, first, second, last = shape
    candidates = ((last, min(first, second)), (first, second))  # (length of the axis, the shorter side)
    return next((length for length, side in candidates if 1 < length < side and length <= MOST_BANDS), 0)


def _band_axes(array: Header, key: str, channels: int) -> tuple[int, ...]:
    """The order of an image's axes that makes it (H, W, C) with ``channels`` bands. Raises UserError if there is none,
    or if two are possible.
    """
    shape = array.shape
    last, first = (len(shape) == 4 and shape[axis] == channels for axis in (3, 1))
    if last != first:
        return (0, 1, 2) if last else (1, 2, 0)
    hint = "; bands may be the second axis or the last" if last else ""
    raise UserError(
        f"{key}.path: {array.called} is of shape {shape}; images with {key}.channels={channels} are (N, H, W, "
        f"{channels}) or (N, {channels}, H, W){hint}"
    )


def _chosen_axes(array: Header, key: str, bands: Bands) -> tuple[int, ...]:
    """The order of an image's axes that makes it (H, W, C), with the bands last, or (H, W) for one band. Raises
    UserError if the image does not have all of the ``bands``.
    """
    shape, sides = array.shape, array.shape[1:]
    if len(sides) == 2 and bands == (1,):
        return 0, 1
    axis = bands_axis(sides) if len(sides) == 3 else None
    if axis is not None and max(bands) <= sides[axis]:
        return (0, 1, 2) if axis == 2 else (1, 2, 0)
    many = "" if axis is None else f"; it has {plural(sides[axis], 'band', 'bands')}"
    raise UserError(
        f"{key}.path: {array.called} is of shape {shape}; images with {key}.bands={list(bands)} are (N, H, W, C) or "
        f"(N, C, H, W) of {plural(max(bands), 'band', 'bands')} or more{many}"
    )
