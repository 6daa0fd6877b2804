"""Supervised cross-entropy: the labelled reference that self-supervised methods are compared with.

Shape legend: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Memory, Objective, ObjectiveConfig, Step, full_precision


class SupervisedConfig(ObjectiveConfig):
    name: Literal["supervised"] = "supervised"


@dataclass(frozen=True)
class Supervised(Objective):
    """Cross-entropy of a classifier on the encoder's features, on one augmented view."""

    config: SupervisedConfig

    block: ClassVar[type[ObjectiveConfig]] = SupervisedConfig
    heads: ClassVar[frozenset[str]] = frozenset({"classifier"})
    labelled: ClassVar[bool] = True

    @property
    def views(self) -> int:
        return 1

    def step(
        self,
        network: Network,
        views: tuple[Tensor, ...],
        target: Network | None = None,
        labels: Tensor | None = None,
        memory: Memory | None = None,
    ) -> Step:
        if labels is None:
            raise ValueError("supervised needs labels")
        (view,) = views
        logits = network.classify(view)  # (B, classes)
        return Step(F.cross_entropy(full_precision(logits), labels), ())
