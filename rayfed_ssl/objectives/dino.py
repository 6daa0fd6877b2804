"""DINO: the student predicts, from one view, a momentum teacher's centred and sharpened scores of the other view
(Caron et al. 2021, "Emerging properties in self-supervised vision transformers").

Student and teacher each have K prototypes, trained, sent and averaged with the weights (K: ``model.prototypes``).

Shape legend: B batch, D embedding, K prototypes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.models.heads import ModelConfig
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
    no_autocast,
)
from rayfed_ssl.objectives.byol import ema_
from rayfed_ssl.objectives.swav import swapped_prediction


def prototype_scores(z: Tensor, prototypes: Tensor) -> Tensor:
    """Cosines of z (B, D) with ``prototypes`` (K, D): (B, K). This is DINO's last layer on its normalised bottleneck.

    Weight normalisation with the scale fixed at 1: gradients flow through the lengths of both.
    """
    z, prototypes = F.normalize(full_precision(z), dim=1), F.normalize(full_precision(prototypes), dim=1)
    with no_autocast(z):
        return z @ prototypes.T


@torch.no_grad()
def teacher_probabilities(scores: Tensor, center: Tensor, temperature: float) -> Tensor:
    """softmax((scores - C) / T): scores (B, K), center C (K,) -> (B, K), constant.

    Centring keeps one prototype from winning for every image; a low temperature keeps scores from becoming equal.
    """
    return ((scores - center) / temperature).softmax(dim=1)


@torch.no_grad()
def moved_center(center: Tensor, scores: Tensor, decay: float) -> Tensor:
    """``decay C + (1 - decay)`` times the mean of the teacher's scores (n, K) before centring: (K,) (eq. 4)."""
    return center.lerp(scores.mean(dim=0).to(center.dtype), 1 - decay)


class DINOConfig(ObjectiveConfig):
    name: Literal["dino"] = "dino"
    temperature: float = Field(default=0.1, gt=0)
    """Temperature of the student's softmax."""
    teacher_temperature: float = Field(default=0.04, gt=0)
    """Temperature of the teacher's softmax."""
    decay: float = Field(default=0.99, ge=0, le=1)
    """What the teacher keeps of itself at each step (the paper: 0.996, rising to 1)."""
    center_decay: float = Field(default=0.9, ge=0, le=1)
    """What the center keeps of itself at each step."""
    keep_center: bool = True
    """Whether a client keeps its center from its last round; else it starts at 0, and in a round of few steps hardly
    leaves it: one prototype may then win every image.
    """
    freeze_rounds: int = Field(default=1, ge=0)
    """Rounds at the start in which the student's prototypes stay as they are (DINO: its first epoch)."""
    target: TargetRule = "local"
    """What becomes of the teacher, its prototypes included, when a client downloads weights, as for BYOL."""

    @property
    def momentum_target(self) -> TargetRule:
        return self.target


@dataclass(frozen=True)
class DINO(Objective):
    """Two views, one forward pass each through both networks. A batch is centred by the center of the batches before
    it.

    Differs: no small crops, so student and teacher see each view; no schedules of decay, weight decay and teacher
    temperature; the projector, the paper's bottleneck, has ReLU instead of GELU and is as small as the run's; K is
    ``model.prototypes`` (the paper: 65536), whose first values are unit vectors uniform on the sphere.
    """

    config: DINOConfig

    block: ClassVar[type[ObjectiveConfig]] = DINOConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector", "prototypes"})
    target_heads: ClassVar[frozenset[str]] = frozenset({"projector", "prototypes"})
    by_features: ClassVar[bool] = True
    memory: ClassVar[bool] = True

    @property
    def keeps_memory(self) -> bool:
        return self.config.keep_center

    def memory_dim(self, model: ModelConfig) -> int:
        return model.prototypes

    def remember(self, dim: int, draws: torch.Generator) -> dict[str, Tensor]:
        return {"center": torch.zeros(dim, device=draws.device)}

    def step(self, network: Network, batch: Batch) -> Step:
        target, memory = needed(batch.target, "dino", "a target network"), needed(batch.memory, "dino", "a memory")
        frozen, center = memory.round <= self.config.freeze_rounds, memory.tensors["center"]
        features, projections = encoded(network, batch.views)
        rows = network.prototype_rows.detach() if frozen else network.prototype_rows
        s_a, s_b = (prototype_scores(z, rows) for z in projections)
        with torch.no_grad():
            t_a, t_b = (prototype_scores(target.project(view), target.prototype_rows) for view in batch.views)
        p_a, p_b = (teacher_probabilities(t, center, self.config.teacher_temperature) for t in (t_a, t_b))
        memory.tensors["center"] = moved_center(center, torch.cat([t_a, t_b]), self.config.center_decay)
        return Step(swapped_prediction((s_a, s_b), (p_a, p_b), self.config.temperature), projections, features)

    def after_step(self, network: Network, target: Network | None = None) -> None:
        ema_(needed(target, "dino", "a target network"), network, self.config.decay)
