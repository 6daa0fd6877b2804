"""MoCo: tell a momentum encoder's key of the same image from a queue of keys of earlier ones (He et al. 2020).

Version 1 has a linear projector and temperature 0.07; version 2 an MLP and 0.2 (Chen et al. 2020, "Improved
baselines"). Both are this file with another ``model.projector`` and ``temperature``.

Shape legend: B batch, D embedding, K queue.
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
    TargetRule,
    encoded,
    full_precision,
    needed,
    no_autocast,
    random_rows,
)
from rayfed_ssl.objectives.byol import ema_


def queue_contrast(q: Tensor, k: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """InfoNCE of queries q (B, D), each with its key in k (B, D) and the negatives of ``queue`` (K, D); mean over B.

    ``-log(exp(q k / T) / (exp(q k / T) + sum_j exp(q queue_j / T)))`` of normalised rows (He et al. 2020, eq. 1). The
    other keys of the batch are not negatives. Keys and queue are constant.
    """
    q = F.normalize(full_precision(q), dim=1)
    k, queue = (F.normalize(full_precision(x.detach()), dim=1).to(q.dtype) for x in (k, queue))
    with no_autocast(q):
        positives, negatives = (q * k).sum(dim=1, keepdim=True), q @ queue.T  # (B, 1), (B, K)
    logits = torch.cat([positives, negatives], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def enqueued(queue: Tensor, keys: Tensor) -> Tensor:
    """The newest K rows of queue (K, D) and keys (n, D), the oldest first."""
    return torch.cat([queue, keys.detach().to(queue.dtype)])[-len(queue) :]


class MoCoConfig(ObjectiveConfig):
    name: Literal["moco"] = "moco"
    temperature: float = Field(default=0.2, gt=0)
    """Temperature of the softmax."""
    decay: float = Field(default=0.99, ge=0, le=1)
    """What the key encoder keeps of itself at each step."""
    queue: int = Field(default=4096, ge=1)
    """Keys of earlier batches that a query is contrasted with."""
    keep_queue: bool = False
    """Whether a client keeps its queue from its last round; else it starts with random unit vectors."""
    target: TargetRule = "reset"
    """What becomes of the key encoder when a client downloads weights, as for BYOL; ``reset`` is EasyFL's FedMoCo."""

    @property
    def momentum_target(self) -> TargetRule:
        return self.target


@dataclass(frozen=True)
class MoCo(Objective):
    """Both views are queries, each with the other view's key as its positive; the loss sums both directions (EasyFL).

    Differs: the paper has one direction and shuffles BatchNorm's batches over GPUs; here there is one device. Its code
    moves the key encoder before each forward; moving it after each optimiser step gives the same keys. Its queue has a
    pointer, and this one shifts: the rows are the same, and K need not be a multiple of 2B.
    """

    config: MoCoConfig

    block: ClassVar[type[ObjectiveConfig]] = MoCoConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector"})
    by_features: ClassVar[bool] = True
    memory: ClassVar[bool] = True

    @property
    def keeps_memory(self) -> bool:
        return self.config.keep_queue

    def remember(self, dim: int, draws: torch.Generator) -> dict[str, Tensor]:
        return {"queue": random_rows(self.config.queue, dim, draws)}

    def step(self, network: Network, batch: Batch) -> Step:
        target, memory = needed(batch.target, "moco", "a target network"), needed(batch.memory, "moco", "a memory")
        features, (q_a, q_b) = encoded(network, batch.views)
        with torch.no_grad():
            k_a, k_b = (F.normalize(full_precision(target.project(view)), dim=1) for view in batch.views)
        queue, temperature = memory.tensors["queue"], self.config.temperature
        loss = queue_contrast(q_a, k_b, queue, temperature) + queue_contrast(q_b, k_a, queue, temperature)
        memory.tensors["queue"] = enqueued(queue, torch.cat([k_a, k_b]))
        return Step(loss, (q_a, q_b), features)

    def after_step(self, network: Network, target: Network | None = None) -> None:
        ema_(needed(target, "moco", "a target network"), network, self.config.decay)
