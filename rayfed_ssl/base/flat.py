"""Stores the values of modules in one buffer. Parameters and floating buffers are views into it, so reading or writing
all values is one copy.

The buffer keeps the modules' memory format (channels-last kernels stay channels-last), and every tensor begins at a
multiple of 128 bytes. It is therefore not the flat vector that is sent; an :class:`Order` converts between the two.

Shapes: P parameters, b buffer values, E values of the buffer including its gaps.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

ALIGNED = 32  # float32 values, 128 bytes: the alignment that tensor cores need


class Piece(NamedTuple):
    """The place of one tensor in a buffer."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    def of(self, buffer: Tensor) -> Tensor:
        """The tensor as a view into ``buffer``."""
        return buffer.as_strided(self.shape, self.stride, buffer.storage_offset() + self.start)


@dataclass(frozen=True)
class Order:
    """The place of each value of a layout's flat vector in a buffer."""

    layout: str
    parameters: int  # P
    pieces: tuple[Piece, ...]

    @cached_property
    def count(self) -> int:
        """P + b, the number of values of the vector."""
        return sum(piece.values for piece in self.pieces)

    @cached_property
    def extent(self) -> int:
        """E, the number of values of the buffer including its gaps."""
        return max((piece.start + piece.values for piece in self.pieces), default=0)

    def plain(self, buffer: Tensor) -> Tensor:
        """(E,) buffer -> (P + b,) vector: a copy of the same type on the same device."""
        return torch.cat([piece.of(buffer).reshape(-1) for piece in self.pieces])

    def laid(self, vector: Tensor) -> Tensor:
        """(P + b,) vector -> (E,) buffer: a copy whose gaps are zero."""
        buffer = vector.new_zeros(self.extent)
        values = torch.split(vector, [piece.values for piece in self.pieces])
        for piece, value in zip(self.pieces, values, strict=True):
            piece.of(buffer).copy_(value.view(piece.shape))
        return buffer


def tensors_of(modules: Sequence[nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
    """(parameters, floating buffers) of all modules, in order."""
    parameters: list[Tensor] = [p for m in modules for p in m.parameters()]
    buffers = [b for m in modules for b in m.buffers() if b.is_floating_point()]
    return parameters, buffers


def _gather(module: nn.Module, held: list[Tensor]) -> None:
    """Append every tensor that a module holds to ``held``, in an order of its own. This is many times faster than
    ``named_parameters``.
    """
    held += [t for t in module._parameters.values() if t is not None]
    held += [t for t in module._buffers.values() if t is not None]
    for child in module._modules.values():
        if child is not None:
            _gather(child, held)


def _dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor without gaps that has this tensor's shape and memory format."""
    return torch.empty_like(tensor, device="meta").stride()


@torch.no_grad()
def flatten(module: nn.Module) -> None:
    """Move a module's parameters and floating buffers into one buffer on their device. They become views into it.

    Values, strides and the identity of parameters are kept. A module that has values of another type than float32 is
    left as it is.
    """
    parameters, buffers = tensors_of([module])
    tensors = [*parameters, *buffers]
    if not tensors or any(t.dtype != torch.float32 for t in tensors):
        return
    pieces, start = [], 0
    for tensor in tensors:
        pieces.append(Piece(tuple(tensor.shape), _dense_stride(tensor), start))
        start += -(-tensor.numel() // ALIGNED) * ALIGNED
    buffer = torch.zeros(start, device=tensors[0].device)
    for tensor, piece in zip(tensors, pieces, strict=True):
        view = piece.of(buffer)
        view.copy_(tensor)
        tensor.data = view


class Flat:
    """Reads and writes modules that lie in one buffer as one vector."""

    def __init__(self, order: Order, tensors: list[Tensor], ranges: list[tuple[int, int]], held: list[Tensor]) -> None:
        self.order = order
        self.held = held
        self.pointers = [tensor.data_ptr() for tensor in held]
        storage = tensors[0].untyped_storage()
        whole = torch.empty(0, dtype=torch.float32, device=tensors[0].device).set_(storage)
        self.ranges: list[Tensor] = [whole[start:stop] for start, stop in ranges]
        self._last: tuple[np.ndarray, Tensor] | None = None  # the last read-only vector, and its buffer

    def still(self, held: list[Tensor]) -> bool:
        """Whether the modules still hold the same tensors at the same addresses."""
        return (
            len(held) == len(self.held)
            and all(map(operator.is_, held, self.held))
            and self.pointers == [tensor.data_ptr() for tensor in held]
        )

    @torch.no_grad()
    def read(self) -> Tensor:
        """(E,) a copy of the values on their device."""
        return self.ranges[0].clone() if len(self.ranges) == 1 else torch.cat(self.ranges)

    @torch.no_grad()
    def write(self, buffer: Tensor) -> None:
        """Load the values of ``buffer`` (E,) into the modules."""
        for part, values in zip(self.ranges, torch.split(buffer, [len(part) for part in self.ranges]), strict=True):
            part.copy_(values)

    def laid(self, vector: np.ndarray) -> Tensor:
        """The (E,) buffer of a (P + b,) vector, on the modules' device.

        The last buffer is returned again if the vector is the same and read-only, so the round's model is laid out
        once, not once per client.
        """
        if self._last is not None and _same(self._last[0], vector):
            return self._last[1]
        self._last = None
        with torch.no_grad():
            made = self.order.laid(torch.tensor(vector).to(self.ranges[0].device))
        if not vector.flags.writeable:
            self._last = vector, made
        return made


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether both are the same read-only memory. The caller holds ``a``, so its memory cannot have been reused."""
    if a is b:
        return not b.flags.writeable
    same_address = a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    return not b.flags.writeable and same_address and a.size == b.size and a.dtype == b.dtype


_flats: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], Flat]] = WeakKeyDictionary()


def flat_of(modules: Sequence[nn.Module], layout: Callable[[], str]) -> Flat | None:
    """The modules as one vector if they lie in one buffer (:func:`flatten`); None if they do not.

    Args:
        layout: returns the modules' layout. It is called only if the answer is not known from an earlier call.
    """
    if not modules:
        return None
    held: list[Tensor] = []
    for module in modules:
        _gather(module, held)
    known, key = _flats.setdefault(modules[0], {}), tuple(map(id, modules))
    if key in known and known[key].still(held):
        return known[key]
    known.pop(key, None)
    parameters, buffers = tensors_of(modules)
    tensors = [*parameters, *buffers]
    if (places := _places(tensors)) is None:
        return None
    pieces, ranges = places
    order = Order(layout(), sum(p.numel() for p in parameters), pieces)
    known[key] = Flat(order, tensors, ranges, held)
    return known[key]


def _places(tensors: Sequence[Tensor]) -> tuple[tuple[Piece, ...], list[tuple[int, int]]] | None:
    """(place of each tensor in a copy of the ranges, ranges of the storage that the tensors lie in); None if they do
    not lie in one storage as :func:`flatten` lays them. Tensors with only an alignment gap between them share a range.
    """
    if not tensors:
        return None
    storage = tensors[0].untyped_storage().data_ptr()
    if any(t.dtype != torch.float32 or t.untyped_storage().data_ptr() != storage for t in tensors):
        return None
    pieces: list[Piece] = []
    ranges: list[tuple[int, int]] = []
    start = 0
    for tensor in tensors:
        begins = int(tensor.storage_offset())
        if tensor.stride() != _dense_stride(tensor) or begins % ALIGNED:
            return None
        first, last = ranges[-1] if ranges else (begins, begins)
        if ranges and begins == -(-last // ALIGNED) * ALIGNED:
            start += begins - last
            ranges[-1] = first, begins + tensor.numel()
        else:
            ranges.append((begins, begins + tensor.numel()))
        pieces.append(Piece(tuple(tensor.shape), tensor.stride(), start))
        start += tensor.numel()
    return tuple(pieces), ranges
