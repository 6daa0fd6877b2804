"""SimCLR: pulls two views of an image together and pushes other images away.

Two losses go by this name. NT-Xent contrasts each of the 2B rows with the 2B - 1 others (Chen et al. 2020). The
one-directional InfoNCE contrasts view 1 with the B views 2 (FLESD eq. 3) and, in FedCA, with a dictionary (eq. 4-8).

Shape legend: B batch, D embedding, K rows of a bank of further negatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import (
    Batch,
    Objective,
    ObjectiveConfig,
    Step,
    encoded_together,
    full_precision,
    no_autocast,
)


def nt_xent(z_a: Tensor, z_b: Tensor, temperature: float) -> Tensor:
    """NT-Xent of two views z_a, z_b (B, D), in cosine similarity; mean over the 2B rows.

    Each row's positive is the other view of its image, its denominator runs over the 2B - 1 other rows (FedCA eq. 3).
    Logits are float32 even under autocast.
    """
    batch = len(z_a)
    z = F.normalize(torch.cat([full_precision(z_a), full_precision(z_b)]), dim=1)  # (2B, D)
    with no_autocast(z):
        logits = z @ z.T / temperature  # (2B, 2B)
    logits = logits.masked_fill(torch.eye(2 * batch, dtype=torch.bool, device=z.device), float("-inf"))
    positives = torch.arange(2 * batch, device=z.device).roll(batch)
    return F.cross_entropy(logits, positives)


def info_nce(z_a: Tensor, z_b: Tensor, temperature: float, bank: Tensor | None = None) -> Tensor:
    """One-directional InfoNCE: anchors z_a (B, D), keys z_b (B, D), extra negatives ``bank`` (K, D); mean over B.

    logits = [z_a z_b^T, z_a bank^T] / temperature with cosine similarities, the positive on the diagonal (FedCA eq.
    4-8). No negatives within z_a, and not symmetrised. The bank is constant. Logits are float32 even under autocast.
    """
    anchors = F.normalize(full_precision(z_a), dim=1)
    keys = F.normalize(full_precision(z_b), dim=1)
    if bank is not None:
        keys = torch.cat([keys, F.normalize(bank.detach().to(keys.dtype), dim=1)])  # (B + K, D)
    with no_autocast(anchors):
        logits = anchors @ keys.T / temperature  # (B, B + K)
    return F.cross_entropy(logits, torch.arange(len(anchors), device=anchors.device))


class SimCLRConfig(ObjectiveConfig):
    name: Literal["simclr"] = "simclr"
    temperature: float = Field(default=0.1, gt=0)
    """Temperature of the softmax."""
    directional: bool = False
    """Whether the loss is InfoNCE from view 1 to view 2 in place of NT-Xent."""


@dataclass(frozen=True)
class SimCLR(Objective):
    """Both views go through the network in one forward pass, so BatchNorm sees the statistics of both.

    Differs: FLESD's code forwards the views one after the other; SimCLR's forwards them together, as here.
    """

    config: SimCLRConfig

    block: ClassVar[type[ObjectiveConfig]] = SimCLRConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector"})
    by_features: ClassVar[bool] = True

    def step(self, network: Network, batch: Batch) -> Step:
        features, (z_a, z_b) = encoded_together(network, batch.views)
        if self.config.directional:
            return Step(info_nce(z_a, z_b, self.config.temperature), (z_a, z_b), features)
        return Step(nt_xent(z_a, z_b, self.config.temperature), (z_a, z_b), features)
