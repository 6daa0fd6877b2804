"""Supervised cross-entropy: the labelled reference that self-supervised methods are compared with.

Shape legend: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.base.schema import Block
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Step, full_precision


class Config(Block):
    """``objective: {name: supervised}``. It has no coefficients."""

    name: Literal["supervised"] = "supervised"


@dataclass(frozen=True)
class Objective:
    """Cross-entropy of a classifier on the encoder's features, on one augmented view."""

    config: Config

    heads: ClassVar[frozenset[str]] = frozenset({"classifier"})
    target: ClassVar[bool] = False
    labelled: ClassVar[bool] = True
    views: ClassVar[int] = 1
    minimum_batch: ClassVar[int] = 2  # BatchNorm has no variance over one row of a 1 x 1 map

    def step(
        self, network: Network, views: tuple[Tensor, ...], target: Network | None = None, labels: Tensor | None = None
    ) -> Step:
        if labels is None:
            raise ValueError("supervised needs labels")
        (view,) = views
        logits = network.classify(view)  # (B, classes)
        return Step(F.cross_entropy(full_precision(logits), labels), ())

    def after_step(self, network: Network, target: Network | None = None) -> None:
        """Nothing to do."""
