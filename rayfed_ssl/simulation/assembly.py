"""Builds the parts of a run before its first round: the server, the plug-ins' server halves, the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from rayfed_ssl.base.notes import Note, as_notes
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.clock import Clock
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS, plugin_halves
from rayfed_ssl.simulation.timing import clock_notes, make_clock


@dataclass(frozen=True)
class RunParts:
    """``plugins`` are by name; ``clock`` is None if no virtual time is kept."""

    server: MethodServer[Any]
    plugins: dict[str, ServerPlugin[Any]]
    clock: Clock | None

    def notes(self) -> list[Note]:
        """The notes of the method and its plug-ins before the first round."""
        return [*as_notes(self.server.notes()), *self.plugin_notes()]

    def plugin_notes(self) -> list[Note]:
        """The notes of the plug-ins alone."""
        return [note for plugin in self.plugins.values() for note in as_notes(plugin.notes())]


def assemble(config: RunConfig, federation: Federation, initial: Callable[[str], Weights]) -> RunParts:
    """The parts of a run before ``server.start``, or a checkpoint, gives them a state.

    Args:
        initial: the values that an architecture begins with.
    Raises:
        UserError: no round could get as many replies as ``system`` wants, or a file that it names cannot be used.
    """
    setup = Setup(config, federation, initial)
    plugins: dict[str, ServerPlugin[Any]] = {
        plugin.name: plugin_halves(plugin.name)[1](plugin, setup) for plugin in config.active_plugins
    }
    server: MethodServer[Any] = METHODS[config.method.name].server(setup)
    return RunParts(server, plugins, make_clock(config, federation, server, plugins))


def rehearse(config: RunConfig, federation: Federation) -> tuple[RunParts, list[str]]:
    """The parts of a run that is not started, and lines on what it begins with, which clients it never reaches, and how
    long its server works.

    Raises:
        UserError: what ``model.start`` names does not fit, or the run's ``system`` allows no round.
    """
    initial = InitialWeights(config, federation)
    lines = initial.notes()
    parts = assemble(config, federation, cache(initial.__call__))
    parts.server.rehearse(1)
    if parts.clock is not None:
        lines += clock_notes(parts.clock, config, parts.server)
    return parts, lines
