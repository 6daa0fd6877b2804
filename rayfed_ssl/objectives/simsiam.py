"""SimSiam: BYOL without a target; only the stop-gradient keeps it from collapsing (Chen and He 2021).

Shape legend: B batch, D embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, encoded, full_precision


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """``-cos(p, sg z)``, mean over the batch: p, z (B, D) -> () (Chen and He 2021, eq. 1). ``z`` is constant."""
    p, z = F.normalize(full_precision(p), dim=1), F.normalize(full_precision(z.detach()), dim=1)
    return -(p * z).sum(dim=1).mean()


class SimSiamConfig(ObjectiveConfig):
    name: Literal["simsiam"] = "simsiam"


@dataclass(frozen=True)
class SimSiam(Objective):
    """Views go through the network one by one, each with its own BatchNorm statistics, as in SimSiam's code. Without
    BatchNorm in its heads it learns nothing (table 3).
    """

    config: SimSiamConfig

    block: ClassVar[type[ObjectiveConfig]] = SimSiamConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector", "predictor"})
    by_features: ClassVar[bool] = True
    batch_norm: ClassVar[Literal["none", "hidden", "all"]] = "all"

    def step(self, network: Network, batch: Batch) -> Step:
        features, (z_a, z_b) = encoded(network, batch.views)
        p_a, p_b = network.predict(z_a), network.predict(z_b)
        return Step((negative_cosine(p_a, z_b) + negative_cosine(p_b, z_a)) / 2, (z_a, z_b), features)
