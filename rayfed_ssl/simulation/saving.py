"""A run's checkpoints: when they are written (after so many rounds, or minutes), and what the loop keeps in them. No
result depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rayfed_ssl.base.text import first_line
from rayfed_ssl.data.images import Images
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.settings.blocks import CheckpointConfig
from rayfed_ssl.settings.run import due
from rayfed_ssl.storage import checkpoint

PUBLIC = "the public images of the run"  # stands for them in a checkpoint: a resumed run reads them again


class Restorable(Protocol):
    """A part of a run that has a state from round to round: the ledger, the virtual clock, .."""

    @property
    def state(self) -> Any:
        """Its state in a checkpoint, of types that ``storage.checkpoint`` can write."""

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint's ``state``."""


class Saving:
    """The checkpoints of a run of ``rounds`` rounds, in the folder ``root``."""

    def __init__(self, config: CheckpointConfig, root: Path, rounds: int) -> None:
        self.config, self.root, self.rounds = config, root, rounds
        self.round = -1  # of the newest checkpoint that is known to be intact
        self.at = time.monotonic()  # when it was written; at first, when the run began or was resumed

    def due(self, t: int) -> bool:
        """Whether round t is saved: every ``every`` rounds, ``minutes`` after the last checkpoint, and at the end."""
        return due(t, self.config.every, self.rounds) or self._overdue()

    def _overdue(self) -> bool:
        every, minutes = self.config.every, self.config.minutes
        return every > 0 and minutes is not None and time.monotonic() - self.at >= 60 * minutes

    def write(self, t: int, tree: dict[str, Any], clients: Iterable[tuple[int, Any]]) -> None:
        """Write the checkpoint of round t: the server's ``tree``, and (client, state), taken one at a time.

        Raises OSError if the disk is full; the previous checkpoint is then intact.
        """
        checkpoint.save(self.root, t, tree, clients)
        self.round, self.at = t, time.monotonic()

    def prune(self) -> None:
        """Delete the checkpoints that ``keep`` and ``keep_every`` do not retain."""
        checkpoint.prune(self.root, self.config.keep, self.config.keep_every)

    def set_aside(self) -> Sequence[str]:
        """Rename damaged checkpoints past ``round``, so that they hide nothing that is saved from now on; returns their
        names.
        """
        return checkpoint.set_aside(self.root, self.round)


def without_public_images(published: Mapping[str, Any], public: Images | None) -> dict[str, Any]:
    """What was published, in the form of a checkpoint: the run's own public images, maybe gigabytes, are only named."""
    return {name: PUBLIC if _same_memory(value, public) else value for name, value in published.items()}


def published_again(saved: Mapping[str, Any], public: Images | None) -> dict[str, Any]:
    """The reverse of :func:`without_public_images`, of a run that has these public images, as it had."""
    named = {name for name, value in saved.items() if isinstance(value, str) and value == PUBLIC}
    assert public is not None or not named  # resuming.check_same has compared them
    return {**saved, **{name: public.pixels for name in named if public is not None}}


@dataclass(frozen=True)
class RunState:
    """What a checkpoint keeps of a run besides its clients' states: the states of the server, of the plug-ins by name,
    and of the parts by their keys in the tree. A part that the run does not have is None.
    """

    server: MethodServer[Any]
    plugins: Mapping[str, ServerPlugin[Any]]
    parts: Mapping[str, Restorable | None]

    def tree(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """The tree for ``storage.checkpoint``, including what was published, in the form of
        :func:`without_public_images`.
        """
        return {
            "server": self.server.state,
            "plugins": {name: plugin.state for name, plugin in self.plugins.items()},
            "published": published,
            **{name: None if part is None else part.state for name, part in self.parts.items()},
        }

    def restore(self, tree: Any, file: Path) -> Mapping[str, Any]:
        """Go on from a checkpoint's ``tree``, which was read from ``file``; returns what was published, as in the tree.

        Raises Damaged if the server or a plug-in lacks entries that it began with, or if a part cannot read its state.
        """
        needed = ("server", "plugins", "ledger", "published")
        if not isinstance(tree, dict) or not all(isinstance(tree.get(name), dict) for name in needed):
            raise checkpoint.Damaged(f"{file}: holds no {', '.join(needed)}")
        owners: dict[str, MethodServer[Any] | ServerPlugin[Any]] = {"server": self.server, **self.plugins}
        for name, owner in owners.items():
            state = tree["server"] if owner is self.server else tree["plugins"].get(name)
            if not isinstance(state, dict) or (missing := owner.state.keys() - state.keys()):
                lacks = ", ".join(sorted(missing)) if isinstance(state, dict) else "all"
                raise checkpoint.Damaged(f"{file}: the state of {name} lacks {lacks}")
            owner.state = state
        try:
            self.server.evaluated_encoders()
        except KeyError as error:
            raise checkpoint.Damaged(f"{file}: the state of server lacks {error}") from None
        for name, part in self.parts.items():
            if part is not None:
                try:
                    part.restore(tree[name])
                except (AttributeError, LookupError, TypeError, ValueError) as error:
                    why = f"{type(error).__name__}: {first_line(error)}"
                    raise checkpoint.Damaged(f"{file}: the state of {name} cannot be read ({why})") from None
        published: dict[str, Any] = tree["published"]
        return published


def _same_memory(value: object, public: Images | None) -> bool:
    """Whether an array is these images, or a view of all of them."""
    if public is None or not isinstance(value, np.ndarray):
        return False
    ours = public.pixels
    return value.shape == ours.shape and value.dtype == ours.dtype and value.ctypes.data == ours.ctypes.data
