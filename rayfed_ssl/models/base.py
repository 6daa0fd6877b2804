"""The base of every image encoder: a module that maps a batch of square RGB images to one feature vector per image."""

from __future__ import annotations

from torch import Tensor, nn


class Encoder(nn.Module):
    """f: images (B, 3, S, S) -> features (B, dim)."""

    dim: int

    def __call__(self, images: Tensor) -> Tensor:
        features: Tensor = super().__call__(images)
        return features
