"""NNCLR: InfoNCE in which the nearest of earlier images' projections takes the place of a view (Dwibedi et al. 2021).

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
    encoded,
    full_precision,
    needed,
    no_autocast,
    random_rows,
)
from rayfed_ssl.objectives.moco import enqueued
from rayfed_ssl.objectives.simclr import info_nce


@torch.no_grad()
def nearest(z: Tensor, queue: Tensor) -> Tensor:
    """NN(z, Q): for each row of z (B, D) the row of ``queue`` (K, D) with the largest cosine: (B, D), constant.

    For unit vectors this is also the row at the smallest distance, as the paper puts it.
    """
    z, queue = F.normalize(full_precision(z), dim=1), full_precision(queue)
    with no_autocast(z):
        similarity = z @ F.normalize(queue, dim=1).to(z.dtype).T  # (B, K)
    return queue[similarity.argmax(dim=1)]


def neighbour_contrast(z: Tensor, p: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """InfoNCE from the neighbours in ``queue`` (K, D) of one view's z (B, D) to the other view's p (B, D); mean over B.

    ``-log(exp(NN(z_i) p_i / T) / sum_k exp(NN(z_i) p_k / T))`` of normalised rows (Dwibedi et al. 2021, eq. 3, with
    predictions). Gradients flow into p alone.
    """
    return info_nce(nearest(z, queue), p, temperature)


class NNCLRConfig(ObjectiveConfig):
    name: Literal["nnclr"] = "nnclr"
    temperature: float = Field(default=0.1, gt=0)
    """Temperature of the softmax."""
    queue: int = Field(default=1024, ge=1)
    """Projections of earlier batches among which neighbours are looked for (the paper: 98304 of ImageNet). One as large
    as a client's shard holds an earlier view of every image, which is its own nearest neighbour.
    """
    keep_queue: bool = True
    """Whether a client keeps its queue from its last round; else each round starts with random unit vectors, and its
    first step's neighbours are noise.
    """


@dataclass(frozen=True)
class NNCLR(Objective):
    """The mean of both directions, as in Algorithm 1. View 1's projections enter the queue after the neighbours are
    found.

    Differs: the paper's text also adds each loss with the roles of neighbours and predictions exchanged, which its
    Algorithm 1 leaves out. Its heads have BatchNorm (here: ``model.projector.batch_norm``).
    """

    config: NNCLRConfig

    block: ClassVar[type[ObjectiveConfig]] = NNCLRConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector", "predictor"})
    by_features: ClassVar[bool] = True
    memory: ClassVar[bool] = True

    @property
    def keeps_memory(self) -> bool:
        return self.config.keep_queue

    def remember(self, dim: int, draws: torch.Generator) -> dict[str, Tensor]:
        return {"queue": random_rows(self.config.queue, dim, draws)}

    def step(self, network: Network, batch: Batch) -> Step:
        memory, temperature = needed(batch.memory, "nnclr", "a memory"), self.config.temperature
        features, (z_a, z_b) = encoded(network, batch.views)
        p_a, p_b, queue = network.predict(z_a), network.predict(z_b), memory.tensors["queue"]
        there, back = neighbour_contrast(z_a, p_b, queue, temperature), neighbour_contrast(z_b, p_a, queue, temperature)
        memory.tensors["queue"] = enqueued(queue, F.normalize(full_precision(z_a), dim=1))
        return Step((there + back) / 2, (z_a, z_b), features)
