"""Changes of uint8 images that make clients' images look different while their labels mean the same.

Noise, blur, brightness and contrast follow Hendrycks and Dietterich 2019 (CIFAR-10-C) at five severities; blur is
scaled with the image size, which is 32 there. Rotation is about the centre, by 15 degrees per severity, with black
corners. The only randomness, the noise, comes from a generator that the caller gives. Images may have any number of
channels: brightness raises a pixel's largest channel, and the others by the same factor.

Shape legend: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Pixels = NDArray[np.uint8]  # (H, W, C)

NOISE_STD = (0.04, 0.06, 0.08, 0.09, 0.10)  # of values in 0..1
BLUR_SIGMA = (0.4, 0.6, 0.7, 0.8, 1.0)  # pixels of an image of 32
BRIGHTNESS_SHIFT = (0.05, 0.1, 0.15, 0.2, 0.3)  # of the largest channel, in 0..1
CONTRAST_FACTOR = (0.75, 0.5, 0.4, 0.3, 0.15)
DEGREES = 15.0


def unchanged(pixels: Pixels, severity: int, draw: np.random.Generator) -> Pixels:
    return pixels


def noise(pixels: Pixels, severity: int, draw: np.random.Generator) -> Pixels:
    """Gaussian noise, drawn independently for every value."""
    return _bytes(pixels + 255 * NOISE_STD[severity - 1] * draw.standard_normal(pixels.shape))


def blur(pixels: Pixels, severity: int, draw: np.random.Generator) -> Pixels:
    """Pillow's Gaussian blur (three box blurs of the same variance)."""
    radius = BLUR_SIGMA[severity - 1] * min(pixels.shape[:2]) / 32
    return _filtered(pixels, lambda image: image.filter(ImageFilter.GaussianBlur(radius)))


def brightness(pixels: Pixels, severity: int, draw: np.random.Generator) -> Pixels:
    """Raises the V of HSV and keeps hue and saturation: all channels grow by one factor, until the largest is at its
    maximum.
    """
    value = pixels.max(axis=2, keepdims=True).astype(np.float64)
    raised = np.minimum(value + 255 * BRIGHTNESS_SHIFT[severity - 1], 255)
    scaled = pixels * (raised / np.maximum(value, 1))
    return _bytes(np.where(value > 0, scaled, raised))


def contrast(pixels: Pixels, severity: int, draw: np.random.Generator) -> Pixels:
    """Every channel drawn towards its mean over the image."""
    mean = pixels.mean(axis=(0, 1), keepdims=True)
    return _bytes((pixels - mean) * CONTRAST_FACTOR[severity - 1] + mean)


def rotation(pixels: Pixels, severity: int, draw: np.random.Generator) -> Pixels:
    """Rotates counterclockwise, with bilinear interpolation."""
    return _filtered(pixels, lambda image: image.rotate(DEGREES * severity, Image.Resampling.BILINEAR))


CORRUPTIONS: dict[str, Callable[[Pixels, int, np.random.Generator], Pixels]] = {
    "none": unchanged,
    "noise": noise,
    "blur": blur,
    "brightness": brightness,
    "contrast": contrast,
    "rotation": rotation,
}


def _bytes(values: NDArray[np.float64]) -> Pixels:
    return np.asarray(np.rint(values.clip(0, 255)), np.uint8)


def _filtered(pixels: Pixels, change: Callable[[Image.Image], Image.Image]) -> Pixels:
    if pixels.shape[2] == 3:
        return np.asarray(change(Image.fromarray(pixels)))
    channels = (np.ascontiguousarray(pixels[..., channel]) for channel in range(pixels.shape[2]))
    return np.stack([np.asarray(change(Image.fromarray(channel))) for channel in channels], axis=2)
