"""SimSiam: BYOL without a target; the stop-gradient alone keeps it from collapsing (Chen and He 2021).

Shape legend: B batch, D embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.base.schema import Block
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Step, full_precision


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """``-cos(p, sg z)``, mean over the batch: p, z (B, D) -> () (Chen and He 2021, eq. 1). ``z`` is constant."""
    p, z = F.normalize(full_precision(p), dim=1), F.normalize(full_precision(z.detach()), dim=1)
    return -(p * z).sum(dim=1).mean()


class Config(Block):
    """``objective: {name: simsiam}``. It has no coefficients."""

    name: Literal["simsiam"] = "simsiam"


@dataclass(frozen=True)
class Objective:
    """Views go through the network one by one, each with its own BatchNorm statistics, as in SimSiam's code."""

    config: Config

    heads: ClassVar[frozenset[str]] = frozenset({"projector", "predictor"})
    target: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    views: ClassVar[int] = 2
    minimum_batch: ClassVar[int] = 2  # BatchNorm in the heads has no variance over one row

    def step(
        self, network: Network, views: tuple[Tensor, ...], target: Network | None = None, labels: Tensor | None = None
    ) -> Step:
        view_a, view_b = views
        z_a, z_b = network.project(view_a), network.project(view_b)
        p_a, p_b = network.predict(z_a), network.predict(z_b)
        return Step((negative_cosine(p_a, z_b) + negative_cosine(p_b, z_a)) / 2, (z_a, z_b))

    def after_step(self, network: Network, target: Network | None = None) -> None:
        """Nothing to do."""
