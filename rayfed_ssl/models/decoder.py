"""The decoder of an autoencoder: features back to images, for FedAE.

Shapes: B batch, C channels, S image side.
"""

from __future__ import annotations

from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.models.heads import ModelConfig


class Decoder(nn.Module):
    """(B, dim) -> (B, C, S, S): a linear layer to an S/8 map, then three transposed convolutions that double it.

    The output has no activation: it is compared with normalised images, which have both signs.
    """

    def __init__(self, dim: int, config: ModelConfig, image_size: int, channels: int = 3) -> None:
        super().__init__()
        if image_size % 8:
            raise UserError(f"data.image_size: {image_size} given; the decoder needs a multiple of 8")
        a, b, c = (config.scaled(n) for n in (128, 64, 32))
        self.start = nn.Sequential(
            nn.Linear(dim, a * (image_size // 8) ** 2),
            nn.ReLU(inplace=True),
            nn.Unflatten(1, (a, image_size // 8, image_size // 8)),
        )
        self.up = nn.Sequential(
            _double(a, b), nn.ReLU(inplace=True), _double(b, c), nn.ReLU(inplace=True), _double(c, channels)
        )

    def forward(self, features: Tensor) -> Tensor:
        images: Tensor = self.up(self.start(features))
        return images


def _double(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, kernel_size=4, stride=2, padding=1)
