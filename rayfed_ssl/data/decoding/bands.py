"""Images of bands: channels of which none is a colour or transparency, such as those of a satellite or of stains.

There are as many as ``data.channels`` says: of an array (H, W, C), of a TIFF (extra ``tiff``: tifffile), whose bands
may be samples, planes or pages, or of another file with transparency, which counts as the last band then. Bands of 8
bits keep their values. Those of more are scaled band by band, each by a range of its own, or all by the same one.

Shape legend: H height, W width, C bands.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.data.decoding.bit_depth import (
    CLIPPED_SHARE,
    NARROW_SHARE,
    EightBitImage,
    Range,
    Ranges,
    bits_per_channel,
    is_one,
    pairs_of,
)
from rayfed_ssl.data.decoding.formats import TIFFFILE_HERE, TIFFFILE_NEEDED
from rayfed_ssl.data.images import BadImage

_TIFFFILE = LazyModule("tifffile")
logging.getLogger("tifffile").addHandler(logging.NullHandler())  # else odd files are a line on stderr, unnamed
_MODES = {"LA": 2, "RGBA": 4}  # Pillow's, of 8 bits, with transparency as the last channel
_WHITE_IS_ZERO = 0  # of PhotometricInterpretation: TIFF 6.0, section 4
_ORIENTATION = 274  # TIFF 6.0, section 8


def band_range_unknown(dtype: np.dtype[Any], key: str = "data") -> str:
    """What to say of bands of more than 8 bits without a range: scaled image by image, they could not be compared."""
    return (
        f"bands of type {dtype.name}, of which the range cannot be told; set {key}.range=percentiles, which scales "
        "each band by its own, or [low, high], or convert to uint8"
    )


def bands_of_array(pixels: NDArray[np.generic], channels: int) -> NDArray[np.generic]:
    """The array itself, (H, W, C). Raises BadImage where it has another number of channels."""
    if pixels.ndim != 3 or pixels.shape[2] != channels:
        raise BadImage(f"an array {pixels.shape}, where data.channels={channels} wants (H, W, {channels})")
    return pixels


def bands_of_tiff(payload: bytes | Path, channels: int, check: Callable[[int, int], object]) -> NDArray[np.generic]:
    """The bands (H, W, C) of a TIFF's first image, be they samples, planes or pages.

    Args:
        check: is told the image's (width, height) before its pixels are read.
    Raises:
        BadImage: no tifffile here; another number of bands, or an image whose axes, type, orientation or order of
            values (zero is white) are not read.
    """
    if not TIFFFILE_HERE:
        raise BadImage(f"a TIFF, whose bands are read with {TIFFFILE_NEEDED}")
    with _TIFFFILE.TiffFile(io.BytesIO(payload) if isinstance(payload, bytes) else payload) as file:
        series, pages = file.series[0], list(file.pages[:channels])
        axes, shape, page = series.axes, series.shape, series.keyframe
        apart = axes == "YX" and len(file.pages) == channels and all(of.shape == shape for of in pages)
        bands = [size for axis, size in zip(axes, shape, strict=True) if axis not in "YX"]
        if not apart and (len(axes) != 3 or bands != [channels]):
            sizes = " x ".join(map(str, shape))
            raise BadImage(f"a TIFF of {sizes} (axes {axes}), where data.channels={channels} wants so many bands")
        check(shape[axes.index("X")], shape[axes.index("Y")])
        turned = getattr(page.tags.get(_ORIENTATION), "value", 1)
        if page.photometric == _WHITE_IS_ZERO or turned != 1:
            why = f"turned by its Orientation {int(turned)}" if turned != 1 else "one whose zero is white"
            raise BadImage(f"a TIFF that is {why}, which is not read of bands")
        if apart:
            found = np.stack([of.asarray() for of in pages], axis=-1)
        else:
            found = np.moveaxis(series.asarray(), [axes.index("Y"), axes.index("X")], [0, 1])
    if found.dtype != np.uint8 and (found.dtype.kind not in "iuf" or found.dtype.itemsize == 1):
        raise BadImage(f"a TIFF of type {found.dtype.name}; bands are of 8 bits without a sign, or of more bits")
    return found


def refuse_without_bands(image: Image.Image, channels: int) -> None:
    """Raise BadImage for an unread image of Pillow's that has not so many channels of 8 bits, transparency the last."""
    if _MODES.get(image.mode) != channels:
        raise BadImage(
            f"an image of mode {image.mode}, where data.channels={channels} wants so many bands; allowed: arrays, TIFF"
        )
    if bits_per_channel(image, None) > 8:
        raise BadImage("16 bits per channel, which are not read of bands here; allowed: arrays, TIFF")


def bands_to_eight_bits(values: NDArray[np.generic], range: Range | Ranges | None) -> EightBitImage:
    """Bands (H, W, C) of any depth by the ``range`` of each, or of all, which becomes 0..255, clipped beyond it.

    ``clipped`` if more than ``CLIPPED_SHARE`` of the pixels of all bands lie outside their band's range: the (smallest,
    largest) value of the bands with such pixels. ``narrow`` if a band takes up less than ``NARROW_SHARE`` of its range:
    that of such bands. Raises BadImage for bands of more than 8 bits without a range, and for NaN and infinity.
    """
    if values.dtype == np.uint8:
        return EightBitImage(np.asarray(values, np.uint8))
    if range is None:
        raise BadImage.unless_set("range", band_range_unknown(values.dtype))
    low, high = np.array(each_band(range, values.shape[2]), np.float64).T  # (C,)
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise BadImage("holds NaN or infinity")
    pixels = np.rint((numbers.clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)
    least, most = numbers.min(axis=(0, 1)), numbers.max(axis=(0, 1))  # (C,)
    is_outside, spread = (least < low) | (most > high), most - least
    is_narrow = ~is_outside & (spread > 0) & (spread < NARROW_SHARE * (high - low))
    if float(((numbers < low) | (numbers > high)).mean()) <= CLIPPED_SHARE:
        is_outside[:] = False
    return EightBitImage(pixels, _widest(least, most, is_outside), _widest(least, most, is_narrow))


def each_band(range: Range | Ranges, channels: int) -> Ranges:
    """The range of each of so many bands. Raises BadImage for a range of each of another number."""
    ranges = pairs_of(range) * (channels if is_one(range) else 1)
    if len(ranges) != channels:
        raise BadImage(f"{channels} bands, and a range of each of {len(ranges)}")
    return ranges


def _widest(least: NDArray[np.float64], most: NDArray[np.float64], which: NDArray[np.bool_]) -> Range | None:
    """The (smallest, largest) value of these of the bands (C,); None where there are none of them."""
    return (float(least[which].min()), float(most[which].max())) if which.any() else None
