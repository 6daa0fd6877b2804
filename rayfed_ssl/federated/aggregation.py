"""Weighted means that do not depend on how, or in which order, the sums were computed.

Integer addition is associative, float addition is not. So every value is multiplied by its (pre-normalised) weight,
converted to int64 fixed point with 2^-40 resolution, and summed as integers, wherever the clients ran: neither the
number of actors nor their order can change a bit of the mean.

Resolution: 2^-40 = 9.1e-13 absolute. Range: |value| < 2^21. This is checked, because a float that does not fit would
silently become a wrong integer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.base.flat import Order
from rayfed_ssl.base.weights import Resident, Weights

SCALE = 2.0**40
LIMIT = 2.0**21  # weights sum to 1, so partial sums stay below 2^61
BLOCK = 1 << 15  # values converted at a time: the temporaries stay in the cache
DEVICE_BLOCK = 1 << 22  # the same on a GPU, where a launch costs more than the memory
# Adding 1.5 * 2^52 to a float64 below 2^51 in magnitude rounds it half to even, and leaves the integer in the low bits.
MAGIC = 1.5 * 2.0**52
MAGIC_BITS = int(np.float64(MAGIC).view(np.int64))
MAGIC_LIMIT = 2.0**50

Value = np.ndarray | Weights


class NonFinite(ValueError):
    """A reply holds NaN, infinity, or a value outside the fixed-point range.

    ``largest`` is the largest magnitude among its finite values; NaN if it has no finite value.
    """

    def __init__(self, text: str, values: np.ndarray) -> None:
        magnitudes = np.abs(values[np.isfinite(values)])
        self.largest = float(magnitudes.max()) if magnitudes.size else math.nan
        told = f"largest finite value {self.largest:.3g}" if magnitudes.size else "no value is finite"
        super().__init__(f"{text} ({told})")


class MixedArchitectures(ValueError):
    """A mean was requested over clients whose replies have different layouts."""


def _largest(values: np.ndarray) -> float:
    """The largest magnitude; NaN if a value is NaN."""
    return max(-float(values.min()), float(values.max())) if values.size else 0.0


def _checked(largest: float, values: np.ndarray) -> float:
    if not largest < LIMIT:  # NaN compares false, too
        raise NonFinite("values of a mean must be finite and below 2^21 in magnitude", values)
    return largest


def _add_fixed(total: np.ndarray, values: np.ndarray, scale: float, largest: float) -> None:
    """``total += rint(scale * values)``, for (n,) int64 and floats of at most ``largest`` in magnitude."""
    small = largest * scale < MAGIC_LIMIT
    products = np.empty(min(BLOCK, values.size))
    integers = products.view(np.int64)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        product, integer = products[: block.size], integers[: block.size]
        product[...] = block
        product *= scale
        if small:
            product += MAGIC
            integer -= MAGIC_BITS
        else:
            integer = np.rint(product).astype(np.int64)
        total[start : start + BLOCK] += integer


def _add_fixed_on_device(total: Tensor, values: Tensor, scale: float) -> None:
    """:func:`_add_fixed` where a GPU holds the values."""
    for part, block in zip(torch.split(total, DEVICE_BLOCK), torch.split(values, DEVICE_BLOCK), strict=True):
        part += (block.double() * scale).round_().long()


class Template(NamedTuple):
    """The form of what is summed: an array's shape, or the layout of weights, and the order of the values."""

    shape: tuple[int, ...]
    layout: str | None = None
    parameters: int = 0
    order: Order | None = None  # of a buffer; None: of the vector

    @property
    def plain(self) -> Template:
        return self if self.order is None else Template((self.order.count,), self.layout, self.parameters)


class FixedPointSum:
    """A running weighted sum of named fields, exact and independent of the order. Two sums are added by :meth:`merge`.

    Sums of weights that still lie on a device are kept there, in the device's order, until they are read or sent.
    """

    def __init__(self) -> None:
        self.weight = 0
        self.totals: dict[str, np.ndarray | Tensor] = {}  # int64; a tensor where a GPU holds it
        self.templates: dict[str, Template] = {}

    def add(self, weight: float, fields: Mapping[str, Value]) -> None:
        """Add one client's fields with its pre-normalised weight: all of them, or none if one is refused.

        Raises:
            NonFinite: some value is NaN, infinite, or at least 2^21 in magnitude.
            MixedArchitectures: the fields differ from those of the sum in name, layout or shape.
        """
        values = {name: value if isinstance(value, Weights) else np.asarray(value) for name, value in fields.items()}
        largest = {name: _checked_field(value) for name, value in values.items()}
        templates = {name: _template(value) for name, value in values.items()}
        if not self.templates:
            self.templates = templates
            self.totals = {name: _zeros(values[name], template) for name, template in templates.items()}
        self._match(templates)
        for name, value in values.items():
            if templates[name].order != self.templates[name].order:
                self._make_plain(name)
            total = self.totals[name]
            if isinstance(value, Resident) and self.templates[name].order is not None:
                if isinstance(total, Tensor):
                    _add_fixed_on_device(total, value.buffer, weight * SCALE)
                    continue
                array = value.buffer.cpu().numpy()
            else:
                array = value.vector if isinstance(value, Weights) else value.reshape(-1)
            if isinstance(total, Tensor) or not total.flags.writeable:
                total = self.totals[name] = _host(total)
            _add_fixed(total.reshape(-1), array, weight * SCALE, largest[name])
        self.weight += round(weight * SCALE)

    def merge(self, other: FixedPointSum) -> None:
        """Add another sum. Raises MixedArchitectures if the fields differ in name, layout or shape."""
        if not self.totals:
            self.totals = dict(other.totals)  # taken over
            self.templates = dict(other.templates)
        else:
            self._match(other.templates)
            for name, theirs in other.totals.items():
                if self.templates[name].order != other.templates[name].order:
                    self._make_plain(name)
                    theirs = _plain(theirs, other.templates[name])
                mine = self.totals[name]
                if isinstance(mine, Tensor) != isinstance(theirs, Tensor):
                    mine, theirs = _host(mine), _host(theirs)
                if _read_only(mine):  # out of an object store
                    self.totals[name] = mine + theirs
                else:
                    mine += theirs
                    self.totals[name] = mine
        self.weight += other.weight

    def to_host(self) -> None:
        """Bring every total to the host, with weights in the order of their vector, so that the sum may leave the
        process.
        """
        for name in self.totals:
            self._make_plain(name)

    def __getstate__(self) -> dict[str, Any]:
        self.to_host()
        return self.__dict__

    def mean(self) -> dict[str, Any]:
        """The weighted mean of every field: float32 arrays, or Weights where Weights went in."""
        if self.weight <= 0:
            raise ValueError(f"mean: found weights that add up to {self.weight / SCALE:g}; must be above 0")
        out: dict[str, Any] = {}
        for name, total in self.totals.items():
            template = self.templates[name]
            value = _divided(total.cpu().numpy() if isinstance(total, Tensor) else total, self.weight)
            if template.order is not None:
                value = template.order.plain(torch.from_numpy(value)).numpy()
            out[name] = value if template.layout is None else Weights(template.layout, value, template.parameters)
        return out

    def must_match(self, other: FixedPointSum) -> None:
        """Raises MixedArchitectures where the fields differ in name, layout or shape."""
        self._match(other.templates)

    def _match(self, templates: Mapping[str, Template]) -> None:
        for name in self.templates.keys() | templates.keys():
            mine, theirs = self.templates.get(name), templates.get(name)
            if mine is not None and theirs is not None and mine.plain == theirs.plain:
                continue
            if mine is not None and theirs is not None and mine.layout is None and theirs.layout is None:
                raise MixedArchitectures(
                    f"mean of '{name}': found arrays of the shapes {mine.shape} and {theirs.shape}; must be of one "
                    "shape in all clients"
                )
            raise MixedArchitectures(
                f"mean over different architectures: field '{name}' differs in layout or shape; "
                "give all clients one architecture (clients.encoders), or use a method that allows several"
            )

    def _make_plain(self, name: str) -> None:
        self.totals[name] = _plain(self.totals[name], self.templates[name])
        self.templates[name] = self.templates[name].plain


def check_summable(fields: Mapping[str, Value]) -> None:
    """Raise NonFinite if a field cannot be summed. Called where the reply is made, so that the error is this
    client's.
    """
    for value in fields.values():
        _checked_field(value)


def _checked_field(value: Value) -> float:
    if isinstance(value, Resident):
        return value.largest if value.largest < LIMIT else _checked(value.largest, value.vector)
    array = value.vector if isinstance(value, Weights) else value
    return _checked(_largest(array), array)


def _template(value: Value) -> Template:
    if isinstance(value, Resident):
        return Template((value.order.extent,), value.layout, value.parameters, value.order)
    if isinstance(value, Weights):
        return Template(value.vector.shape, value.layout, value.parameters)
    return Template(value.shape)


def _zeros(value: Value, template: Template) -> np.ndarray | Tensor:
    if isinstance(value, Resident) and value.buffer.device.type != "cpu":
        return torch.zeros(template.shape, dtype=torch.int64, device=value.buffer.device)
    return np.zeros(template.shape, np.int64)


def _host(total: np.ndarray | Tensor) -> np.ndarray:
    """The total as a writable array."""
    if isinstance(total, Tensor):
        return total.cpu().numpy()
    return total if total.flags.writeable else total.copy()


def _plain(total: np.ndarray | Tensor, template: Template) -> np.ndarray:
    if template.order is None:
        return _host(total)
    on_device = total if isinstance(total, Tensor) else torch.from_numpy(total)
    return template.order.plain(on_device).cpu().numpy()


def _read_only(total: np.ndarray | Tensor) -> bool:
    return isinstance(total, np.ndarray) and not total.flags.writeable


def _divided(total: np.ndarray, weight: int) -> np.ndarray:
    """``float32(total / weight)``, block by block."""
    out = np.empty(total.shape, np.float32)
    into, flat = out.reshape(-1), total.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        into[start : start + BLOCK] = flat[start : start + BLOCK] / weight
    return out
