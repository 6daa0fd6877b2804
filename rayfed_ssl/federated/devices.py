"""How fast each client is: a pure function of (settings, seed, client).

Shape legend: N clients, by number, those without images included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.federated.system_files import column, read_table
from rayfed_ssl.settings.system import LogNormal, SystemConfig

QUANTITIES = ("seconds_per_image", "down_mbps", "up_mbps", "latency_s")
BYTES_PER_MEGABIT = 1e6 / 8


@dataclass(frozen=True)
class Devices:
    """Four (N,) float64 arrays. Bandwidths are bytes per second, infinite where transfers take no time."""

    seconds_per_image: np.ndarray
    down: np.ndarray
    up: np.ndarray
    latency: np.ndarray

    def seconds(self, client: int, down_bytes: int, images: int, up_bytes: int) -> float:
        """latency + bytes down / bandwidth + images * seconds per image + bytes up / bandwidth.

        Latency belongs to an exchange: it is 0 if nothing crosses.
        """
        latency = float(self.latency[client]) if down_bytes or up_bytes else 0.0
        work = images * float(self.seconds_per_image[client])
        return latency + down_bytes / float(self.down[client]) + work + up_bytes / float(self.up[client])


def make_devices(config: SystemConfig, seed: int, count: int) -> Devices:
    """The devices of ``count`` clients. Raises UserError for a file that does not describe each client once."""
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
    """Column -> (N,) values, from a file with the column client and some of the four quantities."""
    key = "system.devices"
    table = read_table(path, key)
    columns = [name for name in table.column_names if name != "client"]
    unknown = [name for name in columns if name not in QUANTITIES]
    if unknown or not columns:
        found = ", ".join(unknown) or "the client alone"
        raise UserError(f"{key}: found {found} in {path}; allowed columns: client, {', '.join(QUANTITIES)}")
    if twice := [name for name in columns if getattr(config, name) != SystemConfig.model_fields[name].default]:
        raise UserError(f"system.{twice[0]}: found a value beside the column of {path}; allowed: one of the two")
    clients = column(table, "client", path, key)
    rows = np.full(count, -1)
    for row, client in enumerate(clients):
        if client != int(client) or not 0 <= client < count or rows[int(client)] >= 0:
            raise UserError(f"{key}: found client {client:g} in row {row} of {path}; allowed: 0 to {count - 1}, once")
        rows[int(client)] = row
    if (rows < 0).any():
        raise UserError(f"{key}: found no row for client {int(np.argmin(rows))} in {path}; needs one per client")
    values = {name: column(table, name, path, key)[rows] for name in columns}
    for name, given in values.items():
        positive = name in ("down_mbps", "up_mbps")
        if (wrong := given <= 0 if positive else given < 0).any():
            client = int(np.argmax(wrong))
            least = "above 0" if positive else "at least 0"
            raise UserError(f"{key}: found {name} {given[client]:g} of client {client} in {path}; allowed: {least}")
    return values
