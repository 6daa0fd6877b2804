"""Where the clients of a cohort run: what a subclass of the cohort decides, and what it is asked to do."""

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
        """What clients train on: ``cpu``, or the names of the GPUs."""

    @abc.abstractmethod
    def _run(self, task: Task, clients: Sequence[int], own: Each, averaging: Averaging | None) -> Iterator[Chunk]:
        """Chunks of replies, in client order; new states are kept pending until :meth:`commit`."""

    def _run_server(self, task: Task, starts: Sequence[Start], own: Each) -> Iterator[Chunk]:
        """Chunks of independent pieces of server work, one each, in their order. Here one is run after the other.

        Args:
            starts: where the work of each piece stands.
            own: index of a piece -> the fields for it alone, called when it is sent.
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
        """Start evaluating these encoders as they are now, beside what follows."""

    @abc.abstractmethod
    def evaluations(self, *, wait: bool = False) -> list[Evaluated]:
        """(round, client, protocol -> value) of the evaluations finished since the last call; ``wait``: of all."""

    def close(self) -> None:  # noqa: B027 - most cohorts hold nothing
        """Give back what the cohort holds."""
