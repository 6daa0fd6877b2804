"""Weighted means that do not depend on who summed what, or in which order.

Integer addition is associative, float addition is not. So every value is multiplied by its (pre-normalised) weight,
converted to int64 fixed point with 2^-40 resolution, and summed as integers, wherever the clients ran: neither the
number of actors nor their order can change a bit of the mean.

Resolution: 2^-40 = 9.1e-13 absolute. Range: |value| < 2^21, checked, because a float that does not fit becomes a wrong
integer without a word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rayfed_ssl.base.weights import Weights

SCALE = 2.0**40
LIMIT = 2.0**21  # weights sum to 1, so partial sums stay below 2^61
BLOCK = 1 << 15  # values converted at a time: the temporaries stay in the cache

Value = np.ndarray | Weights


class NonFinite(ValueError):
    """A reply holds NaN, infinity, or a value outside the fixed-point range.

    ``largest`` is the largest magnitude among its finite values; NaN where there is none.
    """

    def __init__(self, text: str, values: np.ndarray) -> None:
        magnitudes = np.abs(values[np.isfinite(values)])
        self.largest = float(magnitudes.max()) if magnitudes.size else math.nan
        super().__init__(f"{text} (largest finite value {self.largest:.3g})")


class MixedArchitectures(ValueError):
    """A mean was asked over clients whose replies have different layouts."""


def to_fixed(weight: float, values: np.ndarray) -> np.ndarray:
    """``rint(weight * values * 2^40)`` as int64, block by block.

    Args:
        weight: the client's share, in [0, 1].
        values: floating array of any shape.
    Raises:
        NonFinite: some value is NaN, infinite, or at least 2^21 in magnitude.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(flat.size, np.int64)
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        if not np.abs(block).max(initial=0) < LIMIT:  # NaN compares false, too
            raise NonFinite("values of a mean must be finite and below 2^21 in magnitude", flat)
        out[start : start + BLOCK] = np.rint(np.multiply(block, weight * SCALE, dtype=np.float64))
    return out.reshape(values.shape)


class FixedPointSum:
    """A running weighted sum of named fields, exact and order-free. Two of them add with :meth:`merge`."""

    def __init__(self) -> None:
        self.weight = 0
        self.totals: dict[str, np.ndarray] = {}
        self.templates: dict[str, tuple[str, int] | None] = {}  # layout and parameter count of a Weights field

    def add(self, weight: float, fields: Mapping[str, Value]) -> None:
        """Add one client's fields with its pre-normalised weight."""
        part = FixedPointSum()
        part.weight = round(weight * SCALE)
        for name, value in fields.items():
            packed = isinstance(value, Weights)
            part.templates[name] = (value.layout, value.parameters) if isinstance(value, Weights) else None
            part.totals[name] = to_fixed(weight, value.vector if packed else np.asarray(value))  # type: ignore[union-attr]
        self.merge(part)

    def merge(self, other: FixedPointSum) -> None:
        """Add another sum. Raises MixedArchitectures where the fields differ in name, layout or shape."""
        if not self.totals:
            # A sum that came out of an object store is read-only: copied. Any other is taken over.
            self.totals = {k: total if total.flags.writeable else total.copy() for k, total in other.totals.items()}
            self.templates = dict(other.templates)
        else:
            for name in self.totals.keys() | other.totals.keys():
                mine, theirs = self.totals.get(name), other.totals.get(name)
                if (
                    mine is None
                    or theirs is None
                    or mine.shape != theirs.shape
                    or self.templates[name] != other.templates[name]
                ):
                    raise MixedArchitectures(
                        f"mean over different architectures: field '{name}' differs in layout or shape; "
                        "give all clients one architecture (clients.encoders), or use a method that allows several"
                    )
                mine += theirs
        self.weight += other.weight

    def mean(self) -> dict[str, Any]:
        """The weighted mean of every field: float32 arrays, or Weights where Weights went in."""
        if self.weight <= 0:
            raise ValueError("mean of nothing: no client replied")
        out: dict[str, Any] = {}
        for name, total in self.totals.items():
            value = (total / self.weight).astype(np.float32)
            template = self.templates[name]
            out[name] = value if template is None else Weights(template[0], value, template[1])
        return out
