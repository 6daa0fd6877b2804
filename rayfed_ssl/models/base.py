"""The base classes of image encoders, and of encoders that see images in patches.

Shapes: B batch, C channels, S image side, P patch side, N = (S/P)^2 patches of an image, K shown patches.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """f: images (B, C, S, S) -> features (B, dim); C is ``data.channels``."""

    dim: int

    def __call__(self, images: Tensor) -> Tensor:
        features: Tensor = super().__call__(images)
        return features


class PatchEncoder(Encoder):
    """An encoder with a token for each square patch of an image, to which a part of the patches can be shown."""

    patch: int  # P, pixels

    def tokens(self, images: Tensor, shown: Tensor | None = None) -> Tensor:
        """(B, C, S, S) -> (B, N, dim), a token per patch, row by row.

        With ``shown`` (B, K), indices of patches, the tokens are (B, K, dim) in the order of these indices, and do not
        depend on the pixels of other patches.
        """
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.tokens(images).mean(1)
        return features


def patches(images: Tensor, side: int) -> Tensor:
    """(B, C, S, S) -> (B, N, C P P): the patches of each image, row by row, with their pixels channel by channel. P is
    ``side``.

    Raises RuntimeError if ``side`` does not divide S.
    """
    batch, channels, size = images.shape[:3]
    grid = size // side
    cut = images.reshape(batch, channels, grid, side, grid, side).permute(0, 2, 4, 1, 3, 5)  # (B, S/P, S/P, C, P, P)
    return cut.flatten(3).flatten(1, 2)


def chosen(rows: Tensor, indices: Tensor) -> Tensor:
    """The rows at ``indices`` (B, K) of each image's ``rows`` (B, N, V): (B, K, V)."""
    return rows.gather(1, indices[:, :, None].expand(-1, -1, rows.shape[2]))


def device_of(network: nn.Module) -> torch.device:
    """The device of the network's first parameter; the CPU if it has no parameters."""
    return next((parameter.device for parameter in network.parameters()), torch.device("cpu"))


@torch.no_grad()
def probe(network: nn.Module, image_size: int, channels: int) -> object:
    """The network's output for two images of zeros, in eval mode. Buffers and torch's CPU generator are left as they
    were. Raises what the network raises.
    """
    modes = {module: module.training for module in network.modules()}
    images = torch.zeros(2, channels, image_size, image_size, device=device_of(network))
    try:
        with torch.random.fork_rng(devices=[]):
            features: object = network.eval()(images)
    finally:
        for module, training in modes.items():
            module.training = training
    return features
