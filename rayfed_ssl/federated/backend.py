"""Defines what a subclass of the cohort implements: where clients run, and how their operations are carried out
there.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rayfed_ssl.federated.messages import SERVER, Averaging, Chunk, Each, Start, State, Task
from rayfed_ssl.federated.results import Evaluated, EvaluatedEncoder


class Backend(abc.ABC):
    """Runs operations of clients, server work and evaluations, and keeps the clients' states."""

    @property
    @abc.abstractmethod
    def device(self) -> str:
        """The hardware that clients train on: ``cpu``, or the names of the GPUs."""

    @abc.abstractmethod
    def _run(self, task: Task, clients: Sequence[int], own: Each, averaging: Averaging | None) -> Iterator[Chunk]:
        """Chunks of replies, in client order; new states are kept pending until :meth:`commit`."""

    def _run_server(self, task: Task, starts: Sequence[Start], own: Each) -> Iterator[Chunk]:
        """Chunks of independent pieces of server work, one each, in the order of the pieces. Here they run one after
        the other.

        Args:
            starts: where in the run the work of each piece stands.
            own: index of a piece -> the fields for this piece alone; called when it is sent.
        """
        for k, start in enumerate(starts):
            fields = own(k)
            yield next(self._run(replace(task, starts={SERVER: start}), (SERVER,), {SERVER: fields}.__getitem__, None))

    @abc.abstractmethod
    def _publish(self, name: str, value: Any) -> None:
        """Put a published value where operations find it, as ``ProcessContext.published``."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Make the pending states the clients' states."""

    @abc.abstractmethod
    def states(self, clients: Iterable[int] | None = None) -> Iterator[tuple[int, State]]:
        """The committed states, one at a time, for a checkpoint or an export."""

    @abc.abstractmethod
    def restore(self, states: Iterable[tuple[int, State]]) -> None:
        """Take a checkpoint's states in place of the committed ones."""

    @abc.abstractmethod
    def evaluate(self, round: int, encoders: Sequence[EvaluatedEncoder]) -> None:
        """Start evaluating these encoders as they are now, in parallel with what follows."""

    @abc.abstractmethod
    def evaluations(self, *, wait: bool = False) -> list[Evaluated]:
        """(round, client, protocol -> value) of the evaluations finished since the last call. With ``wait`` it waits
        for all.
        """

    def close(self) -> None:  # noqa: B027 - most cohorts hold nothing
        """Release what the cohort holds."""
