"""The messages between a server and its clients, and between the round loop and the processes where clients run."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rayfed_ssl.base.text import last_line
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.aggregation import FixedPointSum

State = dict[str, Any]
Each = Callable[[int], Mapping[str, Any]]
SERVER = -1  # the client number under which heavy server work runs
TRAINS = "train"  # the operation plug-ins take part in


def qualified(plugin: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A plug-in's fields under the names with which they are sent: ``plugin.field``. Raises TypeError for what is no
    mapping.
    """
    if not isinstance(fields, Mapping):
        raise TypeError(
            f"plug-in {plugin}: found {type(fields).__name__} as fields to send; must be a dict, {{}} for none"
        )
    return {f"{plugin}.{name}": value for name, value in fields.items()}


def take_qualified(plugin: str, message: dict[str, Any]) -> dict[str, Any]:
    """Remove a plug-in's fields from a message or reply, and return them under their own names."""
    prefix = f"{plugin}."
    return {name.removeprefix(prefix): message.pop(name) for name in list(message) if name.startswith(prefix)}


def server_work(piece: str = "") -> str:
    """How an error's text names server work, with the piece if there are several."""
    return f"server work for piece {piece}" if piece else "server work"


@dataclass(frozen=True)
class OperationResult:
    """What one operation returns. ``reply`` would cross the wire. ``metrics``, ``images`` (how many source images the
    operation read) and ``compared_features`` (by protocol, the features by which its encoder is compared) are
    measurements of the simulator and would not.
    """

    client: int
    reply: dict[str, Any]
    metrics: dict[str, float]
    images: int = 0
    compared_features: Mapping[str, np.ndarray] = field(default_factory=dict)


class ClientError(RuntimeError):
    """A client's operation failed. The text names client, round, operation and place, and contains the original
    traceback. ``piece`` names one of several pieces of server work.
    """

    def __init__(self, client: int, round: int, operation: str, where: str, trace: str, piece: str = "") -> None:
        who = server_work(piece) if client == SERVER else f"client {client}"
        super().__init__(f"{who} failed in round {round}, operation '{operation}', {where}\n{trace}")
        self.client, self.round, self.operation, self.where, self.trace = client, round, operation, where, trace
        self.piece = piece

    def of_piece(self, piece: object) -> ClientError:
        """The same failure, attributed to this piece of server work."""
        return ClientError(self.client, self.round, self.operation, self.where, self.trace, str(piece))

    @property
    def reason(self) -> str:
        """The last line of the original error."""
        return last_line(self.trace)

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.client, self.round, self.operation, self.where, self.trace, self.piece)
        return ClientError, given, self.__dict__


class RoundVoid(Exception):
    """The round comes to nothing; the text says why."""


class Diverged(ClientError):
    """Training diverged: a reply, or an encoder's features, are not finite or too large to be averaged.

    The text is one line. ``largest`` is the largest finite magnitude found, NaN if there is none.
    """

    def __init__(
        self, client: int, round: int, operation: str, where: str, trace: str, largest: float, piece: str = ""
    ) -> None:
        super().__init__(client, round, operation, where, trace, piece)
        server = "the encoder" if operation == "evaluate" else server_work(piece)
        who = f"client {client}" if client != SERVER else server
        own = client == SERVER and operation != "evaluate"
        rate = "train.optimizer.lr, or method.lr if the method has one" if own else "train.optimizer.lr"
        self.args = (
            f"diverged in round {round}: {who}, {trace}; lower the learning rate ({rate}) or the weight of the loss "
            "term",
        )
        self.largest = largest

    def of_piece(self, piece: object) -> Diverged:
        return Diverged(self.client, self.round, self.operation, self.where, self.trace, self.largest, str(piece))

    def __reduce__(self) -> tuple[Any, ...]:
        return Diverged, (self.client, self.round, self.operation, self.where, self.trace, self.largest, self.piece)


class Start(NamedTuple):
    """Where in the run a client's work begins: ``round`` and ``visit`` are part of the seed of its random numbers.

    ``visit``: how often the client was asked for the same operation before in this round, if it replies more than once.
    For the server's work it is the ``call`` of :meth:`Cohort.serve` or :meth:`Cohort.serve_all`.
    """

    round: int
    visit: int = 0


def visit_address(visit: int) -> tuple[int, ...]:
    """What a visit (:class:`Start`) adds to the seed of random numbers: nothing for the first visit, 0."""
    return (visit,) if visit else ()


@dataclass(frozen=True)
class Task:
    """An operation that is asked of clients in a round, with the fields that are the same for every client."""

    operation: str
    round: int
    message: Mapping[str, Any]
    starts: Mapping[int, Start] = field(default_factory=dict)  # of clients whose work began in another round
    compare_clients: frozenset[int] = frozenset()  # clients whose encoders are compared once they have done it

    def start(self, client: int) -> Start:
        return self.starts.get(client, Start(self.round))


@dataclass(frozen=True)
class Averaging:
    """Which reply fields `mean` sums, and with what pre-normalised weight each client counts."""

    weights: Mapping[int, float]
    fields: tuple[str, ...]

    @classmethod
    def over(cls, clients: Sequence[int], counts: Mapping[int, float] | np.ndarray, fields: Sequence[str]) -> Averaging:
        """The averaging over these clients, weighted by their ``counts`` after normalisation. Raises ValueError if
        these sum to 0.
        """
        raw = np.array([counts[client] for client in clients], np.float64)
        if not (raw >= 0).all() or not 0 < raw.sum() < np.inf:
            raise ValueError(f"found the counts {raw.tolist()}; must be finite, none below 0 and one above")
        return cls(dict(zip(clients, (raw / raw.sum()).tolist(), strict=True)), tuple(fields))

    def of(self, clients: Sequence[int]) -> Averaging:
        """The part of this averaging for these clients."""
        return Averaging({c: self.weights[c] for c in clients}, self.fields)


@dataclass
class Chunk:
    """What came back for a few clients: their own replies, and, for `mean`, the sum of the averaged fields."""

    results: list[OperationResult] = field(default_factory=list)
    sizes: list[dict[str, int]] = field(default_factory=list)  # bytes of each client's whole reply, by field
    errors: list[ClientError] = field(default_factory=list)
    total: FixedPointSum | None = None


class Unread(abc.ABC):
    """Stands for a reply's value that is stored elsewhere until it is read."""

    nbytes: int

    @abc.abstractmethod
    def read(self) -> Any: ...


class Fields(Mapping[str, Any]):
    """A reply's values by name. Values that are stored elsewhere are read only when they are accessed: a server that
    passes ``fields`` on whole, for instance to :meth:`Cohort.serve`, never reads them.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.unread = values  # with an Unread for what lies elsewhere

    def __getitem__(self, name: str) -> Any:
        if name not in self.unread:
            raise KeyError(f"{name}: there is {', '.join(self.unread) or 'nothing'}")
        value = self.unread[name]
        return value.read() if isinstance(value, Unread) else value

    def __contains__(self, name: object) -> bool:
        return name in self.unread

    def __iter__(self) -> Iterator[str]:
        return iter(self.unread)

    def __len__(self) -> int:
        return len(self.unread)

    def __repr__(self) -> str:
        return f"Fields({self.unread!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # read: what it stands for may not lie where it is unpickled


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """``value`` with every x within its lists, tuples, dicts and replies' fields replaced by ``function(x)``; ``value``
    itself if no x changes.
    """
    new: Any
    if isinstance(value, Fields):
        return {name: mapped(x, function) for name, x in value.unread.items()}
    if type(value) is dict:
        new = {name: mapped(x, function) for name, x in value.items()}
        same = all(new[name] is x for name, x in value.items())
    elif type(value) in (list, tuple):
        new = type(value)(mapped(x, function) for x in value)
        same = all(a is b for a, b in zip(new, value, strict=True))
    else:
        return function(value)
    return value if same else new


def opened(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A message as an operation is given it: replies' fields within it become plain dicts, without being read."""
    return {name: mapped(value, lambda x: x) for name, value in fields.items()}


@dataclass(frozen=True)
class Reply:
    """What one client's operation returned, without plug-ins' fields and averaged fields."""

    client: int
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.fields:
            raise KeyError(f"{name}: client {self.client} replied with {', '.join(self.fields) or 'nothing else'}")
        return self.fields[name]


@dataclass(frozen=True)
class Mean:
    """The averaged fields by name, and the rest of each client's reply, in client order."""

    average: Mapping[str, Any]
    replies: Sequence[Reply]

    def __getitem__(self, name: str) -> Any:
        if name not in self.average:
            raise KeyError(f"{name}: the mean is of {', '.join(self.average)}; its `fields` say what is averaged")
        return self.average[name]


def freeze(value: Any) -> None:
    """Make every array inside read-only, as arrays from an object store are: writing to one fails."""
    if isinstance(value, Weights):
        value.vector.flags.writeable = False
    elif isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, Mapping):
        for item in value.values():
            freeze(item)
    elif isinstance(value, list | tuple):
        for item in value:
            freeze(item)


def copy_views(*states: State, published: Mapping[str, Any] | None = None) -> None:
    """Replace, in place, arrays that are views by copies in what servers keep. A reply's value is a view into the whole
    message, which stays in memory, in Ray's object store, as long as any view of it does.

    Args:
        published: values that stay as they are. They stay in memory anyway, and the ledger knows them by identity.
    """
    kept: dict[int, Any] = {}
    mapped(dict(published or {}), lambda value: kept.setdefault(id(value), value))
    copies: dict[int, tuple[Any, Any]] = {}  # id -> what was copied, and its copy: one of what stands in two places

    def once(value: Any, copy: Callable[[], Any]) -> Any:
        if id(value) not in copies:
            copies[id(value)] = value, copy()
        return copies[id(value)][1]

    def owned(value: Any) -> Any:
        if id(value) in kept:
            return value
        if isinstance(value, dict):
            for name, item in value.items():
                value[name] = owned(item)
        elif isinstance(value, list):
            value[:] = map(owned, value)
        elif type(value) is tuple:
            return tuple(map(owned, value))
        elif isinstance(value, np.ndarray) and not value.flags.owndata:
            return once(value, lambda: _copy(value))
        elif type(value) is Weights and not value.vector.flags.owndata:
            return once(value, lambda: value.with_vector(owned(value.vector)))
        return value

    for state in states:
        owned(state)


def _copy(array: np.ndarray) -> np.ndarray:
    """A copy in the same memory order, read-only if the array is."""
    copy = np.array(array)
    copy.flags.writeable = array.flags.writeable
    return copy
