"""The interface between an objective and the local epoch loop: the heads and views that it needs, and one step.

An objective holds coefficients only. Weights, target networks, memories and optimisers belong to the client. ``step``
must not wait for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
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
"""What happens to a momentum target when weights are downloaded. ``local``: it stays the client's own. ``reset``: it
starts each round as a copy of the network. ``averaged``: it is sent and averaged like the weights.
"""


class ObjectiveConfig(Block):
    """Base of every ``objective:`` block. A subclass gives ``name`` a default, the only value it may have."""

    name: str
    """The local loss."""

    @property
    def momentum_target(self) -> TargetRule | None:
        """The rule for the momentum target, a copy of the network that the client passes to ``step``; None if the
        objective needs no such target.
        """
        return None

    def unused(self) -> Mapping[str, str]:
        """Keys without effect of this block, as dotted paths, and what each needs (``Method.unused``)."""
        return {}


Views = tuple[Tensor, ...]  # one tensor per view of a batch


class Step(NamedTuple):
    """The loss of one step, a scalar that is a mean over the batch, and the tensors it was computed from. These are
    still attached to the graph, so that plug-ins can add terms to the loss.

    ``projections`` has one (B, D) tensor per view; it is empty for objectives without a projector. ``features`` has
    the encoder's output for each of these views, (B, H), and for no other images that the loss reads as well (rotation:
    one per turn; mae: those of the patches shown). A plug-in that needs features refuses a step without them.
    """

    loss: Tensor
    projections: Views
    features: Views = ()


def refuse_no_step(step: object, objective: str) -> None:
    """Raise TypeError if what a loss gave is no :class:`Step`, or has no scalar to minimise."""
    said = f"the loss, of objective {objective} or built on it,"
    if not isinstance(step, Step):
        raise TypeError(f"{said} gave {type(step).__name__}; must give rayfed_ssl.objectives.base.Step")
    if not isinstance(step.loss, Tensor) or step.loss.numel() != 1 or not step.loss.requires_grad:
        found = type(step.loss).__name__
        if isinstance(step.loss, Tensor):
            found = f"a tensor of shape {tuple(step.loss.shape)}" + (
                "" if step.loss.requires_grad else " without gradient"
            )
        raise TypeError(f"{said} gave a Step whose loss is {found}; must be a scalar tensor with a gradient")


class Encoded(NamedTuple):
    """The features and the projections of each view of a batch."""

    features: Views  # (B, H) each
    projections: Views  # (B, D) each


def encoded(network: Network, views: Views) -> Encoded:
    """Pass the views through the network one after the other, each with its own BatchNorm statistics."""
    features, projections = [], []
    for view in views:
        features.append(network.represent(view))
        projections.append(network.project_features(features[-1]))
    return Encoded(tuple(features), tuple(projections))


def encoded_together(network: Network, views: Views) -> Encoded:
    """Pass the views through the network in one forward pass, so that they share BatchNorm statistics."""
    features = network.represent(torch.cat(views))
    return Encoded(features.chunk(len(views)), network.project_features(features).chunk(len(views)))


@dataclass
class Memory:
    """What an objective keeps from step to step. It belongs to one client and one operation; ``step`` may change it.

    ``tensors`` are the objective's own, by name, such as a queue. They come from :meth:`Objective.remember`, or from
    the client's last round if :attr:`Objective.keeps_memory`. ``draws`` is set if :attr:`Objective.draws`.
    """

    round: int = 1  # counted from 1
    tensors: dict[str, Tensor] = field(default_factory=dict)
    draws: torch.Generator | None = None  # of this client, round and operation


@dataclass(frozen=True)
class Batch:
    """The input of one step: the views of a batch of images, and what else the objective asked for."""

    views: tuple[Tensor, ...]  # (B, C, H, W) each
    labels: Tensor | None = None  # (B,), for a labelled objective
    target: Network | None = None  # the momentum target, for an objective that needs one
    memory: Memory | None = None  # for an objective that needs one


def needed(value: T | None, objective: str, what: str) -> T:
    """``value``. Raises ValueError if the client passed None."""
    if value is None:
        raise ValueError(f"{objective} needs {what}")
    return value


@dataclass(frozen=True)
class Objective:
    """A local loss. The class says what the loss needs; an instance holds its coefficients."""

    config: ObjectiveConfig  # a subclass narrows it to its own block

    block: ClassVar[type[ObjectiveConfig]]
    """Its ``objective:`` block."""

    heads: ClassVar[frozenset[str]]
    """The heads of the network that it uses, besides the encoder."""

    target_heads: ClassVar[frozenset[str]] = frozenset({"projector"})
    """The heads of its momentum target, if it has one: they start, are kept and are sent as the target's encoder is.
    A calibration layer comes with the projector.
    """

    batch_norm: ClassVar[Literal["none", "hidden", "all"]] = "none"
    """BatchNorm in its heads, unless a run sets ``model.projector.batch_norm``."""

    labelled: ClassVar[bool] = False
    """Whether it reads labels."""

    memory: ClassVar[bool] = False
    """Whether ``step`` needs a :class:`Memory`."""

    draws: ClassVar[bool] = False
    """Whether ``step`` draws from its memory's generator. Such a step is not recorded as a CUDA graph."""

    shows_patches: ClassVar[bool] = False
    """Whether it shows the encoder only some of an image's patches, and so needs a ``PatchEncoder``."""

    minimum_batch: ClassVar[int] = 2
    """The smallest batch that can be trained. By default 2, because BatchNorm has no variance over one row."""

    by_features: ClassVar[bool] = False
    """Whether ``step`` reads images only through ``network.represent``. An audit then encodes each view once and passes
    ``step`` many batches of features in place of images.
    """

    @property
    def views(self) -> int:
        """How many augmented views of each image ``step`` expects."""
        return 2

    @property
    def keeps_memory(self) -> bool:
        """Whether a client's state keeps its memory from round to round."""
        return False

    def memory_dim(self, model: ModelConfig) -> int:
        """The number of values in each row of its memory, for a network of ``model``: by default that of a
        projection.
        """
        return model.projection_dim

    def remember(self, dim: int, draws: torch.Generator) -> dict[str, Tensor]:
        """The tensors of a fresh memory with rows of ``dim`` values, on the device of ``draws``."""
        return {}

    def memory_bytes(self, dim: int) -> int:
        """The bytes of a full memory with rows of ``dim`` values: by default those of a fresh one."""
        return sum(tensor.nbytes for tensor in self.remember(dim, torch.Generator()).values())

    def step(self, network: Network, batch: Batch) -> Step:
        """The loss on one batch."""
        raise NotImplementedError

    def after_step(self, network: Network, target: Network | None = None) -> None:
        """Called after every optimiser step, for example to move the target; by default it does nothing."""


def target_modules(network: Network, heads: Set[str] = Objective.target_heads) -> list[nn.Module]:
    """The modules that a momentum target follows: the encoder, and those of ``heads`` that the network has."""
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
    """A context in which matrix products on ``z``'s device keep their dtype, because losses need float32 logits."""
    return torch.autocast(z.device.type, enabled=False)
