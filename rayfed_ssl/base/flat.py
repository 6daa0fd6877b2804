"""Modules whose values lie in one buffer: parameters and floating buffers are views into it, so that taking the values
or giving them back is one copy.

The buffer follows the modules' memory format (channels-last kernels stay channels-last) and begins every tensor at a
multiple of 128 bytes. So it is not the flat vector that travels: an :class:`Order` leads from one to the other.

Shapes: P parameters, b buffer values, E values of the buffer, gaps included.
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

ALIGNED = 32  # float32 values: 128 bytes, what tensor cores want


class Piece(NamedTuple):
    """Where one tensor lies in a buffer."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    def of(self, buffer: Tensor) -> Tensor:
        """The tensor, as a view."""
        return buffer.as_strided(self.shape, self.stride, buffer.storage_offset() + self.start)


@dataclass(frozen=True)
class Order:
    """Where each value of the flat vector of a layout lies in a buffer."""

    layout: str
    parameters: int  # P
    pieces: tuple[Piece, ...]

    @cached_property
    def count(self) -> int:
        """P + b: values of the vector."""
        return sum(piece.values for piece in self.pieces)

    @cached_property
    def extent(self) -> int:
        """E: values of the buffer, gaps included."""
        return max((piece.start + piece.values for piece in self.pieces), default=0)

    def plain(self, buffer: Tensor) -> Tensor:
        """(E,) buffer -> (P + b,) vector of the same type, on the same device; a copy."""
        return torch.cat([piece.of(buffer).reshape(-1) for piece in self.pieces])

    def laid(self, vector: Tensor) -> Tensor:
        """(P + b,) vector -> (E,) buffer, gaps zero; a copy."""
        buffer = vector.new_zeros(self.extent)
        values = torch.split(vector, [piece.values for piece in self.pieces])
        for piece, value in zip(self.pieces, values, strict=True):
            piece.of(buffer).copy_(value.view(piece.shape))
        return buffer


def tensors_of(modules: Sequence[nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters, and floating buffers, of all modules in order."""
    parameters: list[Tensor] = [p for m in modules for p in m.parameters()]
    buffers = [b for m in modules for b in m.buffers() if b.is_floating_point()]
    return parameters, buffers


def _gather(module: nn.Module, held: list[Tensor]) -> None:
    """Everything a module holds, in some order of its own: many times faster than ``named_parameters``."""
    held += [t for t in module._parameters.values() if t is not None]
    held += [t for t in module._buffers.values() if t is not None]
    for child in module._modules.values():
        if child is not None:
            _gather(child, held)


def _dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor without holes that keeps this one's memory format."""
    return torch.empty_like(tensor, device="meta").stride()


@torch.no_grad()
def flatten(module: nn.Module) -> None:
    """Move a module's parameters and floating buffers into one buffer on their device; they become views into it.

    Values, strides and the identity of parameters stay. A module with values of another type than float32 stays as it
    is.
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
    """Modules that lie in one buffer, seen as one vector: the way in and out."""

    def __init__(self, order: Order, tensors: list[Tensor], ranges: list[tuple[int, int]], held: list[Tensor]) -> None:
        self.order = order
        self.held = held
        self.pointers = [tensor.data_ptr() for tensor in held]
        storage = tensors[0].untyped_storage()
        whole = torch.empty(0, dtype=torch.float32, device=tensors[0].device).set_(storage)
        self.ranges: list[Tensor] = [whole[start:stop] for start, stop in ranges]
        self._last: tuple[np.ndarray, Tensor] | None = None  # the vector loaded last, and the buffer it makes

    def still(self, held: list[Tensor]) -> bool:
        """Whether the modules hold these tensors where they were."""
        return (
            len(held) == len(self.held)
            and all(map(operator.is_, held, self.held))
            and self.pointers == [tensor.data_ptr() for tensor in held]
        )

    @torch.no_grad()
    def read(self) -> Tensor:
        """(E,) a copy of the values, on their device."""
        return self.ranges[0].clone() if len(self.ranges) == 1 else torch.cat(self.ranges)

    @torch.no_grad()
    def write(self, buffer: Tensor) -> None:
        """Load (E,) values."""
        for part, values in zip(self.ranges, torch.split(buffer, [len(part) for part in self.ranges]), strict=True):
            part.copy_(values)

    def laid(self, vector: np.ndarray) -> Tensor:
        """The buffer of a (P + b,) vector on the modules' device. What is asked for again, and nobody can have changed,
        is not made again: the round's model is laid out once, not once per client.
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
    """Whether both are the same read-only memory: ``a`` is held, so its memory is nobody else's."""
    if a is b:
        return not b.flags.writeable
    there = a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    return not b.flags.writeable and there and a.size == b.size and a.dtype == b.dtype


_flats: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], Flat]] = WeakKeyDictionary()


def flat_of(modules: Sequence[nn.Module], layout: Callable[[], str]) -> Flat | None:
    """The modules as one vector, where they lie in one buffer (:func:`flatten`); None where they do not."""
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
    if not (tensors := [*parameters, *buffers]):
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
    order = Order(layout(), sum(p.numel() for p in parameters), tuple(pieces))
    known[key] = Flat(order, tensors, ranges, held)
    return known[key]
