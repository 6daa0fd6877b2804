"""The form that decoded images have: their size, channels and bands, and how they are scaled and made squares."""

from __future__ import annotations

from dataclasses import dataclass

from rayfed_ssl.data.decoding.bands import Bands, Nodata
from rayfed_ssl.data.decoding.bit_depth import Range, Ranges, is_one
from rayfed_ssl.data.decoding.squares import Background, Fit
from rayfed_ssl.data.images import BadImage, are_bands

MOST_PIXELS = 178_956_970  # of an image; Pillow refuses one with more than twice as many


@dataclass(frozen=True)
class ImageForm:
    """The form of every decoded image: (size, size, channels). Images of more than ``max_pixels`` pixels are refused.

    ``range`` is the (lowest, highest) value by which images of more than 8 bits are scaled, or a pair for each band;
    None: each image's own. ``fit`` says how images become squares, ``background`` what transparent pixels are laid on.
    ``bands`` are the bands of each image that are read, as many as ``channels``; None: all of them. ``nodata`` says
    which of their values are missing.
    """

    size: int
    max_pixels: int = 50_000_000
    channels: int = 3
    range: Range | Ranges | None = None
    fit: Fit = "crop"
    background: Background = "black"
    bands: Bands | None = None
    nodata: Nodata | None = None

    @property
    def are_bands(self) -> bool:
        """Whether the channels are bands, not grey or colours."""
        return are_bands(self.channels)

    @property
    def as_rasters(self) -> bool:
        """Whether images are read band by band."""
        return self.bands is not None or self.are_bands

    @property
    def one_range(self) -> Range | None:
        """The ``range`` for images that have no bands. Raises BadImage if it is a range for each band."""
        if self.range is None or is_one(self.range):
            return self.range
        raise BadImage(f"{self.channels} channels, which have one range; found one of each of {len(self.range)} bands")

    def refuse_large(self, width: int, height: int) -> None:
        """Raise BadImage for an image of more than ``max_pixels``."""
        if width * height > self.max_pixels:
            raise BadImage.unless_set(
                "max_pixels",
                f"{width}x{height} pixels, more than max_pixels={self.max_pixels}, which may be up to {MOST_PIXELS}",
            )

    @property
    def mode(self) -> str:
        """Pillow's mode of an image with these channels."""
        return "L" if self.channels == 1 else "RGB"
