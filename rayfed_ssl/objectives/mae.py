"""Masked autoencoding: reconstructs the pixels of patches that the encoder does not see (He et al. 2022). For FedMAE.

Shape legend: B batch, N patches of an image, K of them shown, M = N - K masked, V pixel values of a patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.models.base import chosen, patches
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, full_precision, needed

EPSILON = 1e-6  # added to a patch's variance


def shown_count(count: int, ratio: float) -> int:
    """K, the number of patches that are shown if the share ``ratio`` of N = ``count`` >= 2 is masked: floor(N (1 -
    ratio)), as in the authors' code, but at least one and not all.
    """
    return min(max(int(count * (1 - ratio) + 1e-9), 1), count - 1)


def random_orders(batch: int, count: int, draws: torch.Generator) -> Tensor:
    """(B, N): a random order of N = ``count`` patches for each image, all equally likely, on the device of
    ``draws``.
    """
    return torch.rand(batch, count, generator=draws, device=draws.device).argsort(dim=1, stable=True)


def standardised(rows: Tensor) -> Tensor:
    """Each patch's values minus their mean, divided by the root of their unbiased variance plus 1e-6: (B, M, V), V >= 2
    (He et al. 2022, section 3, "reconstruction target"; the variance is that of the authors' code).
    """
    variance, mean = torch.var_mean(rows, dim=-1, keepdim=True)  # over V - 1
    return (rows - mean) / (variance + EPSILON).sqrt()


def masked_error(predicted: Tensor, masked: Tensor) -> Tensor:
    """Mean squared error of predictions (B, M, V) of the masked patches' standardised values (B, M, V)."""
    return (full_precision(predicted) - standardised(masked)).square().mean()


class MAEConfig(ObjectiveConfig):
    name: Literal["mae"] = "mae"
    mask_ratio: float = Field(default=0.75, gt=0, lt=1)
    """Share of an image's patches that are masked, drawn anew in every step (Fed-MAE: 0.6)."""


@dataclass(frozen=True)
class MAE(Objective):
    """The encoder sees the patches that are shown, and the decoder reconstructs the others.

    Differs: the decoder predicts the masked patches only, because the loss reads no others. There is no class token
    (:class:`~rayfed_ssl.models.vit.VisionTransformer`). The features of a step are those of the patches shown.
    """

    config: MAEConfig

    block: ClassVar[type[ObjectiveConfig]] = MAEConfig
    heads: ClassVar[frozenset[str]] = frozenset({"patch_decoder"})
    memory: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    shows_patches: ClassVar[bool] = True
    minimum_batch: ClassVar[int] = 1

    @property
    def views(self) -> int:
        return 1

    def step(self, network: Network, batch: Batch) -> Step:
        (view,) = batch.views
        draws = needed(needed(batch.memory, "mae", "a memory").draws, "mae", "a memory with a generator")
        encoder = network.patch_encoder
        pixels = patches(view, encoder.patch)  # (B, N, V)
        images, count = pixels.shape[:2]
        order = random_orders(images, count, draws).to(view.device)
        shown = shown_count(count, self.config.mask_ratio)
        tokens = encoder.tokens(view, order[:, :shown])  # (B, K, dim)
        predicted = network.through("patch_decoder", tokens, order)  # (B, M, V)
        loss = masked_error(predicted, chosen(pixels, order[:, shown:]))
        return Step(loss, (), (tokens.mean(1),))
