"""The values of a network as one flat float32 array, which is what is sent, averaged and saved in checkpoints.

A dict of torch tensors is copied several times on its way through an object store; one flat array is memory-mapped.
Parameters come first, then floating buffers (BatchNorm's running statistics). Integer buffers (``num_batches_tracked``)
are neither sent nor exported.

Shapes: P parameters, b buffer values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfed_ssl.base.flat import Order, flat_of, tensors_of


def float32_bytes(count: int) -> int:
    """Bytes of ``count`` float32 values."""
    return 4 * count


@dataclass(frozen=True, eq=False)
class Weights:
    """The values of one architecture. ``layout`` identifies it: only weights and networks of equal layout may be
    averaged or loaded.
    """

    layout: str
    vector: np.ndarray  # (P + b,) float32
    parameters: int  # P

    @property
    def count(self) -> int:
        """P + b, the number of values."""
        return self.vector.size

    def wire_bytes(self, size: Callable[[int], int] = float32_bytes) -> dict[str, int]:
        """Bytes by part, as a deployment would send them: parameters under "", buffers under ".buffers".

        Args:
            size: number of parameters -> their bytes in the code that is used. Buffers are sent as float32.
        """
        buffers = self.count - self.parameters
        return {"": size(self.parameters)} | ({".buffers": float32_bytes(buffers)} if buffers else {})

    def with_vector(self, vector: np.ndarray) -> Weights:
        """Other values of the same layout. Raises ValueError if there are more or fewer of them."""
        if vector.shape != (self.count,):
            raise ValueError(f"weights of {self.count} values: found an array of shape {vector.shape}")
        return Weights(self.layout, vector, self.parameters)


class Resident(Weights):
    """Weights that stay on the device of the module they were copied from: ``buffer`` (E,), laid out as ``order`` says.

    The vector is made when it is first read. Pickling and :meth:`with_vector` give plain :class:`Weights`.
    ``dataclasses.replace`` raises TypeError, because there is no vector to replace.
    """

    def __init__(self, order: Order, buffer: Tensor) -> None:
        self.order, self.buffer = order, buffer

    @property
    def layout(self) -> str:
        return self.order.layout

    @property
    def parameters(self) -> int:
        return self.order.parameters

    @cached_property
    def vector(self) -> np.ndarray:
        return self.order.plain(self.buffer).cpu().numpy()

    @property
    def count(self) -> int:
        return self.order.count

    @cached_property
    def largest(self) -> float:
        """The largest magnitude of the values; NaN if any value is NaN."""
        if not self.buffer.numel():
            return 0.0
        lowest, highest = torch.aminmax(self.buffer)
        return max(-float(lowest), float(highest))

    def __reduce__(self) -> tuple[Callable[..., Weights], tuple[Any, ...]]:
        return Weights, (self.layout, self.vector, self.parameters)


def plain(value: Any) -> Any:
    """``value`` as another process receives it, at any depth of dicts, lists and tuples: containers of its own, plain
    :class:`Weights` in place of :class:`Resident` ones, and arrays in C order: the order decides the bits of sums, and
    not every way between processes keeps another.
    """
    if type(value) is dict:
        return {name: plain(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
        in_order = np.ascontiguousarray(value)
        in_order.flags.writeable = value.flags.writeable
        return in_order
    return Weights(value.layout, value.vector, value.parameters) if isinstance(value, Resident) else value


def settled(value: Any) -> Any:
    """``value`` as it stays when the process goes on, at any depth of dicts, lists and tuples: copies of the arrays in
    PyTorch's memory, which may be a network's own values (``tensor.numpy()``), and of tensors, on the CPU. ``Weights``
    are never a network's own. What stands in several places is copied once.
    """
    copies: dict[int, tuple[Any, Any]] = {}  # id -> what is copied, which so keeps its id, and the copy

    def one(value: Any) -> Any:
        if type(value) is dict:
            return {name: one(item) for name, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(one, value))
        if not (isinstance(value, Tensor) or (isinstance(value, np.ndarray) and _of_torch(value))):
            return value
        if id(value) not in copies:
            copy = value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value.copy(order="K")
            copies[id(value)] = value, copy
        return copies[id(value)][1]

    return one(value)


def _of_torch(array: np.ndarray) -> bool:
    """Whether the array is a view of a tensor's memory."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, Tensor)


def layout_of(*modules: nn.Module) -> str:
    """A digest of the names and shapes of all values that :func:`pack` copies, in order."""
    named = chain.from_iterable(
        chain(m.named_parameters(), ((n, b) for n, b in m.named_buffers() if b.is_floating_point())) for m in modules
    )
    text = ";".join(f"{name}{tuple(value.shape)}" for name, value in named)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def named(weights: Weights, module: nn.Module) -> dict[str, np.ndarray]:
    """The values by ``module``'s names and in its shapes, as views into the vector: parameters, then buffers.

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
    """A copy of the modules' parameters and floating buffers. If the modules lie in one buffer (``flat.flatten``), the
    copy stays on their device until its vector is read; otherwise it is one float32 array on the CPU.
    """
    if (flat := flat_of(modules, lambda: layout_of(*modules))) is not None:
        return Resident(flat.order, flat.read())
    parameters, buffers = tensors_of(modules)
    if not parameters and not buffers:
        return Weights(layout_of(*modules), np.zeros(0, np.float32), 0)
    values = torch.cat([t.detach().reshape(-1).float() for t in (*parameters, *buffers)]).cpu().numpy()
    return Weights(layout_of(*modules), values, sum(p.numel() for p in parameters))


@torch.no_grad()
def unpack(weights: Weights, *modules: nn.Module) -> None:
    """Load ``weights`` into the modules, by one transfer to their device and one copy, which is grouped by tensors if
    the modules do not lie in one buffer.

    Raises:
        ValueError: the weights belong to another architecture.
    """
    flat = flat_of(modules, lambda: layout_of(*modules))
    found = layout_of(*modules) if flat is None else flat.order.layout
    if found != weights.layout:
        raise ValueError(f"weights of layout {weights.layout} do not fit a network of layout {found}")
    if flat is not None:
        if isinstance(weights, Resident) and weights.order == flat.order:
            flat.write(weights.buffer)
        else:
            flat.write(flat.laid(np.asarray(weights.vector)))
        return
    parameters, buffers = tensors_of(modules)
    targets = [*parameters, *buffers]
    if not targets:
        return
    values = torch.tensor(np.asarray(weights.vector)).to(targets[0].device)
    pieces = [p.view(t.shape) for p, t in zip(torch.split(values, [t.numel() for t in targets]), targets, strict=True)]
    torch._foreach_copy_(targets, pieces)
