"""Barlow Twins: draws the cross-correlation of two views' projections to the identity (Zbontar et al. 2021).

Shape legend: B batch, D embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, encoded, full_precision, no_autocast

EPS = 1e-5  # added to variances, as in BatchNorm


def standardised(z: Tensor, eps: float = EPS) -> Tensor:
    """Columns of z (B, D) with mean 0 and variance 1 over the batch, by the biased variance plus ``eps``."""
    z = full_precision(z)
    variance = z.var(dim=0, correction=0)
    return (z - z.mean(dim=0)) / (variance + eps).sqrt()


def cross_correlation(z_a: Tensor, z_b: Tensor, eps: float = EPS) -> Tensor:
    """``C_ij = 1/B sum_b z_a,bi z_b,bj`` of standardised columns: z_a, z_b (B, D) -> (D, D) (eq. 2)."""
    a, b = standardised(z_a, eps), standardised(z_b, eps)
    with no_autocast(a):
        return a.T @ b / len(a)


def barlow_twins(z_a: Tensor, z_b: Tensor, redundancy: float, scale: float = 1.0, eps: float = EPS) -> Tensor:
    """``scale (sum_i (1 - C_ii)^2 + redundancy sum_{i != j} C_ij^2)``: z_a, z_b (B, D) -> () (eq. 1)."""
    c = cross_correlation(z_a, z_b, eps)
    diagonal = c.diagonal()
    off_diagonal = c.square().sum() - diagonal.square().sum()
    return scale * ((diagonal - 1).square().sum() + redundancy * off_diagonal)


class BarlowConfig(ObjectiveConfig):
    name: Literal["barlow"] = "barlow"
    redundancy: float = Field(default=0.005, ge=0)
    """lambda, weight of the off-diagonal entries."""
    scale: float = Field(default=1.0, gt=0)
    """Multiplies the whole loss."""


@dataclass(frozen=True)
class Barlow(Objective):
    """Views go through the network one by one, each with its own BatchNorm statistics, as in the authors' code.

    The estimate of C is noisy if the batch is much smaller than D.
    """

    config: BarlowConfig

    block: ClassVar[type[ObjectiveConfig]] = BarlowConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector"})
    by_features: ClassVar[bool] = True

    def step(self, network: Network, batch: Batch) -> Step:
        features, (z_a, z_b) = encoded(network, batch.views)
        return Step(barlow_twins(z_a, z_b, self.config.redundancy, self.config.scale), (z_a, z_b), features)
