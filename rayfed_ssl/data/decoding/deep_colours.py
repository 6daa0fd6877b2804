"""Colours of more than 8 bits a channel at full depth: PNG by torchvision's libpng, TIFF by tifffile and JPEG 2000 by
imagecodecs (both: extra ``tiff``), PPM by NumPy; and grey TIFFs that Pillow does not open, by tifffile.

Pillow has no mode for them: it keeps the 8 high bits, which leaves 16 grey levels of a 12-bit camera's colours. Here
they are scaled by a range, the same for all three colours, as arrays are. If the range is that of all 16 bits,
``[0, 65535]``, the 8 high bits of PNG and TIFF are taken. A PPM says which value is white, so it needs no range.

Shape legend: H height, W width, C channels (3, or 1 for grey), P pixels that are not transparent.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.data.decoding.bands import equals
from rayfed_ssl.data.decoding.bit_depth import (
    EightBitImage,
    Range,
    bits_per_channel,
    deep_colours_unranged,
    has_sixteen_raw,
    is_high_bit_depth,
    to_bytes,
)
from rayfed_ssl.data.decoding.formats import (
    GDAL_NODATA,
    IMAGECODECS_HERE,
    PHOTOMETRIC,
    RGB,
    TIFFFILE_HERE,
    TIFFFILE_NEEDED,
    WHOLE_OR_FLOATS,
    gdal_nodata,
    tiff_tags,
)
from rayfed_ssl.data.decoding.samples import content_of, ppm_colours, ppm_highest, samples_of
from rayfed_ssl.data.decoding.upright import ORIENTATION, orientation, turned
from rayfed_ssl.data.images import BadImage, Payload

_TORCHVISION = LazyModule("torchvision.io")
_TIFFFILE, _IMAGECODECS = LazyModule("tifffile"), LazyModule("imagecodecs")
_WHITE_IS_ZERO, _GREYS = 0, (0, 1)  # values of PhotometricInterpretation: TIFF 6.0, section 4
_ASSOCIATED, _UNASSOCIATED = 1, 2  # values of ExtraSamples: TIFF 6.0, section 18


@dataclass(frozen=True)
class DeepColours:
    """An image's colours or grey: ``values`` (H, W, C) of any type, upright, and how opaque each pixel is, ``opacity``
    (H, W) uint8; None: all are opaque. ``frames``: whether the file has several frames, of which this is the first.
    ``bands``: whether it has bands beside colours and transparency. ``unfilled``: whether pixels have the value that
    the file has for missing data. ``white_is_zero``: whether the lowest value is white.
    """

    values: NDArray[np.generic]
    opacity: NDArray[np.uint8] | None = None
    frames: bool = False
    bands: bool = False
    unfilled: bool = False
    white_is_zero: bool = False

    @property
    def seen(self) -> NDArray[np.float64]:
        """The values (P, C) that count for a range; those of all pixels if all are transparent."""
        values = self.values.astype(np.float64).reshape(-1, self.values.shape[2])
        if self.opacity is None or not self.opacity.any():
            return values
        return values[self.opacity.reshape(-1) > 0]

    def scaled(self, range: Range | None) -> tuple[Image.Image, EightBitImage]:
        """The image with 8 bits a channel, with its transparency if it has any; and what scaling by ``range``, or of
        grey by its own, made of its values. Raises BadImage for NaN and infinity.
        """
        seen = None
        if self.opacity is not None:
            seen = np.broadcast_to(self.opacity[..., None] > 0, self.values.shape)
        eight_bit = to_bytes(self.values.astype(np.float64), range, self.white_is_zero, seen)
        channels = eight_bit.pixels if self.opacity is None else np.dstack([eight_bit.pixels, self.opacity])
        channels = channels[..., 0] if channels.shape[2] == 1 else channels
        return Image.fromarray(np.ascontiguousarray(channels)), eight_bit


def deep_colours(image: Image.Image, range: Range | None) -> DeepColours | None:
    """The colours of an unread image of more than 8 bits a channel for which ``is_deep`` holds. None for any other
    image; if the range is that of all 16 bits, of which Pillow takes the high ones; and for a PPM without a range,
    whose highest value Pillow makes white.

    Raises:
        BadImage: there is no ``range`` for another such image, or a library is needed and not installed.
    """
    if not is_deep(image) or (range is None and image.format == "PPM"):
        return None
    if range is None:
        raise deep_colours_unranged(bits_per_channel(image, samples_of(image)), image.mode)
    of_all_bits = range == (0, 2**16 - 1) and has_sixteen_raw(image)
    one_is_clear = "transparency" in image.info  # a colour of 16 bits, which Pillow compares with the 8 high ones
    return None if of_all_bits and not one_is_clear else read_deep(image)


def is_deep(image: Image.Image) -> bool:
    """Whether an unread image is a PNG, a TIFF, a PPM or a JPEG 2000 with several channels of more than 8 bits."""
    if image.format in ("PPM", "JPEG2000"):
        samples = samples_of(image)
        return not is_high_bit_depth(image) and (ppm_highest(image) > 0 or (samples is not None and samples.bits > 8))
    coloured = image.mode in ("RGB", "RGBA") and not is_high_bit_depth(image)
    rgb = image.format == "PNG" or getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == RGB
    return coloured and rgb and bits_per_channel(image, None) > 8


def read_deep(image: Image.Image) -> DeepColours:
    """The colours of an image for which ``is_deep`` holds. Raises BadImage for a TIFF if tifffile is not installed, and
    for a JPEG 2000 if imagecodecs is not.
    """
    file: Any = getattr(image, "fp", None)
    place = file.tell()
    try:
        if image.format == "PPM":
            return DeepColours(ppm_colours(image, file))
        if image.format == "JPEG2000":
            return _of_jpeg2000(image, file)
        return _of_png(image, file) if image.format == "PNG" else _of_tiff(file)
    finally:
        if not file.closed:
            file.seek(place)


def _of_png(image: Image.Image, file: IO[bytes]) -> DeepColours:
    """Reads a PNG (ISO 15948) of colour type 2, 4 or 6 with 16 bits; the colour of the chunk tRNS is transparent."""
    encoded = content_of(file)
    content = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    channels = _TORCHVISION.decode_png(content, _TORCHVISION.ImageReadMode.UNCHANGED)  # (C, H, W) uint16
    values = channels.permute(1, 2, 0).numpy()
    opacity, clear = None, image.info.get("transparency")
    if values.shape[2] in (2, 4):
        opacity, values = _of_eight_bits(values[..., -1]), values[..., :-1]
    elif clear is not None:
        opacity = np.where((values == np.array(clear)).all(axis=2), 0, 255).astype(np.uint8)
    with Image.open(
        io.BytesIO(encoded), formats=("PNG",)
    ) as copy:  # a loaded image no longer tells that it has 16 bits
        copy.load()  # reads what stands behind the pixels, such as the orientation
        turn = orientation(copy)
    return DeepColours(turned(values, turn), None if opacity is None else turned(opacity, turn))


def _of_jpeg2000(image: Image.Image, file: IO[bytes]) -> DeepColours:
    """Reads a JPEG 2000 of several channels, of which a second or fourth is transparency, as Pillow takes it. Pillow
    itself makes the values next to white black, as it rounds them up beyond 8 bits.
    """
    if not IMAGECODECS_HERE:
        raise BadImage(f"a JPEG 2000 of colours of more than 8 bits, which are read with {TIFFFILE_NEEDED}")
    values = _IMAGECODECS.jpeg2k_decode(content_of(file))
    samples = samples_of(image)
    assert samples is not None
    if values.shape[2] not in (2, 4):
        return DeepColours(values)
    opacity = (values[..., -1].astype(np.float64) - samples.lowest) * (255 / (2**samples.bits - 1))
    return DeepColours(values[..., :-1], np.rint(opacity).astype(np.uint8))


def unopened_tiff(payload: Payload, check: Callable[[int, int], object], coloured: bool = True) -> DeepColours | None:
    """A TIFF of more than 8 bits that Pillow does not open, such as colours of floats, or grey of 64 bits. None for
    other images, and for colours unless ``coloured``. ``check`` and errors are those of ``_of_tiff``.
    """
    tags = tiff_tags(payload)
    if not isinstance(payload, bytes | Path) or tags is None:
        return None
    bands, bits, kind, photometric = tags
    is_grey = TIFFFILE_HERE and photometric in _GREYS and bands == 1 and kind in WHOLE_OR_FLOATS
    is_coloured = coloured and photometric == RGB and bands >= 3
    if not (is_grey or is_coloured) or min(bits) <= 8:
        return None
    with io.BytesIO(payload) if isinstance(payload, bytes) else payload.open("rb") as file:
        return _of_tiff(file, check)


def _of_tiff(file: IO[bytes], check: Callable[[int, int], object] = lambda width, height: None) -> DeepColours:
    """Reads the first image of a TIFF that says that it is RGB, or grey: numbers of any type, its samples together or
    in planes.

    Args:
        check: is called with the image's width and height before its pixels are read.
    Raises:
        BadImage: tifffile is not installed, the image says neither, or its transparency is not of unsigned numbers.
    """
    if not TIFFFILE_HERE:
        raise BadImage(f"a TIFF of colours of more than 8 bits, which are read with {TIFFFILE_NEEDED}")
    file.seek(0)
    with _TIFFFILE.TiffFile(file) as opened:
        page, frames = opened.pages[0], len(opened.pages) > 1
        grey = page.axes == "YX" and page.photometric in _GREYS
        if not grey and (sorted(page.axes) != ["S", "X", "Y"] or page.photometric != RGB):
            raise BadImage(f"a TIFF of axes {page.axes}, which does not say that it is RGB")
        check(page.imagewidth, page.imagelength)
        samples = page.asarray()[..., None] if grey else np.moveaxis(page.asarray(), page.axes.index("S"), -1)
        white_is_zero = page.photometric == _WHITE_IS_ZERO
        kinds, turn = tuple(map(int, page.extrasamples)), int(getattr(page.tags.get(ORIENTATION), "value", 1))
        number = gdal_nodata(getattr(page.tags.get(GDAL_NODATA), "value", ""))
    values, opacity = samples[..., :3], None
    unfilled = number is not None and bool(equals(values, number).any())
    if not kinds and samples.shape[2] == 4 and samples.dtype.kind == "u":
        kinds = (_UNASSOCIATED,)  # as Pillow takes it
    if kinds[:1] in ((_ASSOCIATED,), (_UNASSOCIATED,)):
        alpha = samples[..., 3]
        if alpha.dtype.kind != "u":
            raise BadImage(f"a TIFF with transparency of type {alpha.dtype.name}, which is read of unsigned numbers")
        opacity = _of_eight_bits(alpha)
        if kinds[0] == _ASSOCIATED:  # colours were multiplied by it
            values = values * (np.iinfo(alpha.dtype).max / np.maximum(alpha, 1)[..., None])
    bands = samples.shape[2] > (3 if opacity is None else 4)
    values, opacity = turned(values, turn), None if opacity is None else turned(opacity, turn)
    return DeepColours(values, opacity, frames, bands, unfilled, white_is_zero)


def _of_eight_bits(alpha: NDArray[Any]) -> NDArray[np.uint8]:
    """Scales the values that an unsigned type can hold to 0..255."""
    return np.rint(alpha * (255 / np.iinfo(alpha.dtype).max)).astype(np.uint8)
