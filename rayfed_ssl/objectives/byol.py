"""BYOL: predicts from one view the projection of the other view by a slowly moving copy of the network (Grill et al.
2020).

Shape legend: B batch, D embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import (
    Batch,
    Objective,
    ObjectiveConfig,
    Step,
    TargetRule,
    encoded,
    full_precision,
    needed,
)


def regression(p: Tensor, z: Tensor) -> Tensor:
    """``2 - 2 cos(p, sg z)``, mean over the batch: p, z (B, D) -> (), between 0 and 4. ``z`` is constant."""
    p, z = F.normalize(full_precision(p), dim=1), F.normalize(full_precision(z.detach()), dim=1)
    return 2 - 2 * (p * z).sum(dim=1).mean()


@torch.no_grad()
def ema_(target: nn.Module, online: nn.Module, decay: float) -> None:
    """``target <- decay * target + (1 - decay) * online``, in place, for every parameter of ``target``, by name.

    Parameters only: BatchNorm's running statistics of the target move by its own forward passes. Parameters that only
    ``online`` has (the predictor) are left alone; one that only ``target`` has raises KeyError.
    """
    source = dict(online.named_parameters())
    names, moving = zip(*target.named_parameters(), strict=True)
    torch._foreach_lerp_(moving, [source[name] for name in names], 1 - decay)


class BYOLConfig(ObjectiveConfig):
    name: Literal["byol"] = "byol"
    decay: float = Field(default=0.99, ge=0, le=1)
    """What the target keeps of itself at each step."""
    target: TargetRule = "local"
    """What becomes of the target when a client downloads weights: it stays the client's own, starts each round as a
    copy of the network, or travels and is averaged like the weights.

    ``local``: before the client's first round it is a copy of what was downloaded (EasyFL's FedBYOL, FedU, FedEMA).
    ``reset``: FedSC's FedBYOL. ``averaged``: Orchestra without client state, for methods that average weights.

    Differs: in EasyFL the target *is* the online network during a client's first round, without any lag.
    """

    @property
    def momentum_target(self) -> TargetRule:
        return self.target


@dataclass(frozen=True)
class BYOL(Objective):
    """Views go through both networks one after the other, each with its own BatchNorm statistics, as in BYOL's code.

    The target is in the mode that the client set. In training mode its forward passes move its own BatchNorm
    statistics.
    """

    config: BYOLConfig

    block: ClassVar[type[ObjectiveConfig]] = BYOLConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector", "predictor"})
    by_features: ClassVar[bool] = True

    def step(self, network: Network, batch: Batch) -> Step:
        target = needed(batch.target, "byol", "a target network")
        view_a, view_b = batch.views
        features, (z_a, z_b) = encoded(network, batch.views)
        with torch.no_grad():
            target_a, target_b = target.project(view_a), target.project(view_b)
        loss = regression(network.predict(z_a), target_b) + regression(network.predict(z_b), target_a)
        return Step(loss, (z_a, z_b), features)

    def after_step(self, network: Network, target: Network | None = None) -> None:
        ema_(needed(target, "byol", "a target network"), network, self.config.decay)
