"""Runs clients in this process, one after the other: for tests, debuggers, and machines without Ray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import SERVER, Averaging, Chunk, Each, State, Task, freeze, opened
from rayfed_ssl.federated.process_context import device_name
from rayfed_ssl.federated.results import Evaluated, EvaluatedEncoder
from rayfed_ssl.simulation.memory import check_fits, estimate, free_memory
from rayfed_ssl.simulation.worker import ClientInput, Worker, run_chunk


class LocalCohort(Cohort):
    """A cohort whose one worker runs every client in turn; states are dictionaries in memory.

    Raises:
        UserError: the clients' states would not fit into memory.
    """

    def __init__(self, config: RunConfig, federation: Federation, ledger: Ledger) -> None:
        super().__init__(config, federation, ledger)
        memory = free_memory()
        check_fits(config, estimate(config, federation), memory, memory)
        self.worker = Worker(config, federation)
        self._states: dict[int, State] = {}
        self._pending: dict[int, State] = {}
        self._evaluated: list[Evaluated] = []

    @property
    def device(self) -> str:
        return device_name(self.worker.device)

    def _run(self, task: Task, clients: Sequence[int], own: Each, averaging: Averaging | None) -> Iterator[Chunk]:
        task = replace(task, message=opened(task.message))
        freeze(task.message)
        total = FixedPointSum()
        for client in clients:
            state = self._pending.get(client, self._states.get(client))
            fields = opened(own(client))
            freeze(fields)
            chunk, (new,) = run_chunk(
                self.worker, task, [ClientInput(client, fields, state)], averaging=averaging, where="in this process",
                running=total,
            )  # fmt: skip
            if new is not None and (new or state) and client != SERVER and chunk.results:
                freeze(new)
                self._pending[client] = new
            yield chunk
        yield Chunk(total=total)

    def _publish(self, name: str, value: Any) -> None:
        freeze(value)
        self.worker.published[name] = value

    def commit(self) -> None:
        self._states |= self._pending
        self._pending = {}

    def states(self, clients: Iterable[int] | None = None) -> Iterator[tuple[int, State]]:
        for client in sorted(self._states) if clients is None else clients:
            if client in self._states:
                yield client, self._states[client]

    def restore(self, states: Iterable[tuple[int, State]]) -> None:
        self._states = dict(states)
        freeze(self._states)

    def evaluate(self, round: int, encoders: Sequence[EvaluatedEncoder]) -> None:
        for encoder in encoders:
            state = None if encoder.client is None else self._states.get(encoder.client)
            self._evaluated.append((round, encoder.client, self.worker.assess(round, encoder, state)))

    def evaluations(self, *, wait: bool = False) -> list[Evaluated]:
        done, self._evaluated = self._evaluated, []
        return done
