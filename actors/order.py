"""The requests to a driver, and its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.shares import Plan
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.worker import Worker

OVER = ("done", "stopped", "failed")  # the statuses of an ``Update`` after which there is no other
RESTARTS = 4  # of the driver in a row, without a finished round in between
PAUSE_S = 2.0  # before the first of them; doubled before each further one where the command starts them


@dataclass(frozen=True)
class Update:
    """What happened to a driver's run since the last look."""

    process: str  # changes when the driver was restarted: its progress begins anew
    progress: list[Progress]
    through: int  # how many lines had been reported by then: the next look asks for those after them
    status: str  # waiting (something may still be refused) | running | done | stopped | failed
    result: Any = None  # the summary, or the exception


@dataclass(frozen=True)
class RunOrder:
    """A run to be driven."""

    config: RunConfig
    folder: Path
    resume: bool
    plan: Plan
    group: str  # name of the placement group, so that a restarted driver finds what its predecessor left
    argv: tuple[str, ...]
    cwd: str
    uri: str | None = None  # where the folder is copied to
    detached: bool = False
    successor: bool = False  # whether another driver of this run died
    factory: Callable[[RunConfig, Federation], Worker] = Worker
