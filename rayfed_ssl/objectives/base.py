"""What the local epoch loop needs to know about an objective: its heads, its views, and one step.

An objective holds coefficients only; weights, target networks and optimisers belong to the client. Nothing in ``step``
waits for the device.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from rayfed_ssl.models.network import Network


class Step(NamedTuple):
    """One step's loss, a scalar that is a mean over the batch, and the projections it was computed from.

    ``projections`` has one (B, D) tensor per view, still attached to the graph, so that plug-ins can add terms on them.
    It is empty for objectives without a projector.
    """

    loss: Tensor
    projections: tuple[Tensor, ...]


class Objective(Protocol):
    """A local loss. See ``rayfed_ssl.objectives.build``."""

    heads: ClassVar[frozenset[str]]
    """The heads of the network it uses, besides the encoder."""

    target: ClassVar[bool]
    """Whether it needs a momentum target: a copy of the network that the client keeps and passes to ``step``."""

    labelled: ClassVar[bool]
    """Whether it reads labels."""

    @property
    def views(self) -> int:
        """How many augmented views of each image ``step`` expects."""

    @property
    def minimum_batch(self) -> int:
        """The smallest batch for which the loss is defined and can be trained."""

    def step(
        self, network: Network, views: tuple[Tensor, ...], target: Network | None = None, labels: Tensor | None = None
    ) -> Step:
        """The loss on one batch: ``views`` are (B, 3, H, W) each, ``labels`` (B,)."""

    def after_step(self, network: Network, target: Network | None = None) -> None:
        """What follows every optimiser step, e.g. moving the target."""


def full_precision(z: Tensor) -> Tensor:
    """``z`` in float32 if it is narrower (autocast), else unchanged. Combine with ``no_autocast`` around products."""
    return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z


def no_autocast(z: Tensor) -> torch.autocast:
    """Within this context matrix products on ``z``'s device keep their dtype: losses need float32 logits."""
    return torch.autocast(z.device.type, enabled=False)
