"""A training step: forward, backward, optimiser, and what follows it; on a GPU as one CUDA graph, if that is wanted.

A graph is recorded once in a fit and replayed for every further batch: the same kernels on the same values, so the same
bits, without the time that it takes to launch kernels one by one. It reads and writes fixed memory, so each batch is
copied to where the graph reads it (:class:`StaticStep`). Augmentation stays outside the graph. So do the updates of
Adam and AdamW: their bias correction changes from step to step, and a graph would keep the first one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rayfed_ssl.base.optimizers import LARS
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line

Body = Callable[[], None]
Views = tuple[Tensor, ...]
WARM = 2  # steps before recording: they make what is made lazily, such as momentum and libraries' workspaces
WORTH = 8  # steps; recording fewer costs more than launching them

log = logging.getLogger(__name__)


class NotStatic(RuntimeError):
    """A step cannot be recorded: it moves the tensors that it works on, or waits for the device."""


@dataclass
class TrainStep:
    """A step as PyTorch runs it. ``total`` sums the losses on their device, without waiting for it.

    Args:
        loss: (views, rows) -> scalar, the plug-ins' terms included.
        follow: what comes after the optimiser, e.g. moving a target.
    """

    loss: Callable[[Views, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    clip_norm: float | None
    follow: Callable[[], None]
    total: Tensor

    def __call__(self, views: Views, rows: Tensor) -> None:
        self.gradient(views, rows)
        self.update()

    def gradient(self, views: Views, rows: Tensor) -> None:
        """Everything before the optimiser."""
        value = self.loss(views, rows)
        backward(self.optimizer, value, self.clip_norm)
        self.total += value.detach()

    def update(self) -> None:
        """The optimiser's step, and what follows it."""
        self.optimizer.step()
        self.follow()


def backward(optimizer: torch.optim.Optimizer, loss: Tensor, clip_norm: float | None = None) -> None:
    """The gradient of the scalar ``loss``; ``clip_norm`` bounds its norm over all parameters."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip_norm)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, clip_norm: float | None = None) -> None:
    """One step down the gradient of the scalar ``loss``; ``clip_norm`` bounds its norm over all parameters."""
    backward(optimizer, loss, clip_norm)
    optimizer.step()


@dataclass
class StaticStep(TrainStep):
    """A step on fixed memory: batches are copied to where it reads them. On a GPU it is recorded and replayed; on the
    CPU the same body is called.

    Args:
        memory: what the objective remembers from batch to batch, by name. If a step replaces a tensor, that counts as a
            change of its values.
        refused: called once if the step cannot be recorded; from then on it runs as a plain step.
    """

    memory: dict[str, Tensor] = field(default_factory=dict)
    refused: Callable[[NotStatic], None] = lambda error: None
    done: int = 0
    inputs: tuple[Tensor, ...] = ()
    replay: Body | None = None
    plain: bool = False

    def __post_init__(self) -> None:
        self.fixed = dict(self.memory)

    @property
    def counts_steps(self) -> bool:
        """Whether the optimiser's arithmetic depends on the number of steps it has done."""
        return not isinstance(self.optimizer, (torch.optim.SGD, LARS))

    def __call__(self, views: Views, rows: Tensor) -> None:
        if self.plain:
            super().__call__(views, rows)
            return
        if self.done < WARM:
            super().__call__(views, rows)
            self.done += 1
            if any(tensor.shape != self.fixed[name].shape for name, tensor in self.memory.items()):
                self._give_up(NotStatic("what it remembers changes its size"))
            else:
                self.write_back()
            return
        if self.replay is None:
            self.inputs = tuple(torch.empty_like(tensor) for tensor in (*views, rows))
            self.fill(views, rows)
            try:
                self.replay = recorded(self.body, self.total.device)
            except NotStatic as error:
                self._give_up(error)
                super().__call__(views, rows)
                return
        self.fill(views, rows)
        self.replay()
        if self.counts_steps:
            self.update()

    def _give_up(self, error: NotStatic) -> None:
        self.plain = True
        self.memory |= self.fixed if self.done >= WARM else {}
        self.refused(error)

    def fill(self, views: Views, rows: Tensor) -> None:
        """Copy a batch to where the recorded step reads it."""
        for fixed, tensor in zip(self.inputs, (*views, rows), strict=True):
            fixed.copy_(tensor)

    def write_back(self) -> None:
        """Copy what the step remembers back to where it was before."""
        for name, fixed in self.fixed.items():
            if self.memory[name] is not fixed:
                fixed.copy_(self.memory[name])
                self.memory[name] = fixed

    def body(self) -> None:
        """The part of the step that is recorded."""
        self.gradient(self.inputs[:-1], self.inputs[-1])
        self.write_back()
        if not self.counts_steps:
            self.update()


def recorded(body: Body, device: torch.device) -> Body:
    """A function that does what ``body`` does: a CUDA graph of it, which has not run yet; on the CPU ``body`` itself.

    Raises:
        NotStatic: it waits for the device, or does something else that a graph cannot hold.
    """
    if device.type != "cuda":
        return body
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            body()
    except RuntimeError as error:
        torch.cuda.synchronize(device)
        raise NotStatic(in_one_line(error, 200)) from error
    return graph.replay


class StepMaker:
    """Which kind of step a process takes, as ``resources.cuda_graphs`` says, and which ones it cannot record.

    Raises:
        UserError: graphs are demanded, and there is no GPU.
    """

    def __init__(self, wanted: str, device: torch.device) -> None:
        if wanted == "on" and device.type != "cuda":
            raise UserError("resources.cuda_graphs: found 'on', but this process trains on the CPU; allowed: auto, off")
        self.wanted, self.static = wanted, wanted != "off" and device.type == "cuda"
        self.refused: set[str] = set()

    def made(self, plain: TrainStep, name: str, count: int, memory: dict[str, Tensor]) -> TrainStep:
        """The step to take ``count`` times; ``name`` says whose it is."""
        if not self.static or name in self.refused or count < WORTH:
            return plain

        def refuse(error: NotStatic) -> None:
            """Go on without a graph of this step, and say so once. Raises UserError if graphs are demanded."""
            if self.wanted == "on":
                raise UserError(f"resources.cuda_graphs: found 'on', but {name} cannot be recorded ({error})")
            self.refused.add(name)
            log.warning("%s: no CUDA graph of its step (%s); going on without", name, error)

        parts = plain.loss, plain.optimizer, plain.clip_norm, plain.follow, plain.total
        return StaticStep(*parts, memory=memory, refused=refuse)
