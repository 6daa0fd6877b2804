"""Says when each client can be reached, and which are lost in mid-round: pure functions of (settings, seed, round,
client).

Shape legend: N clients, by number, those without images included; I intervals of a trace.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.federated.system_files import column, read_table
from rayfed_ssl.settings.system import AvailabilityConfig, Bernoulli, Trace


class Availability(Protocol):
    """Who can be reached when."""

    def reachable(self, round: int, now: float) -> np.ndarray:
        """(N,) bool: whether each client can be asked in this round at this time."""
        ...

    def until(self, client: int, now: float) -> float:
        """The time at which a client goes away; -inf if it is not reachable now."""
        ...

    def next_start(self, now: float, clients: np.ndarray) -> float | None:
        """The next time at which one of these clients becomes reachable; None if waiting brings none of them."""
        ...

    def ends(self) -> float:
        """The time up to which availability is known."""
        ...

    def longest(self) -> np.ndarray:
        """(N,) the longest stay of each client, in seconds; 0 for one that never comes."""
        ...


class Drawn:
    """Reachable with a probability, drawn for each round and client; nobody leaves in mid-round."""

    def __init__(self, seed: int, count: int, probability: float) -> None:
        self.seed, self.count, self.probability = seed, count, probability
        self.last: tuple[int, np.ndarray] | None = None  # a round and its draw: FedBuff asks at every arrival

    def reachable(self, round: int, now: float) -> np.ndarray:
        if self.last is None or self.last[0] != round:
            self.last = round, self._drawn(round)
        return self.last[1]

    def _drawn(self, round: int) -> np.ndarray:
        if self.probability >= 1:
            return np.ones(self.count, np.bool_)
        return numpy_generator(self.seed, round, "availability").random(self.count) < self.probability

    def until(self, client: int, now: float) -> float:
        return math.inf

    def next_start(self, now: float, clients: np.ndarray) -> float | None:
        return None

    def ends(self) -> float:
        return math.inf

    def longest(self) -> np.ndarray:
        return np.full(self.count, math.inf)


class Traced:
    """Reachable within intervals [start, end) of a trace, which repeats after ``repeat`` seconds, or ends.

    Args:
        clients, starts, ends: (I,) in any order; intervals of a client that touch or overlap are one.
    """

    def __init__(
        self, clients: np.ndarray, starts: np.ndarray, ends: np.ndarray, count: int, repeat: float | None
    ) -> None:
        self.count, self.repeat = count, repeat
        merged: list[list[float]] = []
        for row in np.lexsort((starts, clients)):
            client, start, end = float(clients[row]), float(starts[row]), float(ends[row])
            if merged and merged[-1][0] == client and start <= merged[-1][2]:
                merged[-1][2] = max(merged[-1][2], end)
            else:
                merged.append([client, start, end])
        table = np.array(merged, np.float64).reshape(-1, 3)
        self.clients, self.starts, self.stops = table[:, 0].astype(np.int64), table[:, 1], table[:, 2]
        self.first = np.searchsorted(self.clients, np.arange(count + 1))  # a client's rows: first[c] to first[c + 1]

    def reachable(self, round: int, now: float) -> np.ndarray:
        at = now % self.repeat if self.repeat else now
        found = np.zeros(self.count, np.bool_)
        found[self.clients[(self.starts <= at) & (at < self.stops)]] = True
        return found

    def until(self, client: int, now: float) -> float:
        base, at = (now - now % self.repeat, now % self.repeat) if self.repeat else (0.0, now)
        own = slice(self.first[client], self.first[client + 1])
        starts, stops = self.starts[own], self.stops[own]
        row = int(np.searchsorted(starts, at, side="right")) - 1  # the last that has begun; they do not overlap
        if row < 0 or at >= stops[row]:
            return -math.inf
        stop = float(stops[row])
        if stop == self.repeat and starts[0] == 0:  # and on into the next repetition
            return math.inf if stops[0] == self.repeat else self._not_before(base + self.repeat, float(stops[0]))
        return self._not_before(base, stop)

    def next_start(self, now: float, clients: np.ndarray) -> float | None:
        base, at = (now - now % self.repeat, now % self.repeat) if self.repeat else (0.0, now)
        starts = self.starts[np.isin(self.clients, clients)]
        later = starts[starts > at]
        if len(later):
            return self._not_before(base, float(later.min()))
        return self._not_before(base + self.repeat, float(starts.min())) if self.repeat and len(starts) else None

    def _not_before(self, base: float, moment: float) -> float:
        """``base + moment``, or the first float after it that ``now % repeat`` does not place before ``moment``: the
        sum may be rounded down, and a clock that stands there would wait for the same moment again.
        """
        found = base + moment
        while self.repeat and 0 < (moment - found % self.repeat) % self.repeat < self.repeat / 2:
            found = math.nextafter(found, math.inf)
        return found

    def ends(self) -> float:
        return math.inf if self.repeat else float(self.stops.max())

    def longest(self) -> np.ndarray:
        stays = np.zeros(self.count)
        for client, start, stop in zip(self.clients, self.starts, self.stops, strict=True):
            whole = self.repeat is not None and stop == self.repeat
            stay = self.until(int(client), float(start)) - start if whole else stop - start
            stays[client] = max(stays[client], stay)
        return stays


def make_availability(config: AvailabilityConfig, seed: int, count: int) -> Availability:
    """Who can be reached when. Raises UserError for a trace that says nothing, or something wrong."""
    if not isinstance(config, Trace):
        return Drawn(seed, count, config.probability if isinstance(config, Bernoulli) else 1.0)
    key, path = "system.availability.path", config.path
    table = read_table(path, key)
    clients, starts, ends = (column(table, name, path, key) for name in ("client", "start", "end"))
    if not len(clients):
        raise UserError(f"{key}: found no interval in {path}; needs rows of client, start, end")
    wrong = (clients != clients.round()) | (clients < 0) | (clients >= count) | (starts < 0) | (ends <= starts)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UserError(
            f"{key}: found client {clients[row]:g}, {starts[row]:g} to {ends[row]:g} in row {row} of {path}; allowed: "
            f"clients 0 to {count - 1}, 0 <= start < end"
        )
    if config.repeat_s is not None and ends.max() > config.repeat_s:
        raise UserError(
            f"system.availability.repeat_s: found {config.repeat_s:g}; {path} goes on to {ends.max():g} s; allowed: at "
            "least that"
        )
    return Traced(clients, starts, ends, count, config.repeat_s)


def drop_outs(probability: float, seed: int, round: int, count: int) -> np.ndarray:
    """(N,) bool: who is lost in mid-round if asked in this round."""
    if not probability:
        return np.zeros(count, np.bool_)
    return numpy_generator(seed, round, "drop-out").random(count) < probability
