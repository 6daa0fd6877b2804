"""A run's encoder with its transform, which prepares images as the run did.

Shapes: B images, C channels, S side, dim features.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.exported import find
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.storage.missing_encoder_error import naming_checkpoint


class ImageEncoder(nn.Module):
    """A run's encoder in eval mode on the CPU: images (B, C, S, S) as ``transform`` returns them -> features (B, dim).

    features = encoder(encoder.transform(images))
    """

    def __init__(self, encoder: Encoder, transform: Transform) -> None:
        super().__init__()
        self.encoder, self.transform, self.dim = encoder, transform, encoder.dim
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, dim). Raises UserError if the shape or the number of channels is another."""
        if images.ndim != 4 or images.shape[1] != self.transform.channels:
            raise UserError(
                f"encoder: found images {tuple(images.shape)}; must be (B, {self.transform.channels}, H, W), as "
                "encoder.transform gives them from a list of images"
            )
        features: Tensor = self.encoder(images)
        return features


def encoder_of(folder: Path, config: RunConfig, client: int | str | None) -> ImageEncoder:
    """The encoder that the run in ``folder`` exported: the global one, or a client's, by number or name. Raises
    UserError.
    """
    with naming_checkpoint(folder):
        file = find(folder, client)
    transform = Transform.of_run(file.description, config.data)
    return ImageEncoder(file.load(), transform)
