"""Refuses a run, before it starts, if what it keeps of its clients between rounds does not fit into memory.

The estimate is an upper bound: the number of clients that can have taken part by the last round, times what each one's
state holds (its model if it keeps one, its momentum target, its optimiser's moments, the method's own arrays), plus one
more state for each client of a round, because old states stay until the new ones are committed. If ``transport.down``
is set, the server also remembers what it sent last, as sent and as received. Memory that does not depend on the number
of clients (images, a model per process) is not part of it.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import amount
from rayfed_ssl.base.weights import pack
from rayfed_ssl.config import RunConfig, sends_weights
from rayfed_ssl.federated.coding import RECENT
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.local_optimizer import moments_of
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.objectives.base import target_modules
from rayfed_ssl.settings.transport import FULL

MEMINFO = Path("/proc/meminfo")
CGROUPS = (  # limit, usage; beside them memory.stat says how much of the usage the kernel would give up
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


@dataclass(frozen=True)
class Estimate:
    """Bytes that stay from round to round."""

    clients: int  # that can have taken part by the last round
    again: int  # whose state exists twice for a moment: one round's
    state: float  # of one client, where clients' states lie
    bank: float  # of one client, at the server
    downloads: float = 0.0  # that the server remembers in both forms, until the next round


@dataclass(frozen=True)
class Room:
    """A place with room for this many bytes. The same place measured twice is one place."""

    name: str
    bytes: float = field(compare=False)


def estimate(config: RunConfig, federation: Federation) -> Estimate:
    """What this run would keep for its clients, as means over architectures and shards."""
    images = round(float(np.mean(federation.sizes[list(federation.clients)])))
    parts = [
        METHODS[name].footprint(config, images) for name in (config.method.name, *(p.name for p in config.plugins))
    ]
    models, state = sum(part.models for part in parts), float(sum(part.state for part in parts))
    server = METHODS[config.method.name].server(Setup(config, federation, InitialWeights(config, federation)))
    if server.reaches_clients:  # else the server alone trains, and no client keeps anything
        state += _of_training(config, federation, models)
    clients, rounds = len(federation.clients), range(1, config.train.rounds + 1)
    at_once = clients if any(map(server.asks_everybody, rounds)) else min(clients, config.cohort_size)
    reached = min(clients, at_once * config.train.rounds)
    downloads = _downloads(config, federation, at_once, server)
    return Estimate(reached, at_once, state, float(sum(part.bank for part in parts)), downloads)


def _of_training(config: RunConfig, federation: Federation, models: int) -> float:
    """Bytes that a client keeps for this number of models and from its training: the momentum target, the optimiser's
    moments and the objective's memory, if they last. A mean over architectures.
    """
    objective, state = build_objective(config.objective), 0.0
    kept = moments_of(config.train.optimizer) if config.train.optimizer.keep else 0
    if models or config.keeps_target or kept:
        initial = InitialWeights(config, federation)
        encoders = Counter(config.clients.encoder(client) for client in federation.clients)
        for encoder, count in encoders.items():
            followed = target_modules(initial.network(encoder), objective.target_heads) if config.keeps_target else ()
            each = (models + kept) * initial(encoder).vector.nbytes + pack(*followed).vector.nbytes
            state += each * count / len(federation.clients)
    if objective.keeps_memory:
        state += objective.memory_bytes(objective.memory_dim(config.model))
    return state


def _downloads(config: RunConfig, federation: Federation, at_once: int, server: MethodServer[Any]) -> float:
    """Bytes of the most downloads that the server remembers (:class:`Downloads`): the RECENT largest of a round, each
    as sent and as received. 0 if they are received as they were sent.

    If a message has a momentum target and no model, the target is that client's own, so a round has ``at_once`` of
    them. Otherwise the clients of one architecture are sent one model, under FedBuff one for each version that they
    started from, and perhaps a target beside it.
    """
    if config.transport.down == FULL or "down" not in sends_weights(config):
        return 0.0
    server.rehearse(2)  # no target comes down in round 1, in which it is a copy
    sent = server.sends(2, federation.clients[0], federation.clients) or {}
    initial, heads = InitialWeights(config, federation), build_objective(config.objective).target_heads
    encoders = Counter(config.clients.encoder(client) for client in federation.clients)
    models = {encoder: initial(encoder).vector.nbytes for encoder in encoders}
    targets = {encoder: pack(*target_modules(initial.network(encoder), heads)).vector.nbytes for encoder in encoders}
    if "target" in sent and "weights" not in sent:
        sizes = heapq.nlargest(at_once, (targets[encoder] for encoder in encoders.elements()))
    else:
        sizes = [size for size in models.values() for _ in range(_versions(config, len(federation.clients)))]
        sizes += targets.values() if "target" in sent else ()
    return 2.0 * sum(heapq.nlargest(RECENT, sizes))


def _versions(config: RunConfig, clients: int) -> int:
    """How many versions of the model the replies of one round can come from: those of clients at work when it began,
    and the newest.
    """
    server = config.server
    if server.schedule == "sync":
        return 1
    return min(server.buffer, (server.concurrency or config.participants(clients)) + 1, server.staleness_max + 1)


def check_fits(config: RunConfig, needed: Estimate, states: Room, banks: Room) -> None:
    """Refuse a run whose clients' states, or whose server's banks, do not fit into the place where they would be kept.

    Raises:
        UserError: it gives the sum, and how many clients would fit.
    """
    if needed.downloads > banks.bytes:
        raise UserError(
            f"transport.down: found {config.transport.down.name}, with which the server remembers "
            f"{amount(needed.downloads)} of what it sends in a round; {banks.name} has {amount(banks.bytes)}; allowed "
            "then: float32"
        )
    for place in {states, banks}:
        holds_states = place == states
        each = (needed.state if holds_states else 0.0) + (needed.bank if place == banks else 0.0)
        again = needed.state * needed.again if holds_states else 0.0
        downloads = needed.downloads if place == banks else 0.0
        if (total := each * needed.clients + again) > place.bytes - downloads:
            fits = int(max(place.bytes - downloads, 0.0) / (total / needed.clients))
            taken = f", {amount(downloads)} of it for downloads (transport.down)" if downloads else ""
            target = ", objective.target=reset" if config.keeps_target and holds_states else ""
            raise UserError(
                f"clients.count: found {config.clients.count}; {config.method.name} keeps {amount(each)} of each "
                f"client between rounds, {amount(total)} of the {needed.clients} that can take part; {place.name} has "
                f"{amount(place.bytes)}{taken}: at most {fits} clients (or a smaller "
                f"clients.encoders, more memory{target})"
            )


def free_memory() -> Room:
    """The free memory of this machine, or of the container that this process runs in."""
    free = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if MEMINFO.exists():
        lines = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
        free = float(lines["MemAvailable"].split()[0]) * 1024
    for limit, usage in CGROUPS:
        if limit.exists() and (most := limit.read_text().strip()) != "max":
            used = max(float(usage.read_text()) - _reclaimable(usage.with_name("memory.stat")), 0.0)
            free = min(free, float(most) - used)
    return Room("memory", free)


def _reclaimable(stat: Path) -> float:
    """Bytes of files' pages that have not been used for long. Version 1 of control groups counts those of nested groups
    under another name.
    """
    if not stat.exists():
        return 0.0
    values = dict(line.split() for line in stat.read_text().splitlines())
    return float(values.get("total_inactive_file", values.get("inactive_file", 0)))
