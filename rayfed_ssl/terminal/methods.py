"""Prints a method, as lines or as JSON: what it is, transmits, needs and works with, and its keys."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.method import Method
from rayfed_ssl.settings.keys import Key, find, keys
from rayfed_ssl.terminal.keys import WIDTH
from rayfed_ssl.terminal.keys import explained as explained_keys

WORDS = 18  # width of the first column


@dataclass(frozen=True)
class Described:
    """A method and its keys: first the kind (``method.fedca``), then the keys of its block."""

    method: Method
    keys: Sequence[Key]

    @property
    def file(self) -> str:
        """The file that the method is written in, or its module's name if there is no file."""
        module = self.method.config.__module__
        return getattr(sys.modules[module], "__file__", None) or module

    def as_json(self) -> dict[str, Any]:
        """The entry of ``rayfed-ssl methods --json``, with what the method goes with, and its keys."""
        kind, *own = self.keys
        return {
            "name": self.method.name,
            **asdict(self.method.info),
            "description": kind.text,
            "objectives": list(self.method.objectives),
            "server_optimizer": self.method.optimizable,
            "fedbuff": self.method.buffered,
            "plugin": self.method.plugin is not None,
            "file": self.file,
            "keys": [key.as_json() for key in own],
        }

    def facts(self) -> Iterator[tuple[str, str]]:
        """The facts on the method: pairs of what a fact is about, and the fact."""
        info = self.method.info
        yield "from", info.paper
        yield "transmits", info.transmits
        yield "clients keep", "something from round to round" if info.stateful else "nothing from round to round"
        yield "encoders", "clients may differ (clients.encoders)" if info.heterogeneous else "the same for all clients"
        yield "public images", "used (data.public)" if info.public_data else "not used"
        first, *others = self.method.objectives
        yield "objectives", ", ".join([f"{first} (default)" if others else first, *others])
        not_for_it = "is not for it: its server has a step of its own"
        yield "server.optimizer", "may step towards the clients' mean" if self.method.optimizable else not_for_it
        yield "server.schedule", "sync or fedbuff" if self.method.buffered else "sync"
        if self.method.plugin is not None:
            yield "as a plug-in", f"plugins=[{{name: {self.method.name}}}] adds it to another method"
        yield "file", self.file


def explained(methods: Sequence[Method], as_json: bool = False) -> str:
    """The methods one after the other, or as JSON."""
    everything = keys(RunConfig)
    described = [Described(method, find(everything, f"method.{method.name}")) for method in methods]
    if as_json:
        return json.dumps([entry.as_json() for entry in described], indent=1)
    return "\n".join(_lines(described))


def _lines(described: Sequence[Described]) -> Iterator[str]:
    """What each method does, the facts, and its keys as ``rayfed-ssl config`` prints them."""
    for place, entry in enumerate(described):
        kind, *own = entry.keys
        if place:
            yield ""
        yield from explained_keys([kind])[:-1]
        yield ""
        for about, fact in entry.facts():
            first, further = f"    {about:<{WORDS}}", " " * (4 + WORDS)
            yield textwrap.fill(fact, WIDTH, initial_indent=first, subsequent_indent=further)
        if own:
            yield from ["", *explained_keys(own, heading=kind.when)]
