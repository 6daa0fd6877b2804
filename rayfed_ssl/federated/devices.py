"""How fast each client is, and when it can be reached: pure functions of (settings, seed, round, client).

Shape legend: N clients, by number, those without images included; I intervals of a trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.settings.system import AvailabilityConfig, Bernoulli, LogNormal, SystemConfig, Trace

QUANTITIES = ("seconds_per_image", "down_mbps", "up_mbps", "latency_s")
BYTES_PER_MEGABIT = 1e6 / 8


# -- speeds ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Devices:
    """Four (N,) float64 arrays. Bandwidths are bytes per second, infinite where transfers take no time."""

    seconds_per_image: np.ndarray
    down: np.ndarray
    up: np.ndarray
    latency: np.ndarray

    def seconds(self, client: int, down_bytes: int, images: int, up_bytes: int) -> float:
        """latency + bytes down / bandwidth + images * seconds per image + bytes up / bandwidth.

        The latency is that of an exchange: nothing where nothing crosses.
        """
        latency = float(self.latency[client]) if down_bytes or up_bytes else 0.0
        work = images * float(self.seconds_per_image[client])
        return latency + down_bytes / float(self.down[client]) + work + up_bytes / float(self.up[client])


def make_devices(config: SystemConfig, seed: int, count: int) -> Devices:
    """The devices of ``count`` clients. Raises UserError for a file that does not describe each of them once."""
    read = {} if config.devices is None else _read_devices(config, config.devices, count)

    def drawn(name: str) -> np.ndarray:
        given: float | LogNormal | None = getattr(config, name)
        if name in read:
            return read[name]
        if given is None:
            return np.full(count, math.inf)
        if isinstance(given, LogNormal):
            return given.median * np.exp(given.sigma * numpy_generator(seed, name).standard_normal(count))
        return np.full(count, float(given))

    seconds, down, up, latency = (drawn(name) for name in QUANTITIES)
    return Devices(seconds, down * BYTES_PER_MEGABIT, up * BYTES_PER_MEGABIT, latency)


def _read_devices(config: SystemConfig, path: Path, count: int) -> dict[str, np.ndarray]:
    """Column -> (N,) of a file with the columns client and some of the four quantities."""
    key = "system.devices"
    table = _read_table(path, key)
    columns = [name for name in table.column_names if name != "client"]
    unknown = [name for name in columns if name not in QUANTITIES]
    if unknown or not columns:
        found = ", ".join(unknown) or "the client alone"
        raise UserError(f"{key}: found {found} in {path}; allowed columns: client, {', '.join(QUANTITIES)}")
    if twice := [name for name in columns if getattr(config, name) != SystemConfig.model_fields[name].default]:
        raise UserError(f"system.{twice[0]}: found a value beside the column of {path}; allowed: one of the two")
    clients = _column(table, "client", path, key)
    rows = np.full(count, -1)
    for row, client in enumerate(clients):
        if client != int(client) or not 0 <= client < count or rows[int(client)] >= 0:
            raise UserError(f"{key}: found client {client:g} in row {row} of {path}; allowed: 0 to {count - 1}, once")
        rows[int(client)] = row
    if (rows < 0).any():
        raise UserError(f"{key}: found no row for client {int(np.argmin(rows))} in {path}; needs one per client")
    values = {name: _column(table, name, path, key)[rows] for name in columns}
    for name, column in values.items():
        positive = name in ("down_mbps", "up_mbps")
        if (wrong := column <= 0 if positive else column < 0).any():
            client = int(np.argmax(wrong))
            least = "above 0" if positive else "at least 0"
            raise UserError(f"{key}: found {name} {column[client]:g} of client {client} in {path}; allowed: {least}")
    return values


# -- availability ------------------------------------------------------------------------------------------------------


class Availability(Protocol):
    """Who can be reached when."""

    def reachable(self, round: int, now: float) -> np.ndarray:
        """(N,) bool: who can be asked in this round at this time."""
        ...

    def until(self, client: int, now: float) -> float:
        """The time at which a client goes away; -inf where it is not reachable now."""
        ...

    def next_start(self, now: float, clients: np.ndarray) -> float | None:
        """The next time at which one of these clients comes; None where time brings none of them."""
        ...

    def ends(self) -> float:
        """The time from which nothing is known."""
        ...

    def longest(self) -> np.ndarray:
        """(N,) the longest stay of each client, in seconds; 0 for one that never comes."""
        ...


class Drawn:
    """Reachable with a probability, drawn for each round and client; nobody leaves in mid-round."""

    def __init__(self, seed: int, count: int, probability: float) -> None:
        self.seed, self.count, self.probability = seed, count, probability

    def reachable(self, round: int, now: float) -> np.ndarray:
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

    def reachable(self, round: int, now: float) -> np.ndarray:
        at = now % self.repeat if self.repeat else now
        found = np.zeros(self.count, np.bool_)
        found[self.clients[(self.starts <= at) & (at < self.stops)]] = True
        return found

    def until(self, client: int, now: float) -> float:
        base, at = (now - now % self.repeat, now % self.repeat) if self.repeat else (0.0, now)
        own = self.clients == client
        starts, stops = self.starts[own], self.stops[own]
        around = (starts <= at) & (at < stops)
        if not around.any():
            return -math.inf
        stop = float(stops[around][0])
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
    table = _read_table(path, key)
    clients, starts, ends = (_column(table, name, path, key) for name in ("client", "start", "end"))
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


# -- files -------------------------------------------------------------------------------------------------------------


def _read_table(path: Path, key: str) -> pa.Table:
    try:
        return pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{key}: {path} cannot be read ({reason}); needs a Parquet or CSV file") from None


def _column(table: pa.Table, name: str, path: Path, key: str) -> np.ndarray:
    """A column of finite numbers as float64."""
    if name not in table.column_names:
        raise UserError(f"{key}: found no column {name} in {path}; it has {', '.join(table.column_names)}")
    try:
        values = np.asarray(table.column(name).cast(pa.float64()).to_numpy(), np.float64)
    except pa.ArrowException:
        raise UserError(f"{key}: found {table.column(name).type} in column {name} of {path}; needs numbers") from None
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise UserError(f"{key}: found {values[row]} in column {name}, row {row} of {path}; needs a finite number")
    return values
