"""What decoding an image gives: its pixels, and what was noticed of it.

Shape legend: S image size, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.data.decoding.bit_depth import EightBitImage, Range


@dataclass(frozen=True)
class Decoded:
    """A decoded image: ``pixels`` (S, S, C) uint8, and what was noticed of it.

    - ``high_bit_depth``: the image had more than 8 bits and was scaled.
    - ``windowed``: it was scaled, at any depth, by a window or a VOI LUT of its own (DICOM).
    - ``frames``: the file has several frames, of which the first was read.
    - ``transparent``: some pixels were transparent and were laid on ``background``.
    - ``cropped``: only the central square was taken, which is less than half of the image.
    - ``enlarged``: it was made larger by ``ENLARGED`` or more, to ``LEAST_ENLARGED`` or more pixels a side.
    - ``clipped``, ``narrow`` and ``spiked``: as in ``EightBitImage``.
    - ``bands``: the file has bands beside those of colours and transparency, which were not read.
    - ``grey``: all pixels are grey, though there are three channels.
    - ``filled``: some pixels were missing.
    - ``unfilled``: some pixels have the value that their file (TIFF) has for missing data, and were read like others.
    """

    pixels: NDArray[np.uint8]
    high_bit_depth: bool
    frames: bool = False
    transparent: bool = False
    cropped: bool = False
    enlarged: bool = False
    clipped: Range | None = None
    narrow: Range | None = None
    spiked: Range | None = None
    bands: bool = False
    windowed: bool = False
    grey: bool = False
    filled: bool = False
    unfilled: bool = False

    def scaled_as(self, eight_bit: EightBitImage) -> Decoded:
        """The image, marked as one that had more than 8 bits, and with what ``eight_bit`` says of its scaling."""
        return replace(
            self, high_bit_depth=True, clipped=eight_bit.clipped, narrow=eight_bit.narrow, spiked=eight_bit.spiked
        )
