"""Turns images as the tag Orientation says, which EXIF and TIFF share (EXIF 2.3 and TIFF 6.0, tag 274).

Shape legend: H height, W width.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from rayfed_ssl.data.decoding.squares import Box

ORIENTATION = 274
_TRANSPOSED = {  # orientation -> how pixels are turned to be upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE, _MIRRORED, _UPSIDE_DOWN = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)  # the first is done first
Value = TypeVar("Value", bound=np.generic)


def upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF orientation says. Pillow itself turns a TIFF when it reads the pixels."""
    image.load()
    turn = _TRANSPOSED.get(orientation(image))
    return image if turn is None else image.transpose(turn)


def orientation(image: Image.Image) -> int:
    """The orientation in an image's EXIF; 1, upright, if it has none. A PNG may have its EXIF behind the pixels, so
    these have to be read before.

    Only this tag is read: other tags that are damaged or of a wrong type do no harm.
    """
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged tags raise anything: SyntaxError, struct.error, ...; the pixels are whole
        return 1


def turned_box(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """Where ``box`` of an image of ``size`` (width, height) lies once the image is turned as ``turned`` turns it."""
    left, top, right, bottom = box
    width, height = size
    if orientation in _ON_ITS_SIDE:
        left, top, right, bottom, width, height = top, left, bottom, right, height, width
    if orientation in _MIRRORED:
        left, right = width - right, width - left
    if orientation in _UPSIDE_DOWN:
        top, bottom = height - bottom, height - top
    return left, top, right, bottom


def turned(pixels: NDArray[Value], orientation: int) -> NDArray[Value]:
    """Pixels (H, W, ..) turned as an orientation says, as a view; orientations other than 2 to 8 turn nothing."""
    if orientation in _ON_ITS_SIDE:
        pixels = pixels.swapaxes(0, 1)
    if orientation in _MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in _UPSIDE_DOWN:
        pixels = pixels[::-1]
    return pixels
