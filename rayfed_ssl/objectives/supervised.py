"""Supervised cross-entropy: the reference with labels, with which self-supervised methods are compared.

Shape legend: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, full_precision, needed


class SupervisedConfig(ObjectiveConfig):
    name: Literal["supervised"] = "supervised"


@dataclass(frozen=True)
class Supervised(Objective):
    """Cross-entropy of a classifier on the encoder's features, on one augmented view."""

    config: SupervisedConfig

    block: ClassVar[type[ObjectiveConfig]] = SupervisedConfig
    heads: ClassVar[frozenset[str]] = frozenset({"classifier"})
    by_features: ClassVar[bool] = True
    labelled: ClassVar[bool] = True

    @property
    def views(self) -> int:
        return 1

    def step(self, network: Network, batch: Batch) -> Step:
        labels = needed(batch.labels, "supervised", "labels")
        (view,) = batch.views
        features = network.represent(view)
        logits = network.through("classifier", features)  # (B, classes)
        return Step(F.cross_entropy(full_precision(logits), labels), (), (features,))
