"""Alignment and uniformity on the sphere (Wang and Isola 2020). Used by SSD (Fang et al. 2025) as its local loss.

Shape legend: B batch, D embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from rayfed_ssl.base import sphere
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, encoded, full_precision, no_autocast


def alignment(z_a: Tensor, z_b: Tensor) -> Tensor:
    """:func:`rayfed_ssl.base.sphere.alignment` in float32 or wider: z_a, z_b (B, D) -> ()."""
    return sphere.alignment(full_precision(z_a), full_precision(z_b))


def uniformity(z: Tensor, t: float) -> Tensor:
    """:func:`rayfed_ssl.base.sphere.uniformity` in float32 or wider: z (B, D) -> ()."""
    z = full_precision(z)
    with no_autocast(z):
        return sphere.uniformity(z, t)


def align_uniform(z_a: Tensor, z_b: Tensor, weight: float, t: float) -> Tensor:
    """Alignment plus ``weight`` times the mean uniformity of both views: z_a, z_b (B, D) -> ()."""
    return alignment(z_a, z_b) + weight * (uniformity(z_a, t) + uniformity(z_b, t)) / 2


class AlignUniformConfig(ObjectiveConfig):
    name: Literal["align_uniform"] = "align_uniform"
    uniformity: float = Field(default=1.0, ge=0)
    """Weight of the uniformity."""
    t: float = Field(default=2.0, gt=0)
    """t of the Gaussian potential exp(-t d^2)."""

    def unused(self) -> Mapping[str, str]:
        return {} if self.uniformity else {"objective.t": "objective.uniformity above 0"}


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
