"""Colours of more than 8 bits a channel at full depth: PNG by torchvision's libpng, TIFF by tifffile (extra ``tiff``).

Pillow has no mode for them: it keeps the 8 high bits, which leaves 16 grey levels of a 12-bit camera's colours. Here
they are scaled by a range, the same for all three colours, as arrays are. If the range is that of all 16 bits,
``[0, 65535]``, the 8 high bits are taken.

Shape legend: H height, W width, C channels (3, or 1 for grey with transparency), P pixels that are not transparent.
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
    PHOTOMETRIC,
    RGB,
    TIFFFILE_HERE,
    TIFFFILE_NEEDED,
    gdal_nodata,
    tiff_tags,
)
from rayfed_ssl.data.decoding.upright import ORIENTATION, orientation, turned
from rayfed_ssl.data.images import BadImage, Payload

_TORCHVISION = LazyModule("torchvision.io")
_TIFFFILE = LazyModule("tifffile")
_ASSOCIATED, _UNASSOCIATED = 1, 2  # values of ExtraSamples: TIFF 6.0, section 18


@dataclass(frozen=True)
class DeepColours:
    """An image's colours: ``values`` (H, W, C) of any type, upright, and how opaque each pixel is, ``opacity`` (H, W)
    uint8; None: all are opaque. ``frames``: whether the file has several frames, of which this is the first. ``bands``:
    whether it has bands beside colours and transparency. ``unfilled``: whether pixels have the value that the file has
    for missing data.
    """

    values: NDArray[np.generic]
    opacity: NDArray[np.uint8] | None = None
    frames: bool = False
    bands: bool = False
    unfilled: bool = False

    @property
    def seen(self) -> NDArray[np.float64]:
        """The values (P, C) that count for a range; those of all pixels if all are transparent."""
        values = self.values.astype(np.float64).reshape(-1, self.values.shape[2])
        if self.opacity is None or not self.opacity.any():
            return values
        return values[self.opacity.reshape(-1) > 0]

    def scaled(self, range: Range) -> tuple[Image.Image, EightBitImage]:
        """The image with 8 bits a channel, with its transparency if it has any; and what scaling by ``range`` made of
        its values. Raises BadImage for NaN and infinity.
        """
        seen = None
        if self.opacity is not None:
            seen = np.broadcast_to(self.opacity[..., None] > 0, self.values.shape)
        eight_bit = to_bytes(self.values.astype(np.float64), range, seen=seen)
        channels = eight_bit.pixels if self.opacity is None else np.dstack([eight_bit.pixels, self.opacity])
        return Image.fromarray(np.ascontiguousarray(channels)), eight_bit


def deep_colours(image: Image.Image, range: Range | None) -> DeepColours | None:
    """The colours of an unread PNG or TIFF of more than 8 bits a channel. None for any other image, which Pillow reads
    in full, and if the range is that of all 16 bits, whose high ones Pillow takes.

    Raises:
        BadImage: there is no ``range`` for such an image, or tifffile is needed and not installed.
    """
    if not is_deep(image) or (range == (0, 2**16 - 1) and has_sixteen_raw(image)):
        return None
    if range is None:
        raise deep_colours_unranged(bits_per_channel(image, None), image.mode)
    return read_deep(image)


def is_deep(image: Image.Image) -> bool:
    """Whether an unread image is a PNG or a TIFF with colours of more than 8 bits a channel."""
    coloured = image.mode in ("RGB", "RGBA") and not is_high_bit_depth(image)
    rgb = image.format == "PNG" or getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == RGB
    return coloured and rgb and bits_per_channel(image, None) > 8


def read_deep(image: Image.Image) -> DeepColours:
    """The colours of an image for which ``is_deep`` holds. Raises BadImage for a TIFF if tifffile is not installed."""
    file: Any = getattr(image, "fp", None)
    place = file.tell()
    try:
        return _of_png(image, file) if image.format == "PNG" else _of_tiff(file)
    finally:
        if not file.closed:
            file.seek(place)


def _of_png(image: Image.Image, file: IO[bytes]) -> DeepColours:
    """Reads a PNG (ISO 15948) of colour type 2, 4 or 6 with 16 bits; the colour of the chunk tRNS is transparent."""
    place = file.tell()
    file.seek(0)
    encoded = file.read()
    file.seek(place)
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


def unopened_colours(payload: Payload, check: Callable[[int, int], object]) -> DeepColours | None:
    """The colours of a TIFF that Pillow does not open, such as one of floats; None for other images. ``check`` and
    errors are those of ``_of_tiff``.
    """
    tags = tiff_tags(payload)
    if not isinstance(payload, bytes | Path) or tags is None:
        return None
    bands, bits, _, rgb = tags
    if not rgb or bands < 3 or min(bits) <= 8:
        return None
    with io.BytesIO(payload) if isinstance(payload, bytes) else payload.open("rb") as file:
        return _of_tiff(file, check)


def _of_tiff(file: IO[bytes], check: Callable[[int, int], object] = lambda width, height: None) -> DeepColours:
    """Reads the first image of a TIFF that says that it is RGB: numbers of any type, its samples together or in planes.

    Args:
        check: is called with the image's width and height before its pixels are read.
    Raises:
        BadImage: tifffile is not installed, the image does not say that it is RGB, or its transparency is not of
            unsigned numbers.
    """
    if not TIFFFILE_HERE:
        raise BadImage(f"a TIFF of colours of more than 8 bits, which are read with {TIFFFILE_NEEDED}")
    file.seek(0)
    with _TIFFFILE.TiffFile(file) as opened:
        page, frames = opened.pages[0], len(opened.pages) > 1
        if sorted(page.axes) != ["S", "X", "Y"] or page.photometric != RGB:
            raise BadImage(f"a TIFF of axes {page.axes}, which does not say that it is RGB")
        check(page.imagewidth, page.imagelength)
        samples = np.moveaxis(page.asarray(), page.axes.index("S"), -1)
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
    return DeepColours(
        turned(values, turn), None if opacity is None else turned(opacity, turn), frames, bands, unfilled
    )


def _of_eight_bits(alpha: NDArray[Any]) -> NDArray[np.uint8]:
    """Scales the values that an unsigned type can hold to 0..255."""
    return np.rint(alpha * (255 / np.iinfo(alpha.dtype).max)).astype(np.uint8)
