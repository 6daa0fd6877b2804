"""VICReg: keeps two views close, the variance of each dimension up and covariances down (Bardes et al. 2022).

Shape legend: B batch, D embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, encoded, full_precision, no_autocast

EPS = 1e-4  # added to variances under the root


def invariance(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Mean squared difference over B and D: z_a, z_b (B, D) -> ().

    Differs: eq. 5 of the paper is a mean over B of sums over D; its code takes the mean over both, as here.
    """
    return F.mse_loss(full_precision(z_a), full_precision(z_b))


def variance(z: Tensor) -> Tensor:
    """``1/D sum_j max(0, 1 - sqrt(Var_j + 1e-4))`` with the unbiased variance: z (B, D) -> () (eq. 1)."""
    deviations = (full_precision(z).var(dim=0) + EPS).sqrt()
    return torch.relu(1 - deviations).mean()


def covariance(z: Tensor) -> Tensor:
    """``1/D sum_{i != j} Cov_ij^2`` with the unbiased covariance: z (B, D) -> () (eq. 3 and 4)."""
    centred = full_precision(z) - full_precision(z).mean(dim=0)
    with no_autocast(centred):
        cov = centred.T @ centred / (len(z) - 1)  # (D, D)
    return (cov.square().sum() - cov.diagonal().square().sum()) / z.shape[1]


def vicreg(z_a: Tensor, z_b: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """``lambda s(a, b) + mu (v(a) + v(b))/2 + nu (c(a) + c(b))``: z_a, z_b (B, D) -> ().

    Differs: eq. 6 sums v over the views; the authors' code takes the mean, as here, half as much for equal mu.
    """
    invariant, variant, covariant = weights
    spread = (variance(z_a) + variance(z_b)) / 2
    return invariant * invariance(z_a, z_b) + variant * spread + covariant * (covariance(z_a) + covariance(z_b))


class VICRegConfig(ObjectiveConfig):
    name: Literal["vicreg"] = "vicreg"
    invariance: float = Field(default=25.0, ge=0)
    """lambda, weight of the distance between views."""
    variance: float = Field(default=25.0, ge=0)
    """mu, weight of the hinge on each dimension's spread."""
    covariance: float = Field(default=1.0, ge=0)
    """nu, weight of the off-diagonal covariances."""


@dataclass(frozen=True)
class VICReg(Objective):
    """Views go through the network one by one, each with its own BatchNorm statistics, as in the authors' code."""

    config: VICRegConfig

    block: ClassVar[type[ObjectiveConfig]] = VICRegConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector"})
    by_features: ClassVar[bool] = True

    def step(self, network: Network, batch: Batch) -> Step:
        features, (z_a, z_b) = encoded(network, batch.views)
        weights = self.config.invariance, self.config.variance, self.config.covariance
        return Step(vicreg(z_a, z_b, weights), (z_a, z_b), features)
