"""A vision transformer (Dosovitskiy et al. 2021) for small images, and the decoder of masked autoencoders.

The blocks are torchvision's. Position embeddings are fixed, two-dimensional sines and cosines, as in He et al. 2022
("Masked autoencoders are scalable vision learners") and Beyer et al. 2022 ("Better plain ViT baselines for
ImageNet-1k"). They are computed when needed, so there are no buffers.

Shapes: B batch, C channels, S image side, P patch side, N = (S/P)^2 patches, K shown patches, W width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.models.base import PatchEncoder, chosen, patches
from rayfed_ssl.models.heads import ModelConfig

_torchvision = LazyModule("torchvision.models.vision_transformer")
PATCH = 4  # pixels, which gives 64 patches at 32 px
WAVES = 10_000.0  # the longest wavelength of positions, divided by 2 pi (Vaswani et al. 2017, section 3.5)


def sine_positions(grid: int, width: int, device: torch.device) -> Tensor:
    """(grid^2, width) position embeddings of the patches, row by row: sines and cosines of a patch's column, then of
    its row, each at the width/4 frequencies 10000^(-i / (width/4)) (He et al. 2022, appendix A.1). ``width`` must be a
    multiple of 4.
    """
    frequencies = WAVES ** -(torch.arange(width // 4, device=device) / (width // 4))
    angles = torch.arange(grid, device=device)[:, None] * frequencies  # (grid, width/4)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # (grid, width/2)
    return torch.cat([waves.repeat(grid, 1), waves.repeat_interleave(grid, dim=0)], dim=1)


def _transformer(layers: int, heads: int, width: int) -> nn.Sequential:
    """(B, N, W) -> (B, N, W): pre-norm blocks with an MLP four times as wide, without dropout, then a LayerNorm."""
    blocks = [_torchvision.EncoderBlock(heads, width, 4 * width, 0.0, 0.0) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.LayerNorm(width, eps=1e-6))


def _initialise(module: nn.Module) -> None:
    """Give all linear layers, and convolutions as linear layers of patches, Xavier's uniform weights and zero biases
    (He et al. 2022, appendix A.1).
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.xavier_uniform_(part.weight.view(len(part.weight), -1))
        elif isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
        if isinstance(part, nn.Conv2d | nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


class VisionTransformer(PatchEncoder):
    """(B, C, S, S) -> (B, dim): the mean of the last layer's tokens.

    Differs: there is no class token. The loss of a masked autoencoder does not train a class token's features directly,
    and He et al. find the mean over patches as good (appendix A.1). Beyer et al. use the mean, too.
    """

    def __init__(self, dim: int, layers: int, heads: int, patch: int, channels: int) -> None:
        super().__init__()
        self.dim, self.patch = dim, patch
        self.embedding = nn.Conv2d(channels, dim, patch, stride=patch)
        self.blocks = _transformer(layers, heads, dim)
        _initialise(self)

    def tokens(self, images: Tensor, shown: Tensor | None = None) -> Tensor:
        pixels = patches(images, self.patch)  # (B, N, C P P)
        positions = sine_positions(images.shape[-1] // self.patch, self.dim, images.device)
        if shown is not None:
            pixels, positions = chosen(pixels, shown), positions[shown]
        embedded = F.linear(pixels, self.embedding.weight.flatten(1), self.embedding.bias)
        tokens: Tensor = self.blocks(embedded + positions)
        return tokens


def vit_tiny(config: ModelConfig, image_size: int, channels: int = 3) -> VisionTransformer:
    """A vision transformer with the sizes of DeiT-Ti (Touvron et al. 2021, table 1): 192-d, 12 blocks, 3 heads.
    ``model.width`` scales the 192, in steps of 12. Patches have 4 px, or ``model.patch``.
    """
    return VisionTransformer(12 * config.scaled(16), 12, 3, vit_patch(config), channels)


def vit_patch(config: ModelConfig) -> int:
    """The side of ``vit_tiny``'s patches, in pixels."""
    return config.patch or PATCH


class PatchDecoder(nn.Module):
    """The decoder of a masked autoencoder (He et al. 2022, section 3). Its inputs are the tokens of the shown patches
    (B, K, dim), and an order of all patches (B, N) that begins with the shown ones. Its output is the predicted pixels
    of the other patches, (B, N - K, C P P).

    A learned mask token stands for each patch that was not shown. ``model.patch_decoder`` has the sizes.
    Differs: tokens are not sorted into the order of patches. This has no effect, because each has its position added.
    """

    def __init__(self, dim: int, config: ModelConfig, patch: int, channels: int) -> None:
        super().__init__()
        sizes = config.patch_decoder
        self.embedding = nn.Linear(dim, sizes.dim)
        self.mask = nn.Parameter(torch.empty(sizes.dim))
        self.blocks = _transformer(sizes.layers, sizes.heads, sizes.dim)
        self.pixels = nn.Linear(sizes.dim, channels * patch**2)
        _initialise(self)
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, tokens: Tensor, order: Tensor) -> Tensor:
        known = self.embedding(tokens)  # (B, K, W)
        shown, width = known.shape[1:]
        masks = self.mask.to(known.dtype).expand(len(order), order.shape[1] - shown, width)
        positions = sine_positions(round(order.shape[1] ** 0.5), width, tokens.device)
        decoded = self.blocks(torch.cat([known, masks], dim=1) + positions[order])
        pixels: Tensor = self.pixels(decoded[:, shown:])
        return pixels
