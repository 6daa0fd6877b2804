"""The decoder of an autoencoder, which maps features back to images, for FedAE.

Shapes: B batch, C channels, S image side.
"""

from __future__ import annotations

from torch import Tensor, nn

from rayfed_ssl.models.heads import ModelConfig


class Decoder(nn.Module):
    """(B, dim) -> (B, C, S, S). A linear layer makes a map of side ceil(S/8), and three transposed convolutions double
    the side. If the result is wider than S, its centre is cut out; of an odd excess, the larger part is cut off at the
    end.

    The output has no activation, because it is compared with normalised images, which have values of both signs.
    """

    def __init__(self, dim: int, config: ModelConfig, image_size: int, channels: int = 3) -> None:
        super().__init__()
        side = -(-image_size // 8)
        self.inside = slice((8 * side - image_size) // 2, (8 * side - image_size) // 2 + image_size)
        a, b, c = (config.scaled(n) for n in (128, 64, 32))
        self.start = nn.Sequential(
            nn.Linear(dim, a * side**2),
            nn.ReLU(inplace=True),
            nn.Unflatten(1, (a, side, side)),
        )
        self.up = nn.Sequential(
            _double(a, b), nn.ReLU(inplace=True), _double(b, c), nn.ReLU(inplace=True), _double(c, channels)
        )

    def forward(self, features: Tensor) -> Tensor:
        images: Tensor = self.up(self.start(features))
        return images[:, :, self.inside, self.inside]


def _double(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, kernel_size=4, stride=2, padding=1)
