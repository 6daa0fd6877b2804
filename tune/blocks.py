"""The blocks ``space`` and ``scheduler`` of a sweep's file: what may vary, and how trials end early."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rayfed_ssl.base.schema import Block

DIGITS = 6  # significant digits of a number drawn from a range
WIDEST = 1e308  # the largest distance between the ends of a range that numbers can be drawn from
INT64 = 2**63 - 1  # whole numbers that are drawn are smaller


class Dimension(Block):
    """The values that one key may have: exactly one of these is set. Ranges include both ends."""

    grid: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    """Values that are all tried."""
    choice: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    """Values that are drawn from."""
    uniform: tuple[float, float] | None = None
    """[low, high], both ends included."""
    loguniform: tuple[float, float] | None = None
    """[low, high] of positive numbers, uniform in the logarithm."""
    randint: tuple[int, int] | None = None
    """[low, high] of whole numbers, both ends included."""

    @model_validator(mode="before")
    @classmethod
    def _kind(cls, value: Any) -> Any:
        if not isinstance(value, Mapping | Dimension):
            example = f"{{grid: {json.dumps(value, default=str)}}}" if isinstance(value, list) else "{grid: [..]}"
            raise ValueError(f"must be {example}, or one of {', '.join(list(cls.model_fields)[1:])}")
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"must have exactly one of {', '.join(type(self).model_fields)}")
        if self.values is None:
            low, high = self.bounds
            if self.randint and max(-low, high) >= INT64:
                raise ValueError(f"randint: found [{low}, {high}]; must be numbers of 64 bits")
            if self.uniform and high - low > WIDEST:
                raise ValueError(f"uniform: found [{low:g}, {high:g}]; must be at most {WIDEST:g} apart")
            if not low < high or (self.loguniform and low <= 0):
                allowed = "[lower, higher], above 0" if self.loguniform else "[lower, higher]"
                raise ValueError(f"{given[0]}: found [{low:g}, {high:g}]; must be {allowed}")
        return self

    @property
    def values(self) -> tuple[Any, ...] | None:
        """The listed values (``grid`` or ``choice``); None for a range."""
        return self.grid or self.choice

    @property
    def bounds(self) -> tuple[float, float]:
        """The range (low, high), if the values are not listed."""
        low_high = self.uniform or self.loguniform or self.randint
        assert low_high is not None
        return low_high

    @property
    def extremes(self) -> tuple[Any, ...]:
        """The extreme values: if these are valid, all values are."""
        return self.values or self.bounds

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw one value: from those listed, or within the range."""
        if self.values is not None:
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.bounds
        if self.randint is not None:
            return int(rng.integers(int(low), int(high), endpoint=True))
        drawn = np.exp(rng.uniform(np.log(low), np.log(high))) if self.loguniform else rng.uniform(low, high)
        return self.within(drawn)

    def within(self, value: Any) -> Any:
        """The value of the key for what a search proposes. A listed value is taken as it is. A number is moved to the
        nearer end of the range if it lies outside, and rounded to a readable number of digits, unless that would leave
        the range.
        """
        if self.values is not None:
            return value
        low, high = self.bounds
        clipped = min(max(value, low), high)
        if self.randint is not None:
            return round(clipped)
        return min(max(float(f"{clipped:.{DIGITS}g}"), low), high)


class Fifo(Block):
    """Every trial runs to its last round."""

    name: Literal["none"] = "none"


class Asha(Block):
    """Asynchronous successive halving over the accuracies evaluated on the way (Li et al. 2020)."""

    name: Literal["asha"] = "asha"
    grace: Annotated[int, Field(ge=1)] = 1
    """Rounds before a trial may be stopped."""
    reduction: Annotated[float, Field(gt=1)] = 3.0
    """One of so many trials at a rung goes on."""


class Pbt(Block):
    """Population-based training (Jaderberg et al. 2017): the worst trials go on from a copy of the best, with changed
    keys.
    """

    name: Literal["pbt"] = "pbt"
    interval: Annotated[int, Field(ge=1)] = 1
    """Rounds between exchanges."""
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """Share of the trials that are the worst, and the best."""
    resample: Annotated[float, Field(ge=0, le=1)] = 0.25
    """How often a key is drawn anew, not multiplied by 0.8 or 1.2."""


Scheduler = Annotated[Fifo | Asha | Pbt, Field(discriminator="name")]
