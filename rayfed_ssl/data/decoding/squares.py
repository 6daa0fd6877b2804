"""Makes a square of an image of 8 bits: its central one, or what ``data.fit`` says, by Pillow's antialiased bilinear
filter; lays what is transparent on ``data.background``.

Shape legend: S side of the square, C channels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Fit = Literal["crop", "pad", "stretch"]
"""How an image becomes a square: its central one; all of it, within a black square; all of it, of other proportions."""

Background = Literal["black", "white", "grey"]
"""What transparent pixels are laid on; Pillow's grey is 128."""

ENLARGED, LEAST_ENLARGED = 1.5, 32  # an image made larger so many times, to so many pixels a side, before it is said


def is_cropped(width: int, height: int, fit: Fit) -> bool:
    """Whether the square has less than half of an image of this size."""
    return fit == "crop" and max(width, height) > 2 * min(width, height)


def is_enlarged(width: int, height: int, size: int, fit: Fit) -> bool:
    """Whether an image becomes larger, by ``ENLARGED`` or more: its long side where it is padded, else its short side,
    which ``stretch`` enlarges most.
    """
    side = max(width, height) if fit == "pad" else min(width, height)
    return size >= LEAST_ENLARGED and size >= ENLARGED * side


def square(image: Image.Image, size: int, fit: Fit) -> NDArray[np.uint8]:
    """(S, S, C) uint8."""
    width, height = image.size
    if (width, height) == (size, size):
        pass
    elif fit == "crop":
        short = min(width, height)
        left, top = (width - short) / 2, (height - short) / 2
        box = (left, top, left + short, top + short)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    elif fit == "stretch":
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    else:
        image = _padded(image, size)
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).reshape(size, size, -1))


def band_square(pixels: NDArray[np.uint8], size: int, fit: Fit) -> NDArray[np.uint8]:
    """Bands (H, W, C) to (S, S, C): each as an image of one channel becomes a square."""
    bands = (np.ascontiguousarray(pixels[..., band]) for band in range(pixels.shape[2]))
    return np.ascontiguousarray(np.concatenate([square(Image.fromarray(band), size, fit) for band in bands], axis=2))


def _padded(image: Image.Image, size: int) -> Image.Image:
    """The whole image, its long side ``size``, in the middle of a black square; as Pillow's ``ImageOps.pad``."""
    width, height = image.size
    across, down = (size, round(height / width * size)) if width > height else (round(width / height * size), size)
    resized = image.resize((max(across, 1), max(down, 1)), Image.Resampling.BILINEAR)
    square = Image.new(image.mode, (size, size))
    square.paste(resized, (round((size - resized.width) / 2), round((size - resized.height) / 2)))
    return square


def laid_on(image: Image.Image, background: Background) -> Image.Image:
    """The image itself where every pixel is opaque, else laid on this colour."""
    if image.mode not in ("LA", "La", "PA", "RGBA", "RGBa") and "transparency" not in image.info:
        return image
    coloured = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")  # Pillow knows no other way
    if coloured.getchannel("A").getextrema() == (255, 255):
        return image
    return Image.alpha_composite(Image.new("RGBA", image.size, background), coloured)


def is_grey(pixels: NDArray[np.uint8]) -> bool:
    """Whether three channels (S, S, 3) are one and the same; of most colours a line shows that they are not."""
    if pixels.shape[-1] != 3:
        return False
    return all(bool((part == part[..., :1]).all()) for part in (pixels[len(pixels) // 2], pixels))
