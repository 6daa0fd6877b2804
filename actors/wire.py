"""What is sent between a cohort and its client actors: requests, results, and stand-ins for values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.messages import Averaging, Chunk, Start, State


def item(value: Any, index: Any) -> Any:
    """The item at ``index`` of a list or a dict; None: the object itself."""
    return value if index is None else value[index]


@dataclass(frozen=True)
class ArgRef:
    """Stands for a value of the call: its argument number ``index``, or item ``within`` of that argument."""

    index: int
    within: Any = None

    def of(self, values: Sequence[Any]) -> Any:
        """The value.

        Args:
            values: the call's arguments, which Ray has fetched.
        """
        return item(values[self.index], self.within)


@dataclass(frozen=True)
class OmittedValue:
    """Stands for a large value of a reply. The call returns all of them as one dict by ``key``, as another value."""

    key: tuple[int, str]  # the client and the field
    nbytes: int


class StateReturn(Enum):
    """How a call returns the new states of its clients."""

    WITHIN = "within"  # its first return value, where there are hardly any
    APART = "apart"  # a return value each
    TOGETHER = "together"  # one return value, a list

    def returns(self, clients: int) -> int:
        """The number of return values that states take."""
        return {StateReturn.WITHIN: 0, StateReturn.APART: clients, StateReturn.TOGETHER: 1}[self]


@dataclass(frozen=True)
class Work:
    """What one call asks: an operation of a round for a few clients. Large values are further arguments of the call."""

    operation: str
    round: int
    message: Mapping[str, Any]
    clients: tuple[int, ...]
    own: tuple[Mapping[str, Any], ...]
    averaging: Averaging | None
    starts: Mapping[int, Start] = field(default_factory=dict)
    compare_clients: frozenset[int] = frozenset()
    states: tuple[ArgRef | None, ...] = ()  # each client's
    state_return: StateReturn = StateReturn.APART
    omits: bool = False  # whether large values of the replies are returned apart
    exchange: str | None = None  # whose running sum takes the averaged fields; None: the chunk has a sum of its own
    tag: int = 0  # of this call within the exchange
    hands_over: bool = False  # whether the running sum is returned with it


@dataclass(frozen=True)
class SumHeader:
    """A partial sum without its totals, which the actor returns separately."""

    tags: tuple[int, ...]  # the calls it holds
    total: FixedPointSum  # with no totals
    nbytes: int  # of the totals


@dataclass(frozen=True)
class ChunkResult:
    """The first return value of :meth:`actors.client.ClientActor.chunk`."""

    chunk: Chunk
    has_state: list[bool]  # which clients have a new state
    state_return: StateReturn  # where those states are
    states: list[State | None]  # where they are within
    sum_header: SumHeader | None  # where the call hands over
