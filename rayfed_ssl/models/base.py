"""The base of every image encoder: square images to one feature vector each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """f: images (B, C, S, S) -> features (B, dim); C is 3, or 1 for grey images."""

    dim: int

    def __call__(self, images: Tensor) -> Tensor:
        features: Tensor = super().__call__(images)
        return features


def device_of(network: nn.Module) -> torch.device:
    """That of its first parameter; the CPU where it has none."""
    return next((parameter.device for parameter in network.parameters()), torch.device("cpu"))


@torch.no_grad()
def probe(network: nn.Module, image_size: int, channels: int) -> object:
    """What the network makes of two black images, in eval mode; no buffer moves, no generator of torch's CPU either.
    Raises what the network raises.
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
