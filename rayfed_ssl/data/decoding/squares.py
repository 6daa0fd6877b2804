"""Makes squares of images of 8 bits as ``data.fit`` says, with Pillow's antialiased bilinear filter, and lays
transparent pixels on ``data.background``.

Shape legend: S side of the square, C channels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Fit = Literal["crop", "pad", "stretch"]
"""How an image becomes a square: its central square is taken; or all of it is, within a black square, or stretched."""

Background = Literal["black", "white", "grey"]
"""What transparent pixels are laid on; grey is 128, as in Pillow."""

Box = tuple[float, float, float, float]
"""A part of an image: left, top, right, bottom, in pixels that need not be whole."""

ENLARGED, LEAST_ENLARGED = 1.5, 32  # a note counts images enlarged so many times or more, to so many pixels a side


def is_cropped(width: int, height: int, fit: Fit) -> bool:
    """Whether the square has less than half of an image of this size."""
    return fit == "crop" and max(width, height) > 2 * min(width, height)


def is_enlarged(width: int, height: int, size: int, fit: Fit) -> bool:
    """Whether an image becomes larger by ``ENLARGED`` or more, to at least ``LEAST_ENLARGED`` pixels. If it is padded,
    its long side counts, else its short side, which ``stretch`` enlarges most.
    """
    side = max(width, height) if fit == "pad" else min(width, height)
    return size >= LEAST_ENLARGED and size >= ENLARGED * side


def square(image: Image.Image, size: int, fit: Fit, box: Box | None = None) -> NDArray[np.uint8]:
    """The image, or the part of it in ``box``, as a square (S, S, C) uint8, with S = ``size``."""
    left, top, right, bottom = box = box or (0, 0, *image.size)
    width, height = right - left, bottom - top
    if image.size == (size, size) == (width, height):
        pass
    elif fit == "crop":
        short = min(width, height)
        left, top = left + (width - short) / 2, top + (height - short) / 2
        box = (left, top, left + short, top + short)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    elif fit == "stretch":
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    else:
        image = _padded(image, size, box)
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).reshape(size, size, -1))


def band_square(pixels: NDArray[np.uint8], size: int, fit: Fit) -> NDArray[np.uint8]:
    """Bands (H, W, C) as a square (S, S, C), with S = ``size``: each becomes one like an image of one channel."""
    bands = (np.ascontiguousarray(pixels[..., band]) for band in range(pixels.shape[2]))
    return np.ascontiguousarray(np.concatenate([square(Image.fromarray(band), size, fit) for band in bands], axis=2))


def _padded(image: Image.Image, size: int, box: Box) -> Image.Image:
    """All of ``box``, its long side ``size``, in the middle of a black square, as by Pillow's ``ImageOps.pad``."""
    width, height = box[2] - box[0], box[3] - box[1]
    across, down = (size, round(height / width * size)) if width > height else (round(width / height * size), size)
    resized = image.resize((max(across, 1), max(down, 1)), Image.Resampling.BILINEAR, box=box)
    square = Image.new(image.mode, (size, size))
    square.paste(resized, (round((size - resized.width) / 2), round((size - resized.height) / 2)))
    return square


def laid_on(image: Image.Image, background: Background) -> Image.Image:
    """The image laid on ``background``; the image itself if every pixel is opaque."""
    if image.mode not in ("LA", "La", "PA", "RGBA", "RGBa") and "transparency" not in image.info:
        return image
    coloured = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")  # Pillow converts La to LA alone
    if coloured.getchannel("A").getextrema() == (255, 255):
        return image
    return Image.alpha_composite(Image.new("RGBA", image.size, background), coloured)


def is_grey(pixels: NDArray[np.uint8]) -> bool:
    """Whether the three channels of ``pixels`` (S, S, 3) are the same; False if there are not three.

    The middle row is compared first, as it shows that most images with colours are not grey.
    """
    if pixels.shape[-1] != 3:
        return False
    return all(bool((part == part[..., :1]).all()) for part in (pixels[len(pixels) // 2], pixels))
