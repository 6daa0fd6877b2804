"""SwAV: predicts the cluster code of one view from the other view's scores (Caron et al. 2020).

Prototypes are the rows of a head of the network; they are trained, sent and averaged like other parameters.

Shape legend: B batch, D embedding, K prototypes, Q queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import (
    Batch,
    Memory,
    Objective,
    ObjectiveConfig,
    Step,
    encoded,
    full_precision,
    needed,
    no_autocast,
)


@torch.no_grad()
def sinkhorn_codes(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Soft assignments that use all prototypes equally: scores (B, K) -> (B, K), rows summing to 1; no gradient.

    From ``exp(scores / epsilon)``, ``iterations`` times: each prototype's total becomes 1/K, then each sample's 1/B
    (eq. 3-5). It works with logarithms, so that a small ``epsilon`` does not underflow.
    """
    log_q = full_precision(scores) / epsilon
    for _ in range(iterations):
        log_q = F.log_softmax(log_q, dim=0)  # totals of prototypes; the next line cancels the missing factor 1/K
        log_q = F.log_softmax(log_q, dim=1)
    return log_q.exp()


def code_prediction(codes: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of softmax(scores / T) with constant codes, both (B, K), mean over the batch: () (eq. 2)."""
    log_p = F.log_softmax(full_precision(scores) / temperature, dim=1)
    return -(codes.detach() * log_p).sum(dim=1).mean()


def swapped_prediction(scores: tuple[Tensor, Tensor], codes: tuple[Tensor, Tensor], temperature: float) -> Tensor:
    """The mean of both directions of the swapped problem: each view's code from the other view's scores (eq. 1)."""
    (s_a, s_b), (q_a, q_b) = scores, codes
    return (code_prediction(q_a, s_b, temperature) + code_prediction(q_b, s_a, temperature)) / 2


@torch.no_grad()
def normalise_(prototypes: Tensor) -> None:
    """Scale the rows of ``prototypes`` (K, D) to length 1, in place."""
    prototypes.copy_(F.normalize(prototypes, dim=1))


class SwAVConfig(ObjectiveConfig):
    name: Literal["swav"] = "swav"
    temperature: float = Field(default=0.1, gt=0)
    """Temperature of the softmax."""
    epsilon: float = Field(default=0.05, gt=0)
    """Weight of the codes' entropy: the larger, the softer the codes."""
    iterations: int = Field(default=3, ge=1)
    """Iterations of Sinkhorn's algorithm."""
    freeze_rounds: int = Field(default=1, ge=0)
    """Rounds at the start in which prototypes stay as they are (SwAV: its first epoch)."""
    queue: int = Field(default=0, ge=0)
    """Newest projections that a batch's codes are balanced with, once there are so many; 0: none."""
    keep_queue: bool = False
    """Whether a client keeps its queue from round to round."""

    def unused(self) -> Mapping[str, str]:
        return {} if self.queue else {"objective.keep_queue": "objective.queue above 0"}


@dataclass(frozen=True)
class SwAV(Objective):
    """Two views, one forward pass each, so that each has its own BatchNorm statistics.

    Prototypes are normalised before each forward pass, as in the authors' code, and after each step, so that those sent
    are normalised as well.

    Differs: no small crops; the queue's rows count in the codes of their own view only, as in the paper.
    """

    config: SwAVConfig

    block: ClassVar[type[ObjectiveConfig]] = SwAVConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector", "prototypes"})
    by_features: ClassVar[bool] = True
    memory: ClassVar[bool] = True

    @property
    def keeps_memory(self) -> bool:
        return self.config.keep_queue and self.config.queue > 0

    def remember(self, dim: int, draws: torch.Generator) -> dict[str, Tensor]:
        return {name: torch.zeros(0, dim, device=draws.device) for name in ("queue_a", "queue_b")}

    def memory_bytes(self, dim: int) -> int:
        return 2 * 4 * self.config.queue * dim

    def step(self, network: Network, batch: Batch) -> Step:
        memory = needed(batch.memory, "swav", "a memory")
        prototypes = network.prototype_rows
        normalise_(prototypes)
        rows = prototypes.detach() if memory.round <= self.config.freeze_rounds else prototypes
        features, projections = encoded(network, batch.views)
        scores, codes = [], []
        for name, projection in zip(("queue_a", "queue_b"), projections, strict=True):
            z = F.normalize(full_precision(projection), dim=1)
            with no_autocast(z):
                scores.append(z @ rows.T)  # (B, K)
            codes.append(self.codes(scores[-1], memory, name, rows.detach()))
            self.enqueue(memory, name, z)
        loss = swapped_prediction((scores[0], scores[1]), (codes[0], codes[1]), self.config.temperature)
        return Step(loss, projections, features)

    def codes(self, scores: Tensor, memory: Memory, name: str, prototypes: Tensor) -> Tensor:
        """The codes of one view (B, K), balanced together with its queue if that is full."""
        queue, batch = memory.tensors[name], scores
        if 0 < self.config.queue == len(queue):
            with no_autocast(queue):
                batch = torch.cat([scores.detach(), queue @ prototypes.T])  # (B + Q, K)
        return sinkhorn_codes(batch, self.config.epsilon, self.config.iterations)[: len(scores)]

    def enqueue(self, memory: Memory, name: str, z: Tensor) -> None:
        """Put one view's normalised projections (B, D) into its queue."""
        if self.config.queue > 0:
            memory.tensors[name] = torch.cat([memory.tensors[name], z.detach()])[-self.config.queue :]

    def after_step(self, network: Network, target: Network | None = None) -> None:
        normalise_(network.prototype_rows)
