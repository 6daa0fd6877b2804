"""The base of every image encoder: square images to one feature vector each."""

from __future__ import annotations

from torch import Tensor, nn


class Encoder(nn.Module):
    """f: images (B, C, S, S) -> features (B, dim); C is 3, or 1 for grey images."""

    dim: int

    def __call__(self, images: Tensor) -> Tensor:
        features: Tensor = super().__call__(images)
        return features
