"""What the local epoch loop needs to know about an objective: its heads, its views, and one step.

An objective holds coefficients only; weights, target networks, memories and optimisers belong to the client. Nothing in
``step`` waits for the device.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.base.schema import Block
from rayfed_ssl.models.heads import ModelConfig
from rayfed_ssl.models.network import Network, in_order

T = TypeVar("T")
TargetRule = Literal["local", "reset", "averaged"]
"""``local``: it stays the client's own; ``reset``: it starts each round as a copy of the network; ``averaged``: it
travels and is averaged like the weights.
"""


class ObjectiveConfig(Block):
    """Base of every ``objective:`` block. A subclass gives ``name`` its one value as the default."""

    name: str
    """The local loss."""

    @property
    def momentum_target(self) -> TargetRule | None:
        """What becomes of the momentum target, a copy of the network that the client passes to ``step``, when weights
        are downloaded; None: the objective needs none.
        """
        return None


Views = tuple[Tensor, ...]  # one tensor per view of a batch


class Step(NamedTuple):
    """One step's loss, a scalar that is a mean over the batch, and what it was computed from, still attached to the
    graph, so that plug-ins can add terms on it.

    ``projections`` has one (B, D) tensor per view; it is empty for objectives without a projector. ``features`` has
    what the encoder made of each of the same views, (B, H): of no other images that the loss also reads (rotation: of
    each turn; mae: of the patches shown). A plug-in that needs features refuses a step that gives none.
    """

    loss: Tensor
    projections: Views
    features: Views = ()


class Encoded(NamedTuple):
    """Each view of a batch on its way through a network."""

    features: Views  # (B, H) each
    projections: Views  # (B, D) each


def encoded(network: Network, views: Views) -> Encoded:
    """The views go through the network one after the other, each with its own BatchNorm statistics."""
    features, projections = [], []
    for view in views:
        features.append(network.represent(view))
        projections.append(network.project_features(features[-1]))
    return Encoded(tuple(features), tuple(projections))


def encoded_together(network: Network, views: Views) -> Encoded:
    """The views go through the network in one forward pass, so BatchNorm sees the statistics of all."""
    features = network.represent(torch.cat(views))
    return Encoded(features.chunk(len(views)), network.project_features(features).chunk(len(views)))


@dataclass
class Memory:
    """What an objective knows beyond its batch. It belongs to one client and one operation; ``step`` may change it.

    ``tensors`` are the objective's own, by name, such as a queue. They come from :meth:`Objective.remember`, or from
    the client's last round where :attr:`Objective.keeps_memory`. ``draws`` is there where :attr:`Objective.draws`.
    """

    round: int = 1  # counted from 1
    tensors: dict[str, Tensor] = field(default_factory=dict)
    draws: torch.Generator | None = None  # of this client, round and operation


@dataclass(frozen=True)
class Batch:
    """What one step reads: the views of a batch's images, and what the objective asked for beside them."""

    views: tuple[Tensor, ...]  # (B, C, H, W) each
    labels: Tensor | None = None  # (B,), of a labelled objective
    target: Network | None = None  # the momentum target, of an objective that needs one
    memory: Memory | None = None  # of an objective that needs one


def needed(value: T | None, objective: str, what: str) -> T:
    """``value``. Raises ValueError where the client passed none."""
    if value is None:
        raise ValueError(f"{objective} needs {what}")
    return value


@dataclass(frozen=True)
class Objective:
    """A local loss and a row of the table of objectives: the class says what it needs, an instance has coefficients."""

    config: ObjectiveConfig  # a subclass narrows it to its own block

    block: ClassVar[type[ObjectiveConfig]]
    """Its ``objective:`` block."""

    heads: ClassVar[frozenset[str]]
    """The heads of the network it uses, besides the encoder."""

    target_heads: ClassVar[frozenset[str]] = frozenset({"projector"})
    """Those of its momentum target, where it has one: they start, last and travel as the target's encoder does. A
    calibration layer comes with the projector.
    """

    batch_norm: ClassVar[Literal["none", "hidden", "all"]] = "none"
    """In its heads, where a run does not say (``model.projector.batch_norm``)."""

    labelled: ClassVar[bool] = False
    """Whether it reads labels."""

    memory: ClassVar[bool] = False
    """Whether ``step`` needs a :class:`Memory`."""

    draws: ClassVar[bool] = False
    """Whether ``step`` draws from its memory's generator. Such a step is never recorded as a CUDA graph."""

    shows_patches: ClassVar[bool] = False
    """Whether it shows the encoder some of an image's patches, and so needs a ``PatchEncoder``."""

    minimum_batch: ClassVar[int] = 2
    """The smallest batch that can be trained. 2: BatchNorm has no variance over one row."""

    by_features: ClassVar[bool] = False
    """Whether ``step`` sees images only through ``network.represent``: then an audit looks at each view once and gives
    ``step`` many batches of features in their place.
    """

    @property
    def views(self) -> int:
        """How many augmented views of each image ``step`` expects."""
        return 2

    @property
    def keeps_memory(self) -> bool:
        """Whether a client's memory lasts from round to round, in its state."""
        return False

    def memory_dim(self, model: ModelConfig) -> int:
        """How many values each row of its memory has beside a network of ``model``: by default a projection's."""
        return model.projection_dim

    def remember(self, dim: int, draws: torch.Generator) -> dict[str, Tensor]:
        """The tensors of a fresh memory with rows of ``dim`` values, on the device of ``draws``."""
        return {}

    def memory_bytes(self, dim: int) -> int:
        """Bytes of a full memory with rows of ``dim`` values."""
        return 0

    def step(self, network: Network, batch: Batch) -> Step:
        """The loss on one batch."""
        raise NotImplementedError

    def after_step(self, network: Network, target: Network | None = None) -> None:
        """What follows every optimiser step, e.g. moving the target. By default nothing."""


def target_modules(network: Network, heads: Set[str] = Objective.target_heads) -> list[nn.Module]:
    """The modules that a momentum target follows: the encoder and those ``heads`` that the network has."""
    named = in_order({*heads, "calibration"} if "projector" in heads else heads)
    return [network.encoder, *(part for part in (getattr(network, name) for name in named) if part is not None)]


def random_rows(count: int, dim: int, draws: torch.Generator) -> Tensor:
    """Unit vectors (count, dim), uniform on the sphere, float32 on the device of ``draws``."""
    return F.normalize(torch.randn(count, dim, generator=draws, device=draws.device), dim=1)


def full_precision(z: Tensor) -> Tensor:
    """``z`` in float32 if it is narrower (autocast), else unchanged. Combine with ``no_autocast`` around products."""
    return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """``KL(p || q)``, mean over the batch: log-probabilities (B, C) -> (). Gradients flow into both."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()


def no_autocast(z: Tensor) -> torch.autocast:
    """Within this context matrix products on ``z``'s device keep their dtype: losses need float32 logits."""
    return torch.autocast(z.device.type, enabled=False)
