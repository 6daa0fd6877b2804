"""Builds the virtual clock of a run, and refuses wrong `system:` blocks before the first file is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.clock import Clock, WorkloadOf
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.messages import TRAINS, qualified
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.methods import METHODS

NAMED = 5  # clients that a line lists


def make_clock(
    config: RunConfig, federation: Federation, server: MethodServer[Any], plugins: Mapping[str, ServerPlugin[Any]]
) -> Clock | None:
    """The clock of a run with a `system:` block whose method reaches clients; else None.

    Raises:
        UserError: no round could get as many replies as the block wants.
    """
    if config.system is None or not server.reaches_clients:
        return None
    least, most = config.system.minimum_replies, config.participants(len(federation.clients))
    if config.server.schedule == "sync" and least > most:
        raise UserError(
            f"system.minimum_replies: found {least}, but a round wants {most} of {len(federation.clients)} clients; "
            f"allowed: 1 to {most}"
        )

    return Clock(config, config.system, federation.clients, workloads(server, plugins))


def workloads(server: MethodServer[Any], plugins: Mapping[str, ServerPlugin[Any]]) -> WorkloadOf:
    """The method's workload and, if the client trains, what the plug-ins add to it."""

    def workload_of(operation: str, client: int) -> Workload | None:
        work = server.workload(operation, client)
        if operation != TRAINS:
            return work
        for name, plugin in plugins.items():
            more = plugin.workload(client)
            if work is None or more is None:
                return None
            work += Workload(more.images, qualified(name, more.up), more.passes)
        return work

    return workload_of


def clock_notes(clock: Clock, config: RunConfig, server: MethodServer[Any]) -> list[str]:
    """Lines on virtual time to print before the first round. Raises UserError as :func:`check_reachable` does."""
    return [*check_reachable(clock, config), *server_time(config, server)]


def server_time(config: RunConfig, server: MethodServer[Any]) -> list[str]:
    """A line on how long the server's own work takes, if it takes virtual time."""
    if config.system is None or not (each := config.system.server_seconds_per_image):
        return []
    images, key = images_of_server(config, server), "system.server_seconds_per_image"
    if images is None:
        return [f"{key}: how many images the server of {config.method.name} reads is counted once it has read them"]
    if not images:
        return [f"{key}: the server of {config.method.name} reads no images, so its work takes no time"]
    return [f"{key}: the server reads {images} images in all rounds, which takes {images * each:g} virtual seconds"]


def images_of_server(config: RunConfig, server: MethodServer[Any]) -> int | None:
    """Images that the server's own work reads over the whole run if no client is lost; None: not known beforehand."""
    if METHODS[config.method.name].service is None:
        return 0
    rounds = 0 if config.server.schedule == "fedbuff" else config.train.rounds  # FedBuff stands in for them
    found = [server.server_images(t, server.asked(t) if t else ()) for t in range(rounds + 1)]
    return None if None in found else sum(images or 0 for images in found)


def check_reachable(clock: Clock, config: RunConfig) -> list[str]:
    """Lines that name the clients that can never be reached, or are always too late.

    Raises:
        UserError: these are all clients; the trace ends before the rounds can be over; or the configuration needs to
            know beforehand who would be late, and the method cannot say.
    """
    clients = clock.clients
    if not (clock.predicts or config.server.schedule == "fedbuff"):
        return []
    training = np.array([_training_seconds(clock, client) for client in clients.tolist()])
    stays = clock.availability.longest()[clients]
    never = clients[stays <= 0]
    short = clients[(stays > 0) & (training > stays)]
    deadline = math.inf if config.system is None or config.system.deadline_s is None else config.system.deadline_s
    late = clients[(stays > 0) & (training <= stays) & (training > deadline)]
    lines = [
        f"{_named(group)}: {why}"
        for group, why in (
            (never, "never available in system.availability.path, so never asked"),
            (short, "needs longer to train than it ever stays, so its reply never arrives"),
            (late, f"needs longer to train than system.deadline_s={deadline:g}, so its reply never arrives"),
        )
        if len(group)
    ]
    if len(never) + len(short) + len(late) == len(clients):
        raise UserError(f"system: found no client that could ever reply ({'; '.join(lines)})")
    least = float(training[(stays > 0) & (training <= np.minimum(stays, deadline))].min()) * config.train.rounds
    ends, rounds = clock.availability.ends(), config.train.rounds
    if config.server.schedule == "sync" and clock.now == 0 and least > ends:
        raise UserError(
            f"system.availability.path: found a trace that ends at {ends:g} s; {rounds} rounds take at least {least:g} "
            "s; allowed: a longer trace, or system.availability.repeat_s"
        )
    return lines


def _training_seconds(clock: Clock, client: int) -> float:
    """Seconds of a client's training if nothing is sent down."""
    work = clock.expected(TRAINS, client)
    return clock.devices.seconds(client, 0, work.images, work.up_bytes)


def _named(clients: np.ndarray) -> str:
    listed = ", ".join(str(client) for client in clients[:NAMED])
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return f"client{'s' if len(clients) > 1 else ''} {listed}{more}"
