"""A run's encoder, and what brings images to the form in which the run gave it images.

Shapes: B images, C channels, S side, D features.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.augment import Recipe, clean
from rayfed_ssl.data.decode import BadImage, Form, decode
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.exported import load_exported

AnImage = Image.Image | NDArray[np.generic] | str | os.PathLike[str]
_AS_THEY_ARE = ("L", "RGB", "F", "I")  # modes of which the array is the image; the others are converted first


@dataclass(frozen=True)
class Transform:
    """Images to an encoder's input, as the run itself read and normalised them, without augmentation.

    The central square of an image is resized, with an antialiased bilinear filter, to the run's side. Pixels are
    divided by 255 and normalised by the run's mean and standard deviation. Grey images become RGB where the run has 3
    channels.
    It can be pickled, for the workers of a ``DataLoader``.
    """

    form: Form
    recipe: Recipe

    def __call__(self, images: AnImage | Sequence[AnImage]) -> Tensor:
        """One image -> (C, S, S) float32; a list of images, or an array (B, H, W, 1 or 3) -> (B, C, S, S).

        An image is a PIL image, an array (H, W), (H, W, 1) or (H, W, 3) of uint8, an array (H, W) of uint16 or float32,
        whose range is scaled as ``data.range`` says, or the path of a file.

        Raises:
            UserError: what is no image, or cannot be decoded.
        """
        if isinstance(images, Image.Image | str | os.PathLike) or (isinstance(images, np.ndarray) and images.ndim < 4):
            return self._batch([images])[0]
        return self._batch(images)

    def _batch(self, images: Sequence[AnImage] | NDArray[np.generic]) -> Tensor:
        size, channels = self.form.size, self.form.channels
        pixels = np.empty((len(images), size, size, channels), np.uint8)
        for number, image in enumerate(images):
            try:
                pixels[number] = decode(_payload(image, channels), self.form).pixels
            except BadImage as error:
                raise UserError(
                    f"images: found image {number}, which cannot be read ({error}); allowed: PIL images, paths, and "
                    "uint8 arrays (H, W), (H, W, 1), (H, W, 3)"
                ) from None
        return clean(torch.from_numpy(pixels).permute(0, 3, 1, 2), self.recipe).contiguous()


def _payload(image: object, channels: int) -> Path | NDArray[np.generic]:
    """An image in a form that ``decode`` takes. Raises BadImage."""
    if isinstance(image, str | os.PathLike):
        return Path(image)
    if isinstance(image, Image.Image):
        whole = image.mode in _AS_THEY_ARE or image.mode.startswith("I;16")
        return np.asarray(image if whole else image.convert("L" if channels == 1 else "RGB"))
    if isinstance(image, np.ndarray):
        return image
    raise BadImage(f"found {type(image).__name__}")


class ImageEncoder(nn.Module):
    """A run's encoder in eval mode on the CPU: images (B, C, S, S) as ``transform`` gives them -> features (B, dim).

    features = encoder(encoder.transform(images))
    """

    def __init__(self, encoder: Encoder, transform: Transform) -> None:
        super().__init__()
        self.encoder, self.transform, self.dim = encoder, transform, encoder.dim
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder(images)
        return features


def encoder_of(folder: Path, config: RunConfig, client: int | None) -> ImageEncoder:
    """The encoder that the run in ``folder`` exported: the global one, or a client's. Raises UserError."""
    name = "global" if client is None else f"client-{client:05d}"
    data = config.data
    form = Form(data.image_size, data.max_pixels, data.channels, data.range)
    return ImageEncoder(load_exported(folder, name), Transform(form, config.augment.recipe()))
