"""Alignment and uniformity on the sphere (Wang and Isola 2020). Used by SSD (Fang et al. 2025) as its local loss.

Shape legend: B batch, D embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, encoded, full_precision, no_autocast


def alignment(z_a: Tensor, z_b: Tensor) -> Tensor:
    """``mean ||z_a - z_b||^2`` of normalised rows: z_a, z_b (B, D) -> (), between 0 and 4 (section 4.1)."""
    a, b = F.normalize(full_precision(z_a), dim=1), F.normalize(full_precision(z_b), dim=1)
    return (a - b).square().sum(dim=1).mean()


def uniformity(z: Tensor, t: float) -> Tensor:
    """``log mean_{i<j} exp(-t ||z_i - z_j||^2)`` of normalised rows: z (B, D) -> () (section 4.1).

    Each pair of different rows counts once. B is at least 2.
    """
    rows = F.normalize(full_precision(z), dim=1)
    first, second = torch.triu_indices(len(rows), len(rows), offset=1, device=rows.device)
    with no_autocast(rows):
        cosines = (rows @ rows.T)[first, second]
    distances = 2 - 2 * cosines
    return torch.logsumexp(-t * distances, dim=0) - math.log(len(distances))


def align_uniform(z_a: Tensor, z_b: Tensor, weight: float, t: float) -> Tensor:
    """Alignment plus ``weight`` times the mean uniformity of both views: z_a, z_b (B, D) -> ()."""
    return alignment(z_a, z_b) + weight * (uniformity(z_a, t) + uniformity(z_b, t)) / 2


class AlignUniformConfig(ObjectiveConfig):
    name: Literal["align_uniform"] = "align_uniform"
    uniformity: float = Field(default=1.0, ge=0)
    """Weight of the uniformity."""
    t: float = Field(default=2.0, gt=0)
    """Of the Gaussian potential exp(-t d^2)."""


@dataclass(frozen=True)
class AlignUniform(Objective):
    """Views go through the network one by one, each with its own BatchNorm statistics."""

    config: AlignUniformConfig

    block: ClassVar[type[ObjectiveConfig]] = AlignUniformConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector"})
    by_features: ClassVar[bool] = True

    def step(self, network: Network, batch: Batch) -> Step:
        features, (z_a, z_b) = encoded(network, batch.views)
        return Step(align_uniform(z_a, z_b, self.config.uniformity, self.config.t), (z_a, z_b), features)
