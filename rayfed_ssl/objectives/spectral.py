"""Spectral contrast (SC), written with correlation matrices so that clients can share them (Jing et al. 2024, FedSC).

``-2 E[z_a^T z_b] + E[(z^T z')^2] = -2 Tr R+ + ||R||_F^2``: the contrast needs other samples only through R.

Shape legend: V views, B batch, D embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
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


def clip_norm(z: Tensor, mu: float) -> Tensor:
    """``z * min(1, sqrt(mu) / ||z||)`` per row: z (..., D), afterwards ``||z||^2 <= mu`` (FedSC, Algorithm 2)."""
    norms: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z / (norms / math.sqrt(mu)).clamp_min(1)


def correlation(z: Tensor) -> Tensor:
    """``Rhat = 1/(B V) sum_i sum_v z_i^v z_i^v^T``: z (V, B, D) -> (D, D), positive semi-definite."""
    rows = full_precision(z).flatten(0, 1)  # (V B, D)
    with no_autocast(rows):
        return rows.T @ rows / len(rows)


def positive_trace(z: Tensor) -> Tensor:
    """``Tr R+hat = 1/(B V (V-1)) sum_i sum_{v != u} z_i^v . z_i^u``: z (V, B, D) -> (). V is at least 2."""
    views, batch, _ = z.shape
    z = full_precision(z)
    pairs = z.sum(dim=0).square().sum() - z.square().sum()  # ||sum_v z||^2 - sum_v ||z||^2
    return pairs / (batch * views * (views - 1))


def spectral_loss(z: Tensor | Sequence[Tensor], rest: Tensor | None = None, alpha: float | Tensor = 1.0) -> Tensor:
    """``-2 Tr R+hat + alpha ||Rhat||_F^2 + 2 (1 - alpha) Tr(Rhat rest)``: z (V, B, D), rest (D, D) -> ().

    FedSC, eq. 5 on a batch; z may also be V tensors (B, D). ``rest`` is the constant correlation of the other clients,
    Rbar_{-j}, their mean with weights q_k / (1 - q_j). With alpha = q_j and current ``rest`` the q-weighted sum of the
    clients' gradients is the gradient of the global loss (eq. 6); the values differ. ``alpha = 1`` without ``rest`` is
    the plain spectral loss.

    As in the authors' code the same-sample pairs stay in ||Rhat||^2, a bias of order 1/B: its expectation is
    (1 - 1/B) ||R||^2 + (1/B) E ||S_i||^2 with S_i = mean_v z z^T.
    """
    z = z if isinstance(z, Tensor) else torch.stack(tuple(z))
    r = correlation(z)
    loss = alpha * r.square().sum() - 2 * positive_trace(z)
    return loss if rest is None else loss + 2 * (1 - alpha) * (r * rest.T.to(r.dtype)).sum()


class SpectralConfig(ObjectiveConfig):
    name: Literal["spectral"] = "spectral"
    views: int = Field(default=2, ge=2)
    """V, how many views of an image."""
    clip: float | None = Field(default=4.0, gt=0)
    """mu, the bound on ``||z||^2``; null: projections stay as they are.

    The loss is quartic in ``||z||``, and in FedSC's networks, without BatchNorm or output normalisation, only the clip
    bounds it. Sharing correlations privately needs the same mu.
    """


@dataclass(frozen=True)
class Spectral(Objective):
    """All views go through the network in one forward pass. FedSC's networks have no BatchNorm, so it makes no
    difference there.

    FedAvg's local loss in FedAvg+SC; ``methods/fedsc.py`` adds what the others share. The projections returned are the
    clipped ones.
    """

    config: SpectralConfig

    block: ClassVar[type[ObjectiveConfig]] = SpectralConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector"})
    by_features: ClassVar[bool] = True

    @property
    def views(self) -> int:
        return self.config.views

    def step(self, network: Network, batch: Batch) -> Step:
        features, projections = encoded_together(network, batch.views)
        z = torch.stack(projections)  # (V, B, D)
        if self.config.clip is not None:
            z = clip_norm(full_precision(z), self.config.clip)
        return Step(spectral_loss(z), z.unbind(), features)
