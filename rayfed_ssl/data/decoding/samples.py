"""How the samples of a file stand in the pixels that Pillow makes of them, where Pillow changes them: JPEG 2000, PGM,
PPM, and the grey that a PNG calls transparent.

Shape legend: H height, W width, C channels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_CODESTREAM = b"\xff\x4f\xff\x51"  # JPEG 2000's markers SOC and SIZ
_SIZ_DEPTH = 42  # bytes from SOC to Ssiz of the first component: ITU-T T.800, A.5.1
_FEW_BITS = {"L;2": 2, "L;4": 4}  # Pillow's names of a PNG's grey samples that it spreads over 0..255
_COMMENT = re.compile(rb"#[^\r\n]*")


@dataclass(frozen=True)
class Samples:
    """A file's samples: how many ``bits`` they have, how much of Pillow's pixels is one ``step`` of them, and the
    ``lowest`` sample, which is Pillow's 0.
    """

    bits: int
    step: float
    lowest: int = 0

    def of(self, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        """The samples of Pillow's ``pixels``, in any shape."""
        return np.asarray(np.rint(pixels / self.step) + self.lowest)


def samples_of(image: Image.Image) -> Samples | None:
    """The samples of an unread JPEG 2000, which Pillow moves to the high end of 8 or 16 bits, or of a PGM of more than
    8 bits, which it spreads over 16; None for other images.
    """
    if image.mode == "I" and (most := ppm_highest(image)):
        return Samples(16, (2**16 - 1) / most)
    file = getattr(image, "fp", None)
    if image.format != "JPEG2000" or file is None:
        return None
    content = content_of(file)
    depth = content[content.find(_CODESTREAM) + _SIZ_DEPTH]
    bits, signed = (depth & 0x7F) + 1, bool(depth & 0x80)
    return Samples(bits, 2.0 ** (16 - bits), -(2 ** (bits - 1)) if signed else 0)


def ppm_highest(image: Image.Image) -> int:
    """The highest value that the samples of an unread PGM or PPM may have, if it has more than 8 bits; else 0."""
    if image.format != "PPM":
        return 0
    for tile in getattr(image, "tile", ()):
        arguments: Any = tile.args
        highest = 2**16 - 1 if arguments == "I;16B" else arguments[-1]
        if isinstance(highest, int) and highest > 255:
            return highest
    return 0


def ppm_colours(image: Image.Image, file: IO[bytes]) -> NDArray[np.uint16]:
    """The samples (H, W, 3) of an unread PPM of more than 8 bits, of which Pillow keeps 8. Raises ValueError if there
    are too few.
    """
    content, (width, height) = content_of(file), image.size
    tiles: Any = getattr(image, "tile", ())
    start, count = tiles[0].offset, 3 * width * height
    if content.startswith(b"P3"):
        values = np.array(_COMMENT.sub(b"", content[start:]).split()[:count], np.int64).astype(np.uint16)
    else:
        values = np.frombuffer(content, ">u2", count, start).astype(np.uint16)
    return values.reshape(height, width, 3)


def transparent_grey(image: Image.Image) -> int | None:
    """The value of an unread grey PNG's pixels that is transparent; None if there is none. Of 2 and 4 bits Pillow
    spreads the pixels over 0..255, and not this value.
    """
    clear: Any = image.info.get("transparency")
    if image.format != "PNG" or not isinstance(clear, int):
        return None
    raw = [tile.args for tile in getattr(image, "tile", ())]
    bits = next((_FEW_BITS[name] for name in raw if isinstance(name, str) and name in _FEW_BITS), 8)
    return int(clear * 255 // (2**bits - 1))


def content_of(file: IO[bytes]) -> bytes:
    """All of a file, which is left where it was."""
    place = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(place)
    return content
