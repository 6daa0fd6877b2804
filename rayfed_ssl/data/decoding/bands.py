"""Images of bands: channels of which none is a colour or transparency, such as those of a satellite or of stains.

There are as many as ``data.channels`` says. They come from an array (H, W, C), from a TIFF (extra ``tiff``: tifffile),
whose bands may be samples, planes or pages, or from another file with transparency, which then counts as the last band.
``data.bands`` may choose some of a file's bands, numbered from 1: three are read as RGB, one as grey. Bands of 8 bits
keep their values. Bands of more bits are scaled one by one, each by a range of its own, or all by the same range.

If ``data.nodata`` is set, some values of a band are no data: NaN, infinity, and a number that the key gives or, in a
TIFF, the tag GDAL_NODATA. They count for no range and become 0.

Shape legend: H height, W width, C bands.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.base.text import plural
from rayfed_ssl.data.decoding.bit_depth import (
    CLIPPED_SHARE,
    NARROW_SHARE,
    EightBitImage,
    Range,
    Ranges,
    bits_per_channel,
    is_one,
    pairs_of,
    range_unknown,
    to_bytes,
)
from rayfed_ssl.data.decoding.formats import GDAL_NODATA, TIFFFILE_HERE, TIFFFILE_NEEDED, gdal_nodata
from rayfed_ssl.data.decoding.samples import ppm_highest, samples_of
from rayfed_ssl.data.decoding.upright import ORIENTATION, turned
from rayfed_ssl.data.images import BadImage, are_bands

_TIFFFILE = LazyModule("tifffile")
logging.getLogger("tifffile").addHandler(logging.NullHandler())  # else odd files are a line on stderr, unnamed
_MODES = {"LA": 2, "RGBA": 4}  # Pillow's modes of 8 bits with transparency as the last channel: how many channels
_OPAQUE = {"L": 1, "RGB": 3}  # those without transparency, which are read only if ``data.bands`` chooses bands
_WHITE_IS_ZERO, _PALETTE = 0, 3  # values of PhotometricInterpretation: TIFF 6.0, section 4
FILE = "file"
"""The value of ``data.nodata`` that means the number in each file, and NaN."""
Nodata = float | Literal["file"]
Bands = tuple[int, ...]
"""Which of a file's bands are read, in this order; the first is 1, as in GDAL and rasterio."""


def band_range_unknown(dtype: np.dtype[Any], key: str = "data") -> str:
    """The message for bands of more than 8 bits without a range: scaled image by image, they could not be compared."""
    return (
        f"bands of type {dtype.name}, of which the range cannot be told; set {key}.range=percentiles, which scales "
        "each band by its own, or [low, high], or convert to uint8"
    )


@dataclass(frozen=True)
class Raster:
    """An image's bands: ``values`` (H, W, C) of any type, upright. ``white_is_zero``: whether the lowest value is
    white. ``missing`` (H, W, C) says where there is no data; None: nowhere. ``unfilled``: whether the file's value for
    missing data occurs, and is read like any other.
    """

    values: NDArray[np.generic]
    white_is_zero: bool = False
    missing: NDArray[np.bool_] | None = None
    unfilled: bool = False

    @property
    def marked(self) -> NDArray[np.generic]:
        """The values, with NaN where there is no data; values of 8 bits are returned as they are."""
        if self.missing is None or self.values.dtype == np.uint8:
            return self.values
        return np.where(self.missing, np.nan, self.values)


def array_of(channels: int, bands: Bands | None) -> str:
    """The array from which bands are read, in words for a message."""
    shape = f"(H, W, {channels})" if bands is None else "(H, W, C) of all bands"
    return f"of {plural(channels, 'band', 'bands')} an array {shape}"


def wanted_of(channels: int, bands: Bands | None) -> str:
    """The bands that are needed, in words for the message about an image that does not have them."""
    if bands is None:
        return f"where data.channels={channels} wants so many bands"
    return f"where data.bands={list(bands)} wants {plural(max(bands), 'band', 'bands')} or more"


def fits(count: int, channels: int, bands: Bands | None) -> bool:
    """Whether an image with ``count`` bands has those that are read."""
    return count == channels if bands is None else count >= max(bands)


def chosen(values: NDArray[Any], bands: Bands | None) -> NDArray[Any]:
    """The bands that are read, out of all bands (H, W, C); None: all of them."""
    return values if bands is None else values[..., [band - 1 for band in bands]]


def bands_axis(shape: tuple[int, ...]) -> int | None:
    """Which axis of an image's array of three axes its bands are: the last (2) or the first (0); None if neither can
    be. In a square image it is the axis of another length, in others the axis that is shorter than both sides.
    """
    first, middle, last = shape
    if last < min(first, middle) or first == middle != last:
        return 2
    return 0 if first < min(middle, last) or middle == last != first else None


def equals(values: NDArray[Any], number: float) -> NDArray[np.bool_]:
    """Where ``values`` are ``number``, rounded to their type."""
    with np.errstate(over="ignore"):  # no value of a smaller type is as large
        rounded = values.dtype.type(number) if values.dtype.kind == "f" else number
    return np.asarray(values == rounded)


def no_data(values: NDArray[Any], number: float | None) -> NDArray[np.bool_]:
    """Where ``values`` are NaN, infinite or ``number``, rounded to their type."""
    not_finite = np.zeros(values.shape, np.bool_) if values.dtype.kind != "f" else ~np.isfinite(values)
    if number is None or not np.isfinite(number):
        return not_finite
    return np.asarray(not_finite | equals(values, number))


def holds_nodata(image: Image.Image) -> bool:
    """Whether a TIFF that Pillow reads without changing its values has pixels of its GDAL_NODATA value."""
    number = gdal_nodata(getattr(image, "tag_v2", {}).get(GDAL_NODATA, ""))
    return number is not None and bool(equals(np.asarray(image), number).any())


def with_missing(raster: Raster, nodata: Nodata | None, of_file: float | None = None) -> Raster:
    """The raster with ``missing`` set by ``data.nodata`` and by ``of_file``, the file's own number for missing data.
    Without ``data.nodata`` only ``unfilled`` is set.
    """
    if nodata is None:
        return replace(raster, unfilled=of_file is not None and bool(equals(raster.values, of_file).any()))
    missing = no_data(raster.values, of_file if isinstance(nodata, str) else nodata)
    return replace(raster, missing=missing) if missing.any() else raster


def bands_of_array(pixels: NDArray[np.generic], channels: int, bands: Bands | None) -> Raster:
    """The array (H, W, C), or the chosen bands of it; (H, W) has one band. Raises BadImage if it does not have the
    bands that are needed.
    """
    pixels = pixels[..., None] if pixels.ndim == 2 and bands is not None else pixels
    if pixels.ndim != 3 or not fits(pixels.shape[2], channels, bands):
        wanted = f"where data.channels={channels} wants (H, W, {channels})"
        raise BadImage(f"an array {pixels.shape}, {wanted if bands is None else wanted_of(channels, bands)}")
    return Raster(chosen(pixels, bands))


def bands_of_tiff(
    payload: bytes | Path,
    channels: int,
    bands: Bands | None,
    check: Callable[[int, int], object],
    nodata: Nodata | None = None,
) -> Raster:
    """The bands (H, W, C) of a TIFF's first image, be they samples, planes or pages, turned as its Orientation says.

    Args:
        check: is called with the image's width and height before its pixels are read.
    Raises:
        BadImage: tifffile is not installed, the image lacks bands, or its axes or type are not read.
    """
    if not TIFFFILE_HERE:
        raise BadImage(f"a TIFF, whose bands are read with {TIFFFILE_NEEDED}")
    with _TIFFFILE.TiffFile(io.BytesIO(payload) if isinstance(payload, bytes) else payload) as file:
        series, count = file.series[0], len(file.pages)
        axes, shape, page = series.axes, series.shape, series.keyframe
        pages = list(file.pages[: channels if bands is None else max(bands)])
        one_page_per_band = (
            axes == "YX" and fits(count, channels, bands) and all(plane.shape == shape for plane in pages)
        )
        sizes = [size for axis, size in zip(axes, shape, strict=True) if axis not in "YX"]
        if not one_page_per_band and (len(axes) != 3 or len(sizes) != 1 or not fits(sizes[0], channels, bands)):
            description = f"a TIFF of {' x '.join(map(str, shape))} (axes {axes})"
            raise BadImage(f"{description}, {wanted_of(channels, bands)}")
        check(shape[axes.index("X")], shape[axes.index("Y")])
        has_palette, odd_depth = page.photometric == _PALETTE, series.dtype == np.uint8 and page.bitspersample != 8
        if has_palette or odd_depth:
            description = "with a palette" if has_palette else f"of {page.bitspersample} bits"
            raise BadImage(f"a TIFF {description}; bands are of 8 bits, or of more, without a palette")
        turn = int(getattr(page.tags.get(ORIENTATION), "value", 1))
        if one_page_per_band:
            values = np.stack([plane.asarray() for plane in pages], axis=-1)
        else:
            values = np.moveaxis(series.asarray(), [axes.index("Y"), axes.index("X")], [0, 1])
    if values.dtype != np.uint8 and (values.dtype.kind not in "iuf" or values.dtype.itemsize == 1):
        raise BadImage(f"a TIFF of type {values.dtype.name}; bands are of 8 bits without a sign, or of more bits")
    raster = Raster(turned(chosen(values, bands), turn), page.photometric == _WHITE_IS_ZERO)
    return with_missing(raster, nodata, gdal_nodata(getattr(page.tags.get(GDAL_NODATA), "value", "")))


def refuse_without_bands(image: Image.Image, channels: int, bands: Bands | None) -> None:
    """Raise BadImage unless an unread Pillow image has the bands that are needed as channels of 8 bits, of which
    transparency is the last.
    """
    count = (_MODES if bands is None else _MODES | _OPAQUE).get(image.mode, 0)
    if not fits(count, channels, bands):
        raise BadImage(f"an image of mode {image.mode}, {wanted_of(channels, bands)}; allowed: arrays, TIFF")
    if bits_per_channel(image, samples_of(image)) > 8 or ppm_highest(image):
        raise BadImage("16 bits per channel, which are not read of bands here; allowed: arrays, TIFF")


def bands_to_eight_bits(raster: Raster, range: Range | Ranges | None) -> EightBitImage:
    """Scales bands (H, W, C) of any depth. The ``range``, one for each band or one for all, becomes 0..255, or 255..0
    if zero is white; values beyond it are clipped. A single band of more than 8 bits needs no range: its own values are
    the range then.

    ``clipped`` is set if more than ``CLIPPED_SHARE`` of the pixels of all bands lie outside their band's range: it is
    the (smallest, largest) value of the bands with such pixels. ``narrow`` is set if a band takes up less than
    ``NARROW_SHARE`` of its range: it is the (smallest, largest) value of such bands. Missing pixels count for neither
    and become 0.

    Raises:
        BadImage: bands of more than 8 bits have no range, a value is NaN or infinite but not missing, or all pixels are
            missing.
    """
    if raster.missing is None:
        return _to_eight_bits(raster, range, np.ones(raster.values.shape, np.bool_))
    seen = ~raster.missing
    if not seen.any():
        raise BadImage("no pixel holds data")
    values = raster.values.copy()
    for band in np.arange(values.shape[2]):  # fill with a value that the band has: its smallest and largest stay
        own = values[..., band]
        own[~seen[..., band]] = own[seen[..., band]].min() if seen[..., band].any() else 0
    scaled = _to_eight_bits(replace(raster, values=values), range, seen)
    return replace(scaled, pixels=np.where(seen, scaled.pixels, 0).astype(np.uint8))


def _to_eight_bits(raster: Raster, range: Range | Ranges | None, seen: NDArray[np.bool_]) -> EightBitImage:
    """As ``bands_to_eight_bits``, but no value may be NaN or infinite; ``seen`` (H, W, C) says which values count."""
    values = raster.values
    if values.dtype == np.uint8:
        pixels = np.asarray(values, np.uint8)
        return EightBitImage(255 - pixels if raster.white_is_zero else pixels)
    numbers, channels = values.astype(np.float64), values.shape[2]
    if range is None and channels == 1:
        return to_bytes(numbers, None, raster.white_is_zero, seen)
    if range is None:
        unknown = band_range_unknown if are_bands(channels) else range_unknown
        raise BadImage.unless_set("range", unknown(values.dtype))
    low, high = np.array(each_band(range, values.shape[2]), np.float64).T  # (C,)
    if not np.isfinite(numbers).all():
        raise BadImage("holds NaN or infinity")
    pixels = np.rint((numbers.clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)
    least, most = numbers.min(axis=(0, 1)), numbers.max(axis=(0, 1))  # (C,)
    has_data = seen.any(axis=(0, 1))
    is_outside, spread = has_data & ((least < low) | (most > high)), most - least
    is_narrow = ~is_outside & (spread > 0) & (spread < NARROW_SHARE * (high - low))
    if float(((numbers < low) | (numbers > high))[seen].mean()) <= CLIPPED_SHARE:
        is_outside[:] = False
    pixels = 255 - pixels if raster.white_is_zero else pixels
    return EightBitImage(pixels, _widest(least, most, is_outside), _widest(least, most, is_narrow))


def each_band(range: Range | Ranges, channels: int) -> Ranges:
    """The range of each of ``channels`` bands. Raises BadImage if ``range`` is for each of another number of bands."""
    ranges = pairs_of(range) * (channels if is_one(range) else 1)
    if len(ranges) != channels:
        raise BadImage(f"{channels} bands, and a range of each of {len(ranges)}")
    return ranges


def _widest(least: NDArray[np.float64], most: NDArray[np.float64], which: NDArray[np.bool_]) -> Range | None:
    """The (smallest, largest) value of the bands that ``which`` (C,) selects; None if it selects none."""
    return (float(least[which].min()), float(most[which].max())) if which.any() else None
