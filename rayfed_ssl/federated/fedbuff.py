"""FedBuff: buffered asynchronous averaging (Nguyen et al. 2022, "Federated learning with buffered asynchronous
aggregation", Algorithm 1), on the virtual clock.

M clients are at work at any time. A client starts from the model of version v_k and replies when its own device is
done, tau = v - v_k updates later. Its difference is weighted by s = (1 + tau)^(-1/2). After K replies the server steps:
``theta += lr * sum_k s_k n_k (theta_k - theta_{v_k}) / sum_k n_k``, v += 1. A reply with tau above ``staleness_max`` is
not used. A free slot goes to the client that has been idle longest and can be reached. A round of the run is one server
update, so evaluation, checkpoints and records keep their meaning.

All that arrives at one instant is taken, in client order, before free slots start any client: with K = M = all
clients of equal speed every update is the synchronous mean, bit for bit. M = K = 1 is sequential training.

The time of a client's reply does not depend on weights. So a round first simulates its arrivals, and then trains the
clients that arrived, in parallel, each from the version it had started from: the number of actors changes no bit.

Differs: n_k as the method counts clients in its mean (``weights: uniform`` is the paper's sum / K). Buffers
(BatchNorm's running statistics) are the s_k n_k-weighted mean of the replies'. The learning rate's schedule goes by the
version that a client started from. All arrivals of one instant are taken before any client starts, instead of a start
after each of them.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.clock import Clock
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.messages import TRAINS, RoundVoid, Start
from rayfed_ssl.federated.server import MethodServer

PATIENCE = 1000  # losses in a row, and ten for each client, after which nobody is expected to reply any more


class Arrival(NamedTuple):
    """When a client at work replies, or is given up. Arrivals are sorted by (time, client)."""

    time: float  # virtual seconds
    client: int
    version: int  # that it started from
    visit: int  # how often it had started from that version before
    lost: bool  # it will not reply


class Attempt(NamedTuple):
    """How long a client will work, and whether its reply will be lost."""

    seconds: float
    lost: bool


class Slots:
    """Which clients are idle and which are at work, in virtual time. Holds no weights.

    Args:
        clients: in the order in which they start.
        concurrency: M.
    """

    def __init__(self, clients: Sequence[int], concurrency: int) -> None:
        self.idle = deque(clients)
        self.free = concurrency
        self.arrivals: list[Arrival] = []
        self.visits: Counter[int] = Counter()  # starts from the current version
        self.version = 0

    @property
    def state(self) -> dict[str, Any]:
        return {
            "idle": list(self.idle), "free": self.free, "flights": [list(arrival) for arrival in sorted(self.arrivals)],
            "visits": dict(self.visits), "version": self.version,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.idle, self.free, self.version = deque(state["idle"]), state["free"], state["version"]
        self.arrivals, self.visits = [Arrival(*arrival) for arrival in state["flights"]], Counter(state["visits"])

    def may_start(self, now: float) -> bool:
        """Whether a slot is free, a client is idle, and no other client arrives at this very instant."""
        arrives = bool(self.arrivals) and self.arrivals[0].time <= now
        return self.free > 0 and len(self.idle) > 0 and not arrives

    def start(self, now: float, reachable: Sequence[bool] | np.ndarray, begin: Callable[[int, int], Attempt]) -> None:
        """Fill the free slots, unless another client arrives at this very instant.

        Args:
            reachable: by client.
            begin: client, visit -> its attempt; called when the client starts.
        """
        if not self.may_start(now):
            return
        passed: list[int] = []
        while self.free and self.idle:
            client = self.idle.popleft()
            if not reachable[client]:
                passed.append(client)
                continue
            visit = self.visits[client]
            attempt = begin(client, visit)
            heapq.heappush(self.arrivals, Arrival(now + attempt.seconds, client, self.version, visit, attempt.lost))
            self.visits[client] += 1
            self.free -= 1
        self.idle.extendleft(reversed(passed))

    def pop_next_arrival(self) -> Arrival:
        """Take the next arrival: its slot becomes free, and its client idle."""
        arrival = heapq.heappop(self.arrivals)
        self.idle.append(arrival.client)
        self.free += 1
        return arrival

    def update(self) -> None:
        """Go to the next version."""
        self.version += 1
        self.visits.clear()

    def started_from(self) -> set[int]:
        """The versions from which clients at work started."""
        return {arrival.version for arrival in self.arrivals}


def staleness_weight(tau: int) -> float:
    """s = (1 + tau)^(-1/2)."""
    return float((1 + tau) ** -0.5)


@dataclass(frozen=True)
class Contribution:
    """The weight of one reply in an update."""

    version: int  # that it started from
    discount: float  # s, of its staleness
    share: float  # n

    @property
    def weight(self) -> float:
        """s n."""
        return self.discount * self.share


def stepped(
    current: np.ndarray, version: int, mean: np.ndarray, replies: Sequence[Contribution],
    anchors: Mapping[int, np.ndarray], lr: float, parameters: int | None = None,
) -> np.ndarray:  # fmt: skip
    """theta + lr * sum_k s_k n_k (theta_k - theta_{v_k}) / sum_k n_k, in float64.

    The terms are arranged so that with fresh replies and lr 1 the result is ``mean``, bit for bit.

    Args:
        current: theta (P,), of ``version``.
        mean: (P,) sum_k s_k n_k theta_k / sum_k s_k n_k.
        anchors: version -> theta (P,), of the older versions among ``replies``.
        parameters: how many of P are parameters, None: all; the others are buffers, whose new values are ``mean``.
    """
    whole = float(np.sum([reply.share for reply in replies]))

    def fraction(of: Iterable[Contribution]) -> float:
        """lr * sum s n of these replies / sum n of all."""
        return lr * (float(np.sum([reply.weight for reply in of])) / whole)

    new = fraction(replies) * mean.astype(np.float64)
    if (kept := 1.0 - fraction(r for r in replies if r.version == version)) != 0.0:
        new += kept * current.astype(np.float64)
    for old in sorted({reply.version for reply in replies} - {version}):
        new -= fraction(r for r in replies if r.version == old) * anchors[old].astype(np.float64)
    if parameters is not None:
        new[parameters:] = mean[parameters:]
    return new


class FedBuff:
    """The server's schedule: :meth:`round` stands in for the method's own."""

    def __init__(self, server: MethodServer[Any], clock: Clock) -> None:
        self.server, self.clock, self.config = server, clock, server.config.server
        clients = server.setup.clients
        self.slots = Slots(clients, self.config.concurrency or server.config.participants(len(clients)))
        self.buffer: list[Arrival] = []  # has replied, and not been used
        self.anchors: dict[int, Weights] = {}  # older versions that clients at work started from

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        buffer = [list(arrival) for arrival in self.buffer]
        return {"slots": self.slots.state, "buffer": buffer, "anchors": dict(self.anchors)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.slots.restore(state["slots"])
        self.anchors = dict(state["anchors"])
        self.buffer = [Arrival(*arrival) for arrival in state["buffer"]]

    def round(self, t: int, cohort: Cohort) -> None:
        """Wait for K replies, train the clients that gave them, and take a step.

        Raises:
            RoundVoid: no client is at work and none can be reached; or all clients whose replies were taken failed.
            UserError: no client replies, however often it is asked.
        """
        self.wait_for_replies(t, cohort)
        cohort.clients = tuple(sorted({arrival.client for arrival in self.buffer}))
        version, total, used, staleness = self.slots.version, FixedPointSum(), [], list[int]()
        contributions = {arrival: self.contribution(arrival) for arrival in self.buffer}
        weights = np.array([contribution.weight for contribution in contributions.values()], np.float64)
        normalised = dict(zip(contributions, (weights / weights.sum()).tolist(), strict=True))
        for wave in waves(self.buffer):
            starts = {client: Start(arrival.version + 1, arrival.visit) for client, arrival in wave.items()}
            for reply in cohort.take_up(TRAINS, starts, self.messages(wave)):
                arrival = wave[reply.client]
                total.add(normalised[arrival], {"weights": reply["weights"]})
                used.append(contributions[arrival])
                staleness.append(version - arrival.version)
        if not used:
            self.buffer = []  # as replies that were lost: the next update waits for others
        cohort.require(used)
        current, mean = self.server.weights, total.mean()["weights"]
        anchors = {v: weights.vector for v, weights in self.anchors.items()}
        vector = stepped(
            current.vector, version, mean.vector, used, anchors, self.config.lr, current.parameters
        ).astype(np.float32)
        self.server.metrics |= {"fedbuff/staleness": float(np.mean(staleness)), "fedbuff/version": version + 1.0}
        self.advance(current)
        self.server.weights = current.with_vector(vector)

    def messages(self, wave: Mapping[int, Arrival]) -> Callable[[int], dict[str, Any]]:
        """client -> what it was sent when it started."""
        return lambda client: {"weights": self.model(wave[client].version)}

    def model(self, version: int) -> Weights:
        """The global model of the current version, or of one that a client at work started from."""
        return self.server.weights if version == self.slots.version else self.anchors[version]

    def advance(self, current: Weights) -> None:
        """Go to the next version. Older models are kept only if clients still at work started from them."""
        self.anchors[self.slots.version] = current
        self.slots.update()
        self.buffer = []
        self.anchors = {v: self.anchors[v] for v in sorted(self.slots.started_from())}

    def contribution(self, arrival: Arrival) -> Contribution:
        """How this reply counts in the next update."""
        by = self.server.counts([arrival.client])
        share = float(self.server.setup.shares[arrival.client]) if by is None else by[arrival.client]
        return Contribution(arrival.version, staleness_weight(self.slots.version - arrival.version), share)

    # -- virtual time --------------------------------------------------------------------------------------------------

    def wait_for_replies(self, t: int, cohort: Cohort) -> None:
        """Simulate starts and arrivals until the buffer holds K replies."""
        clock, slots, lost = self.clock, self.slots, 0
        clock.begin_round(t)
        while len(self.buffer) < self.config.buffer:
            if slots.may_start(clock.now):
                slots.start(clock.now, clock.availability.reachable(t, clock.now), partial(self.begin, cohort))
            if not slots.arrivals:
                clock.wait()
                raise RoundVoid("nobody can be reached")
            arrival = slots.pop_next_arrival()
            clock.now = arrival.time
            if arrival.lost:
                clock.reply_counts["lost"] += 1
                lost += 1
                if lost > PATIENCE + 10 * len(self.server.setup.clients):
                    raise UserError(
                        f"system: {lost} starts in a row gave no reply: every client leaves, drops out or misses the "
                        "deadline first; raise system.deadline_s, or check system.availability and system.drop_out"
                    )
            elif slots.version - arrival.version > self.config.staleness_max:
                clock.reply_counts["stale"] += 1
                cohort.ledger.book_up(arrival.client, TRAINS, clock.expected(TRAINS, arrival.client).up)
            else:
                self.buffer.append(arrival)
                lost = 0

    def begin(self, cohort: Cohort, client: int, visit: int) -> Attempt:
        """Send a client the current model."""
        clock, system = self.clock, self.clock.system
        cohort.send(TRAINS, client, weights=self.server.weights)
        seconds = clock.seconds(client, clock.expected(TRAINS, client))
        clock.sent.pop(client, None)
        clock.reply_counts["asked"] += 1
        stays = clock.availability.until(client, clock.now) - clock.now
        limit = min(stays, math.inf if system.deadline_s is None else system.deadline_s)
        lost = seconds > limit or self.drops_out(client, visit)
        return Attempt(min(seconds, limit), lost)

    def drops_out(self, client: int, visit: int) -> bool:
        """Whether a client drops out of this attempt, however long it takes."""
        seed, probability = self.clock.settings.seed, self.clock.system.drop_out
        address = (seed, self.slots.version, client, visit, "drop-out")
        return probability > 0 and bool(numpy_generator(*address).random() < probability)


def waves(arrivals: Iterable[Arrival]) -> list[dict[int, Arrival]]:
    """The arrivals in groups that can run in parallel: the n-th group holds the n-th reply of each client."""
    groups: list[dict[int, Arrival]] = []
    seen: Counter[int] = Counter()
    for arrival in arrivals:
        if seen[arrival.client] == len(groups):
            groups.append({})
        groups[seen[arrival.client]][arrival.client] = arrival
        seen[arrival.client] += 1
    return [dict(sorted(group.items())) for group in groups]
