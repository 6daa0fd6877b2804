"""Scales images of more than 8 bits to 8: which images these are, by which range, and what that loses.

A range becomes 0..255: the given one or, for grey values, the image's own. If the range of colours is all that their
bits can hold, the 8 high bits are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rayfed_ssl.data.decoding.samples import Samples
from rayfed_ssl.data.images import BadImage, are_bands

CLIPPED_SHARE = 0.01  # of an image's pixels: if more lie outside the range, a note says so
NARROW_SHARE = 1 / 16  # of the range: an image whose values take up less keeps at most 17 grey levels of 256
OUTER_SHARE = 0.005  # of an image's pixels, at either end of its values: these may be a few hot or dead pixels
_LOOKED_AT = 2**14  # evenly spaced pixels among which ``OUTER_SHARE`` is counted
_WHITE_IS_ZERO, _PHOTOMETRIC = 0, 262  # TIFF 6.0, section 4
_BITS, _KIND = 258, 339  # TIFF 6.0: BitsPerSample, SampleFormat
_UNSIGNED, _SIGNED = 1, 2
_SIXTEEN_RAW = re.compile(r";16[BLN]")  # Pillow's names of 16-bit samples; BMP's "BGR;16" has 5 or 6 bits a channel
HIGH_BIT_DEPTH_TYPES = ("uint16", "int16", "int32", "float16", "float32", "float64")  # of arrays
Range = tuple[float, float]
Ranges = tuple[Range, ...]
"""The range of each band."""
PERCENTILES = "percentiles"
"""The value of ``data.range`` that means the 0.5th and the 99.5th percentile of the training images' pixels (see
``percentiles``)."""


def as_decoded(pixels: NDArray[Any], by_band: bool) -> NDArray[Any]:
    """Pixels (H, W) or (H, W, C) as ``decode`` takes them: in this machine's byte order, with False and True as 0 and
    255. float16 becomes float32, as Pillow has no float16; but bands (``by_band``) keep their type, in which
    ``data.nodata`` is compared with their values.
    """
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    own = pixels.dtype.newbyteorder("=")
    return pixels.astype(np.float32 if own == np.float16 and not by_band else own, copy=False)


def is_one(range: Range | Ranges) -> TypeGuard[Range]:
    """Whether ``range`` is one range, not a range for each band."""
    return not any(isinstance(part, tuple) for part in range)


def as_lists(range: Range | Ranges) -> list[Any]:
    """The range as a configuration has it: [low, high], or a list of such lists."""
    return list(range) if is_one(range) else [list(part) for part in pairs_of(range)]


def pairs_of(range: Range | Ranges) -> Ranges:
    """The ranges of the bands; one range is a tuple of that range alone."""
    return (range,) if is_one(range) else cast(Ranges, range)


def in_pairs(given: object) -> object:
    """The value ``given`` for ``data.range``, as it is. Raises ValueError for a list that is neither two numbers nor a
    list of such lists.
    """
    if not isinstance(given, list | tuple):
        return given
    nested = any(isinstance(part, list | tuple) for part in given)
    try:
        fits = all(len([float(number) for number in pair]) == 2 for pair in (given if nested else [given]))
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"must be [low, high], of bands perhaps a list of these, or {PERCENTILES}")
    return given


def allowed_instead(range: Range | Ranges, channels: int, chosen: bool = False) -> str:
    """What is allowed instead of ``range`` for images of so many channels, in words; empty if ``range`` is allowed.
    ``chosen``: whether the channels are bands that the user chose, each of which may have its own range even if there
    are three.
    """
    bands, one, pairs = chosen or are_bands(channels), is_one(range), pairs_of(range)
    if (one or (bands and len(pairs) == channels)) and all(low < high for low, high in pairs):
        return ""
    each = f", or {channels} of these" if bands else "" if one else "; one of each band needs channels, their number"
    return f"[low, high] with low < high{each}"


@dataclass(frozen=True)
class EightBitImage:
    """An image of 8 bits: its ``pixels``, and its (smallest, largest) value if the range that it was scaled by does not
    fit. That is in ``clipped`` if more than ``CLIPPED_SHARE`` of the pixels lie outside the range, else in ``narrow``
    if they take up less than ``NARROW_SHARE`` of it.

    ``spiked`` is set if the image was scaled by its own range, and its pixels without the ``OUTER_SHARE`` at either end
    take up less than ``NARROW_SHARE`` of that: it is the (smallest, largest) value of these pixels.
    """

    pixels: NDArray[np.uint8]
    clipped: Range | None = None
    narrow: Range | None = None
    spiked: Range | None = None


def is_high_bit_depth(image: Image.Image) -> bool:
    """Whether a grey image has more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def refuse_signed_bytes(image: Image.Image) -> None:
    """Raise BadImage for a TIFF with signed values of 8 bits, which Pillow reads as unsigned."""
    tags = getattr(image, "tag_v2", {})
    if _SIGNED in tags.get(_KIND, ()) and 8 in tags.get(_BITS, ()):
        raise BadImage("8 bits with a sign, which would be read without it; convert to 8 bits without one, or to 16")


def has_high_bit_depth_colours(image: Image.Image, range: Range | None, samples: Samples | None) -> bool:
    """Whether an image has several channels of more than 8 bits each; ``samples`` is what ``samples_of`` returns.

    Pillow reads the 8 high bits, which is right for the full range only. Raises BadImage for any other ``range``.
    """
    if is_high_bit_depth(image) or (bits := bits_per_channel(image, samples)) <= 8:
        return False
    if range != (0, 2**bits - 1):
        raise BadImage.unless_set(
            "range",
            f"{bits} bits per channel in mode {image.mode}, of which {image.format} is read with the 8 high ones; "
            f"set data.range=[0,{2**bits - 1}] if they use all of it, else convert to 8 bits",
        )
    return True


def bits_per_channel(image: Image.Image, samples: Samples | None) -> int:
    """The bits of each channel of an unread image that is not ``is_high_bit_depth``; 8 if its pixels were read already.
    ``samples`` is what ``samples_of`` returns.
    """
    if samples is not None:
        return samples.bits
    if not getattr(image, "tile", ()):
        return 8
    return 16 if has_sixteen_raw(image) else max((8, *getattr(image, "tag_v2", {}).get(_BITS, ())))


def has_sixteen_raw(image: Image.Image) -> bool:
    """Whether Pillow takes the high bytes of an unread image's channels of 16 bits. For a TIFF whose planes are
    separate it does not.
    """
    tiles = [tile.args if isinstance(tile.args, tuple) else (tile.args,) for tile in getattr(image, "tile", ())]
    raw = [part for arguments in tiles for part in arguments if isinstance(part, str)]
    return any(_SIXTEEN_RAW.search(part) for part in raw)


def deep_colours_unranged(bits: int, mode: str) -> BadImage:
    """The error of colours of more than 8 bits without a range: scaled one by one, images would change colour."""
    return BadImage.unless_set(
        "range",
        f"{bits} bits per channel in mode {mode}, of which the range cannot be told; set data.range=percentiles, or "
        f"[low, high], such as data.range=[0,{2**bits - 1}] if they use all of it",
    )


def range_unknown(dtype: np.dtype[Any], key: str = "data") -> str:
    """The message for colours of more than 8 bits without a range: scaled one by one, images would change colour."""
    return (
        f"colours of type {dtype.name}, of which the range cannot be told; set {key}.range=percentiles, or [low, "
        "high], such as [0, 1], or convert to uint8"
    )


def colours_to_eight_bits(pixels: NDArray[np.generic], range: Range | None) -> EightBitImage:
    """Scales colours (H, W, 3) of more than 8 bits, all channels by the same ``range``. Raises BadImage without one."""
    if range is None or pixels.shape[-1] != 3:
        raise BadImage.unless_set("range", range_unknown(pixels.dtype))
    return to_bytes(pixels.astype(np.float64), range)


def to_eight_bits(
    image: Image.Image, range: Range | None, samples: Samples | None, seen: NDArray[np.bool_] | None = None
) -> EightBitImage:
    """Scales a grey image of any depth; ``samples`` is what ``samples_of`` returns, ``seen`` (H, W) says which pixels
    are not transparent. Raises BadImage as ``to_bytes`` does.
    """
    white_is_zero = getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    return to_bytes(grey_values(image, samples), range, white_is_zero, seen)


def grey_values(image: Image.Image, samples: Samples | None) -> NDArray[np.float64]:
    """The values (H, W) of a grey image; ``samples`` is what ``samples_of`` returned before it was read."""
    tags = getattr(image, "tag_v2", {})
    stored = np.asarray(image)
    if tags.get(_BITS) == (32,) and tags.get(_KIND, (_UNSIGNED,)) == (_UNSIGNED,):
        stored = stored.view(np.uint32)  # Pillow has no such mode: it takes the highest bit for a sign
    values = stored.astype(np.float64)
    return values if samples is None else samples.of(values)


def seen_of(image: Image.Image) -> NDArray[np.bool_] | None:
    """Where the pixels (H, W) of a grey PNG of 16 bits do not have the value that it calls transparent; None if it
    calls none so.
    """
    clear = image.info.get("transparency")
    return np.asarray(image) != clear if isinstance(clear, int) else None


def to_bytes(
    values: NDArray[np.float64],
    range: Range | None,
    white_is_zero: bool = False,
    seen: NDArray[np.bool_] | None = None,
) -> EightBitImage:
    """Scales values of any shape: ``range``, or else that of the values, becomes 0..255, and values beyond are clipped.

    Values that are not ``seen`` count for no range and no clipping. If all values are the same and there is no range,
    they become what the smallest value becomes in other images: 0, or 255 with ``white_is_zero``. Raises BadImage for
    NaN and infinity.
    """
    if not np.isfinite(values).all():
        raise BadImage("holds NaN or infinity")
    counted = values if seen is None or not seen.any() else values[seen]
    own = (float(counted.min()), float(counted.max()))
    low, high = range or own
    step = 255 / (high - low) if low < high else 0.0
    scaled = np.rint((values.clip(low, high) - low) * step).astype(np.uint8)
    pixels = 255 - scaled if white_is_zero else scaled
    if range is None:
        return EightBitImage(pixels, spiked=_spiked(counted, own))
    if float(((counted < low) | (counted > high)).mean()) > CLIPPED_SHARE:
        return EightBitImage(pixels, clipped=own)
    return EightBitImage(pixels, narrow=own if 0 < own[1] - own[0] < NARROW_SHARE * (high - low) else None)


def narrow_in_high_bits(colours: NDArray[np.uint8], bits: int) -> Range | None:
    """``EightBitImage.narrow`` of colours of any shape of which only the 8 high of so many ``bits`` are known: the
    smallest value that they may have, and the largest.
    """
    low, high = int(colours.min()), int(colours.max())
    rest = 2 ** max(bits - 8, 0)
    return (low * rest, high * rest + rest - 1) if 0 < high - low < NARROW_SHARE * 256 else None


def _spiked(values: NDArray[np.float64], own: Range) -> Range | None:
    """``EightBitImage.spiked`` of an image that is scaled by its ``own`` range; also None if it has too few pixels to
    leave some out.
    """
    flat = values.ravel()
    sample = flat[:: (len(flat) // _LOOKED_AT) | 1]  # an odd step, so not the same columns of every row
    outer = int(OUTER_SHARE * len(sample))
    if not outer:
        return None
    ordered = np.partition(sample, (outer, len(sample) - 1 - outer))
    low, high = float(ordered[outer]), float(ordered[-1 - outer])
    return (low, high) if high - low < NARROW_SHARE * (own[1] - own[0]) else None
