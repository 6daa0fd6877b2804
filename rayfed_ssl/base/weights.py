"""The values of a network as one flat float32 array: what travels, what is averaged, what a checkpoint holds.

A dict of torch tensors is copied several times on its way through an object store; one flat array is mapped. Parameters
come first, then floating buffers (BatchNorm's running statistics); integer buffers (``num_batches_tracked``) neither
travel nor are exported.

Shapes: P parameters, b buffer values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Weights:
    """One architecture's values. ``layout`` names what may be averaged with, or loaded into, what."""

    layout: str
    vector: np.ndarray  # (P + b,) float32
    parameters: int  # P

    def wire_bytes(self) -> dict[str, int]:
        """Bytes by part as a deployment would send them: parameters under "", buffers in a row of their own."""
        buffers = self.vector.size - self.parameters
        return {"": 4 * self.parameters} | ({".buffers": 4 * buffers} if buffers else {})

    def with_vector(self, vector: np.ndarray) -> Weights:
        return Weights(self.layout, vector, self.parameters)


def _tensors(modules: Sequence[nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
    parameters: list[Tensor] = [p for m in modules for p in m.parameters()]
    buffers = [b for m in modules for b in m.buffers() if b.is_floating_point()]
    return parameters, buffers


def layout_of(*modules: nn.Module) -> str:
    """A digest of the names and shapes of everything that :func:`pack` would take, in order."""
    named = chain.from_iterable(
        chain(m.named_parameters(), ((n, b) for n, b in m.named_buffers() if b.is_floating_point())) for m in modules
    )
    text = ";".join(f"{name}{tuple(value.shape)}" for name, value in named)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def named(weights: Weights, module: nn.Module) -> dict[str, np.ndarray]:
    """The values by the names and in the shapes of ``module``, as views into the vector: parameters, then buffers.

    Raises:
        ValueError: the weights belong to another architecture.
    """
    if (found := layout_of(module)) != weights.layout:
        raise ValueError(f"weights of layout {weights.layout} do not fit a network of layout {found}")
    buffers = ((name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point())
    views, start = {}, 0
    for name, tensor in chain(module.named_parameters(), buffers):
        views[name] = weights.vector[start : start + tensor.numel()].reshape(tuple(tensor.shape))
        start += tensor.numel()
    return views


def pack(*modules: nn.Module) -> Weights:
    """The modules' parameters and floating buffers, copied into one float32 array on the CPU."""
    parameters, buffers = _tensors(modules)
    if not parameters and not buffers:
        return Weights(layout_of(*modules), np.zeros(0, np.float32), 0)
    flat = torch.cat([t.detach().reshape(-1).float() for t in (*parameters, *buffers)]).cpu().numpy()
    return Weights(layout_of(*modules), flat, sum(p.numel() for p in parameters))


@torch.no_grad()
def unpack(weights: Weights, *modules: nn.Module) -> None:
    """Load ``weights`` into the modules: one transfer to their device, then one grouped copy.

    Raises:
        ValueError: the weights belong to another architecture.
    """
    if (found := layout_of(*modules)) != weights.layout:
        raise ValueError(f"weights of layout {weights.layout} do not fit a network of layout {found}")
    parameters, buffers = _tensors(modules)
    targets = [*parameters, *buffers]
    if not targets:
        return
    flat = torch.tensor(np.asarray(weights.vector)).to(targets[0].device)
    pieces = [p.view(t.shape) for p, t in zip(torch.split(flat, [t.numel() for t in targets]), targets, strict=True)]
    torch._foreach_copy_(targets, pieces)
