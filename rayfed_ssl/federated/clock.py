"""The virtual clock: how long rounds would have taken on the clients' devices, and which clients would have been lost.

An exchange begins when the server asks, and takes each client ``latency + bytes down / bandwidth + images * seconds per
image + bytes up / bandwidth``: the images it reads, the bytes the ledger books. It closes with the last reply that is
wanted, at the deadline, or when all clients that can reply have replied. A round takes the sum of its exchanges, each
with a barrier, and of the server's own work (``Cohort.serve``): the images it reads times the server's seconds per
image. The server is one machine, so the time of work in pieces (``Cohort.serve_all``) adds up. Server work makes no
reply late, so its time is added afterwards.

Which clients reply is decided before any client trains: for a client that would be too late, or lost in mid-round, the
message is booked, and no work is done here. So images and bytes have to be known beforehand (``workload``), and the
prediction is compared with what then happened. If no client can be late, nothing is predicted, and any method will do.

Events are in the order of (time, client number). The clock is float64 seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.availability import Availability, drop_outs, make_availability
from rayfed_ssl.federated.devices import Devices, make_devices
from rayfed_ssl.federated.messages import SERVER, OperationResult, RoundVoid
from rayfed_ssl.federated.sampling import selected
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.settings.run import RunSettings
from rayfed_ssl.settings.system import SystemConfig, Trace
from rayfed_ssl.settings.transport import Direction

WorkloadOf = Callable[[str, int], Workload | None]  # operation, client -> its cost; None: known only afterwards
ROUNDING = 1e-9  # 10 * 1.1 is 11.000000000000002: not twelve clients


class ExchangeEnd(NamedTuple):
    """How an exchange ended: seconds since it began, and the clients that had replied by then, in client order."""

    seconds: float
    replied: tuple[int, ...]


def exchange_end(
    times: Mapping[int, float], valid: frozenset[int] | set[int], wanted: int, deadline: float | None = None
) -> ExchangeEnd:
    """The end of an exchange.

    Args:
        times: client -> seconds until its reply would arrive, for every client asked.
        valid: the clients that are not lost before that.
        wanted: the number of replies after which no client is waited for.
        deadline: in seconds; a reply at exactly that time counts.
    """
    limit = math.inf if deadline is None else deadline
    in_order = sorted((times[client], client) for client in valid)
    in_time = [(at, client) for at, client in in_order if at <= limit][:wanted]
    replied = tuple(sorted(client for _, client in in_time))
    if replied and len(in_time) in (wanted, len(in_order)):
        return ExchangeEnd(in_time[-1][0], replied)
    if deadline is not None:
        return ExchangeEnd(deadline, replied)
    return ExchangeEnd(max(times.values(), default=0.0), replied)  # nobody: given up when the last one could have


@dataclass
class Exchange:
    """One exchange under way."""

    operation: str
    replying: tuple[int, ...]  # who will be run, in client order
    lost: tuple[int, ...]
    expected: dict[int, Workload] = field(default_factory=dict)  # of those replying, where it was predicted
    seconds: float | None = None  # where it was predicted
    images: dict[int, int] = field(default_factory=dict)  # that each client read which has replied


class Clock:
    """Virtual seconds since the start, and how many clients were asked, late or lost in the current round.

    Args:
        clients: those that take part in the run.
        workload_of: what an operation will cost a client.
    """

    def __init__(
        self, settings: RunSettings, system: SystemConfig, clients: Sequence[int], workload_of: WorkloadOf
    ) -> None:
        count = settings.clients.count
        self.settings, self.system, self.clients, self.workload_of = settings, system, np.array(clients), workload_of
        self.devices: Devices = make_devices(system, settings.seed, count)
        self.availability: Availability = make_availability(system.availability, settings.seed, count)
        self.now = 0.0
        self.server_s = 0.0  # of that, in which the server worked
        self.sent: Counter[int] = Counter()  # client -> bytes on their way down that no exchange has counted yet
        self.received: Counter[int] = Counter()  # client -> bytes up of the current exchange
        self.reply_counts: Counter[str] = Counter()  # this round's asked, late, dropped_out, gone; FedBuff: lost, stale
        self.wanted = len(clients)  # replies of this round; before the first one, all
        self.dropping: frozenset[int] = frozenset()

    @property
    def predicts(self) -> bool:
        """Whether a client that is asked may be too late, so that times have to be known beforehand."""
        system = self.system
        late = system.deadline_s is not None or self.settings.participation.over > 1
        return late or isinstance(system.availability, Trace) or system.minimum_replies > 1

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"now": self.now, "server_s": self.server_s, "sent": dict(self.sent)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.now, self.server_s, self.sent = float(state["now"]), float(state["server_s"]), Counter(state["sent"])

    def hear(self, client: int, direction: Direction, count: int) -> None:
        """Note that the ledger booked ``count`` bytes to or from a client."""
        (self.sent if direction == "down" else self.received)[client] += count

    # -- a round -------------------------------------------------------------------------------------------------------

    def begin_round(self, t: int) -> None:
        """Begin a round: counts of late and lost clients are 0 again. Raises UserError where the trace has ended."""
        self.reply_counts, self.dropping = Counter(), frozenset()
        if self.now >= self.availability.ends():
            raise UserError(
                f"system.availability.path: found a trace that ends at {self.availability.ends():g} s; round {t} "
                f"begins at {self.now:g} s; allowed: a longer trace, or system.availability.repeat_s"
            )

    def select(self, t: int, wanted: int, own: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The clients asked in round t: ceil(wanted * participation.over) of those that can be reached now, drawn
        uniformly without replacement.

        Args:
            own: the clients that a method with a draw of its own asks; of these, all that can be reached.
        Raises:
            RoundVoid: no client can be reached. The server waits until one can be, if that time is known, else for the
                deadline, if there is one.
        """
        self.begin_round(t)
        reachable = self.availability.reachable(t, self.now)
        present = self.clients[reachable[self.clients]]
        if own is not None:
            present = np.array([client for client in own if reachable[client]], dtype=np.int64)
            wanted = len(present)
        if not len(present):
            self.wait()
            raise RoundVoid("nobody can be reached")
        seed, over = self.settings.seed, self.settings.participation.over
        most = math.ceil(wanted * over - ROUNDING)
        asked = tuple(present.tolist()) if own is not None else selected(present, most, seed, t, "cohort")
        drops = drop_outs(self.system.drop_out, seed, t, len(reachable))
        self.wanted, self.dropping = wanted, frozenset(client for client in asked if drops[client])
        self.reply_counts["asked"] = len(asked)
        return asked

    def wait(self) -> None:
        """Let time pass while none of the participating clients can be reached."""
        upcoming = self.availability.next_start(self.now, self.clients)
        if upcoming is not None:
            self.now = upcoming
        elif math.isfinite(self.availability.ends()):
            self.now = self.availability.ends()
        else:
            self.now += self.system.deadline_s or 0.0

    # -- an exchange ---------------------------------------------------------------------------------------------------

    def begin(self, operation: str, asked: Sequence[int], everybody: bool, send: Callable[[int], object]) -> Exchange:
        """Decide which of the clients asked reply.

        Args:
            everybody: whether all of the round's clients are asked; then no more replies are awaited than are wanted.
            send: books a client's message; called here for clients that do not reply, and for all clients if replies
                are predicted.
        """
        self.received.clear()
        lost = tuple(client for client in asked if client in self.dropping)
        if not self.predicts:
            for client in lost:
                send(client)
            self.reply_counts["dropped_out"] += len(lost)
            return Exchange(operation, tuple(client for client in asked if client not in self.dropping), lost)
        times: dict[int, float] = {}
        expected: dict[int, Workload] = {}
        for client in asked:
            send(client)
            expected[client] = self.expected(operation, client)
            times[client] = self.seconds(client, expected[client])
        staying = {c for c in asked if self.availability.until(c, self.now) >= self.now + times[c]}
        valid = staying - self.dropping
        end = exchange_end(times, valid, self.wanted if everybody else len(asked), self.system.deadline_s)
        self.reply_counts["dropped_out"] += len(lost)
        self.reply_counts["gone"] += len(asked) - len(lost) - len(valid)
        self.reply_counts["late"] += len(valid) - len(end.replied)
        replied = set(end.replied)
        gone = tuple(client for client in asked if client not in replied)
        return Exchange(operation, end.replied, gone, {c: expected[c] for c in end.replied}, end.seconds)

    def replied(self, exchange: Exchange, result: OperationResult, booked: Mapping[str, int]) -> None:
        """Note what a client did. Raises RuntimeError if that is not what was predicted."""
        if result.client == SERVER:
            return
        exchange.images[result.client] = result.images
        if (predicted := exchange.expected.get(result.client)) is not None:
            check_prediction(self.settings.method.name, exchange.operation, predicted, result, booked)

    def end(self, exchange: Exchange) -> None:
        """Let the time of an exchange pass."""
        seconds = exchange.seconds
        if seconds is None:
            done = {c: Workload(images, {"": self.received[c]}) for c, images in exchange.images.items()}
            if not done:  # all were lost: given up when the last one could have replied
                known = {c: self.workload_of(exchange.operation, c) for c in exchange.lost}
                done = {c: work or Workload(0) for c, work in known.items()}
            seconds = max((self.seconds(c, work) for c, work in done.items()), default=0.0)
        self.now += seconds
        for client in (*exchange.replying, *exchange.lost):
            self.sent.pop(client, None)

    def served(self, images: int) -> None:
        """Let the time pass that the server's own work takes for this number of images."""
        seconds = images * self.system.server_seconds_per_image
        self.now += seconds
        self.server_s += seconds

    def expected(self, operation: str, client: int) -> Workload:
        """The predicted cost of the operation. Raises UserError if the method does not know it."""
        found = self.workload_of(operation, client)
        if found is None:
            raise UserError(self.unpredictable(operation))
        return found

    def unpredictable(self, operation: str) -> str:
        """The line that refuses a method which does not know its workload beforehand."""
        system = self.system
        keys = {
            "system.deadline_s": system.deadline_s is not None,
            "participation.over": self.settings.participation.over > 1,
            "system.availability": isinstance(system.availability, Trace),
            "system.minimum_replies": system.minimum_replies > 1,
            "server.schedule": self.settings.server.schedule != "sync",
        }
        return (
            f"{next(key for key, used in keys.items() if used)}: {self.settings.method.name} does not know beforehand "
            f"what '{operation}' costs a client, and so not who would be late; allowed with it: no deadline, no "
            "over-selection, minimum_replies 1, availability always or bernoulli"
        )

    def seconds(self, client: int, work: Workload) -> float:
        """Seconds from now to the client's reply, including the download of its message."""
        return self.devices.seconds(client, self.sent[client], work.images, work.up_bytes)


def check_prediction(
    method: str, operation: str, predicted: Workload, result: OperationResult, booked: Mapping[str, int]
) -> None:
    """Raise RuntimeError if an operation's cost differs from the workload that its time was computed from."""
    did = Workload(result.images, dict(booked))
    if did != Workload(predicted.images, dict(predicted.up)):
        raise RuntimeError(
            f"{method}: '{operation}' of client {result.client} was predicted to cost {predicted}, and cost {did}: "
            "its server's `workload` is wrong"
        )
