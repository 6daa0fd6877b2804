"""The communication ledger: it counts, in the cohort, what a real deployment would have sent.

Whatever Ray moved or copied does not matter here. A field is booked with the bytes of its arrays: weights as
``transport`` has them cross, other floating values at float32 or narrower, everything else as it is; Python scalars,
strings and None are free. An object that a client already received within this round, under whatever name, or that was
published to it once for the run, is not booked again. "The same object" means identity: a server that sends something
twice passes the same array twice, and never changes an array in place within a round.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict, runtime_checkable

import numpy as np
from torch import Tensor

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.settings.transport import FULL, Code, Direction

WIDEST = np.dtype(np.float32)


class Booking(NamedTuple):
    """One row of ``communication.parquet``."""

    round: int
    client: int
    direction: Direction
    operation: str
    field: str
    bytes: int


class LedgerState(TypedDict):
    """What a checkpoint keeps of a ledger; JSON values only."""

    up_bytes: int
    down_bytes: int
    published: dict[str, list[int]]


@runtime_checkable
class OnTheWire(Protocol):
    """A value that knows its size at float32, in parts: "" is the field itself, ".buffers" is booked in a separate
    row.
    """

    def wire_bytes(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class WireSize:
    """Stands for a value of which only the size is known: ``parts`` are what its ``wire_bytes`` would return."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def wire_bytes(self) -> dict[str, int]:
        return dict(self.parts)


def array_size(*shape: int, dtype: str = "float32") -> WireSize:
    """The size of an array of this shape and type, as it would be sent."""
    return WireSize({"": math.prod(shape) * _value_bytes(np.dtype(dtype))})


def array_bytes(array: np.ndarray | Tensor) -> int:
    """Bytes of an array as it would be sent: float64 as float32, everything else as it is."""
    if isinstance(array, np.ndarray):
        return array.size * _value_bytes(array.dtype)
    width = array.element_size()
    return array.numel() * (min(width, WIDEST.itemsize) if array.is_floating_point() else width)


def _value_bytes(dtype: np.dtype[Any]) -> int:
    """Bytes of one value of an array."""
    return min(dtype.itemsize, WIDEST.itemsize) if np.issubdtype(dtype, np.floating) else dtype.itemsize


def _arrays(value: object, field: str) -> Iterator[np.ndarray | Tensor | OnTheWire | bytes]:
    """Everything within ``value`` that has a size on the wire."""
    match value:
        case None | bool() | int() | float() | complex() | str() | np.generic():
            return
        case np.ndarray() | Weights() | Tensor() | bytes() | WireSize():
            yield value
        case list() | tuple() | AbstractSet():
            for item in value:
                yield from _arrays(item, field)
        case OnTheWire():  # the slow question comes late
            yield value
        case Mapping():
            for item in value.values():
                yield from _arrays(item, field)
        case _:
            raise TypeError(f"field '{field}' holds a {type(value).__name__}, whose size on the wire is not known")


def _parts(item: np.ndarray | Tensor | OnTheWire | bytes, code: Code) -> dict[str, int]:
    match item:
        case bytes():
            return {"": len(item)}
        case np.ndarray() | Tensor():
            return {"": array_bytes(item)}
        case Weights():
            return item.wire_bytes(code.size)
    return item.wire_bytes()


def sizes(fields: Mapping[str, object], code: Code = FULL) -> dict[str, int]:
    """Bytes of a message as it would be sent, by field; fields without an array are left out.

    Args:
        fields: arrays, tensors, values with ``wire_bytes()``, scalars, or nested lists and dicts of these.
        code: how weights are coded when they cross.

    Raises:
        TypeError: a field holds something whose size is not known.
    """
    booked: dict[str, int] = {}
    for field, value in fields.items():
        for item in _arrays(value, field):
            for suffix, count in _parts(item, code).items():
                if count:
                    booked[field + suffix] = booked.get(field + suffix, 0) + count
    return booked


class Ledger:
    """(round, client, direction, operation, field, bytes) of everything that was asked of clients.

    ``drain`` returns the rows since the last call; ``up_bytes`` and ``down_bytes`` are totals over the run. The ledger
    keeps no object alive: an object that a server made for one client and dropped is forgotten with it, and its address
    in memory may later belong to another object.
    """

    def __init__(self) -> None:
        self.up_bytes = 0
        self.down_bytes = 0
        self._round = 0
        self._rows: list[Booking] = []
        self._sent: dict[int, tuple[object, set[int]]] = {}  # id -> (weak reference, who was sent it in this round)
        self._public: dict[int, tuple[object, set[int]]] = {}  # id -> (published object, who has it)
        self._published: dict[str, set[int]] = {}  # name -> who has it
        self.code: Code = FULL  # of weights on their way down
        self.listener: Callable[[int, Direction, int], None] | None = None  # hears client, direction, bytes

    def begin_round(self, round: int) -> None:
        """Book to ``round`` from now on, and forget what was sent within the last one."""
        self._round = round
        self._sent = {}

    def book_down(self, client: int, operation: str, message: Mapping[str, object]) -> None:
        """Book the parts of ``message`` that the client does not have yet.

        Raises:
            TypeError: a field holds something whose size is not known.
        """
        for field, value in message.items():
            fresh = [item for item in _arrays(value, field) if self._first(item, client)]
            for name, count in sizes({field: fresh}, self.code).items():
                self._book(client, "down", operation, name, count)

    def book_up(self, client: int, operation: str, sizes: Mapping[str, int]) -> None:
        """Book a reply, measured by :func:`sizes` where it was made: the driver need not hold it."""
        for field, count in sizes.items():
            if count:
                self._book(client, "up", operation, field, count)

    def publish(self, clients: Iterable[int], name: str, value: object) -> None:
        """Book ``value`` to each client that was never sent ``name``; the same object is free in later messages.

        Publishing ``name`` again, as a resumed run does, is booked only for clients that do not have it yet.
        """
        everyone = set(clients)
        fresh = everyone - self._published.setdefault(name, set())
        measured = sizes({name: value}, self.code)
        for client in sorted(fresh):
            for field, count in measured.items():
                self._book(client, "down", "publish", field, count)
        self._published[name] |= fresh
        for item in _arrays(value, name):
            self._public.setdefault(id(item), (item, set()))[1].update(everyone)

    def drain(self) -> list[Booking]:
        """The rows since the last call."""
        rows, self._rows = self._rows, []
        return rows

    @property
    def state(self) -> LedgerState:
        """Totals, and which clients have what was published, for a checkpoint. Call ``drain`` first: rows are not part
        of it.
        """
        published = {name: sorted(clients) for name, clients in self._published.items()}
        return {"up_bytes": self.up_bytes, "down_bytes": self.down_bytes, "published": published}

    def restore(self, state: LedgerState) -> None:
        """Continue from a ledger's ``state``. Call this before anything is sent."""
        self.up_bytes, self.down_bytes = state["up_bytes"], state["down_bytes"]
        self._published = {name: set(clients) for name, clients in state["published"].items()}
        self._rows = []
        self._sent = {}

    def _first(self, item: object, client: int) -> bool:
        """Whether the client does not have ``item`` yet; from now on it has."""
        key = id(item)
        if key in self._public and client in self._public[key][1]:
            return False
        if key not in self._sent:
            self._sent[key] = (self._watched(item, key), set())
        clients = self._sent[key][1]
        first = client not in clients
        clients.add(client)
        return first

    def _watched(self, item: object, key: int) -> object:
        """A weak reference to ``item``, which makes the ledger forget it when it is deleted; the item itself if it
        allows none (bytes).
        """
        sent = self._sent
        try:
            return weakref.ref(item, lambda _: sent.pop(key, None))
        except TypeError:
            return item

    def _book(self, client: int, direction: Direction, operation: str, field: str, count: int) -> None:
        self._rows.append(Booking(self._round, client, direction, operation, field, count))
        if direction == "up":
            self.up_bytes += count
        else:
            self.down_bytes += count
        if self.listener is not None:
            self.listener(client, direction, count)
