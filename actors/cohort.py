"""Clients in Ray actors: the same verbs and the same bits as in process, on however many actors there are.

Replies come in client order through a bounded window. What every client is sent lies in the object store once a round,
what is published once a run; states are references that the driver owns, pending until the round is complete.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ObjectLostError

from actors.client import Factory, Put, Work
from actors.pool import Call, Crashed, Pool, StateLost, TimedOut
from actors.store import Store, place_of, shared_images
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import SERVER, Averaging, Chunk, ClientError, Diverged, Each, State, Task
from rayfed_ssl.federated.results import Evaluated, Subject
from rayfed_ssl.simulation.memory import check_fits, estimate, free_memory
from rayfed_ssl.simulation.worker import Worker

Group = tuple[int, ...]  # the clients of one call
Fields = tuple[Mapping[str, Any], ...]  # what each of them is sent beside the common message
WINDOW = 3  # calls per actor that are sent and not yet handed on: what a slow client holds up is bounded
LONGEST_CHUNK = 32


class RayCohort(Cohort):
    """Clients in the actors of a pool.

    Args:
        pool: closed with the cohort, unless ``keep``: then its warm actors can serve the next run.
        sharing: how many cohorts share the nodes' object stores, each with images of its own.
        say: takes lines for people.
        factory: makes an actor's worker.
    """

    def __init__(
        self,
        config: RunConfig,
        federation: Federation,
        ledger: Ledger,
        pool: Pool,
        *,
        keep: bool = False,
        sharing: int = 1,
        say: Callable[[str], None] = lambda line: None,
        factory: Factory = Worker,
    ) -> None:
        super().__init__(config, federation, ledger)
        self._pool, self._keep = pool, keep
        self._store = Store(WINDOW * pool.plan.actors)
        self._published_refs: dict[str, Any] = {}
        self._states: dict[int, Any] = {}  # client -> reference
        self._pending: dict[int, Any] = {}
        self._evaluating: list[tuple[int, int | None, Call]] = []

        def opening() -> tuple[Any, ...]:
            return (*fixed, list(self._published_refs), *self._published_refs.values())

        try:
            needed = estimate(config, federation)
            check_fits(config, needed, place_of(needed.state, federation, sharing), free_memory())
            fixed = (ray.put(config), shared_images(federation, sharing), pool.plan.gpus, factory)
            self.infos = pool.open(opening, say)
        except BaseException:
            self.close()
            raise
        without = sorted({info.node[:12] for info in self.infos if info.device == "cpu"})
        if pool.plan.gpus and without:
            say(f"no CUDA on this node: training on CPU ({', '.join(without)})")

    @property
    def device(self) -> str:
        return ", ".join(sorted({info.device for info in self.infos}))

    @property
    def replaced(self) -> int:
        """Actors that died or were stopped so far, and were replaced."""
        return self._pool.replaced

    # -- rounds -------------------------------------------------------------------------------------------------------

    def begin_round(self, round: int, clients: Sequence[int]) -> None:
        self._pending = {}
        self._store.clear()
        super().begin_round(round, clients)

    def commit(self) -> None:
        self._states |= self._pending
        self._pending = {}
        self._store.clear()

    def _run(self, task: Task, clients: Sequence[int], own: Each, averaging: Averaging | None) -> Iterator[Chunk]:
        actors = len(self._pool.slots)
        size = min(max(1, math.ceil(len(clients) / (4 * actors))), LONGEST_CHUNK) if averaging else 1
        todo: deque[tuple[Group, Fields | None]] = deque(
            (tuple(clients[i : i + size]), None) for i in range(0, len(clients), size)
        )
        waiting: deque[tuple[Group, Fields, Call]] = deque()
        try:
            while todo or waiting:
                if waiting and waiting[0][2].done:
                    group, fields, call = waiting.popleft()
                    if len(group) > 1 and isinstance(call.error, Crashed | TimedOut):  # who was it? one by one
                        todo.extendleft([((c,), (f,)) for c, f in zip(group, fields, strict=True)][::-1])
                    else:
                        yield self._taken(task, group, call)
                elif todo and len(waiting) < WINDOW * actors and self._pool.room():
                    group, made = todo.popleft()
                    fields = tuple(own(client) for client in group) if made is None else made
                    call = self._call(task, group, fields, averaging)
                    self._pool.submit(call)
                    waiting.append((group, fields, call))
                else:
                    self._pool.advance()
        finally:
            self._pool.abandon(call for *_, call in waiting)

    def _call(self, task: Task, group: Group, own: Fields, averaging: Averaging | None) -> Call:
        """A call for these clients: small fields within it, large ones and states as arguments that Ray maps."""
        values: list[Any] = []

        def packed(fields: Mapping[str, Any], shared: bool) -> dict[str, Any]:
            out = dict(fields)
            for name, value in fields.items():
                if (ref := self._store.reference(value, shared)) is not None:
                    out[name] = Put(len(values))
                    values.append(ref)
            return out

        message = packed(task.message, True)
        fields = tuple(packed(each, False) for each in own)
        part = averaging.of(group) if averaging else None
        starts = {client: task.starts[client] for client in group if client in task.starts}
        looked_at = task.look_at.intersection(group)
        work = Work(task.operation, task.round, message, group, fields, part, starts, looked_at)
        states = [None if c == SERVER else self._pending.get(c, self._states.get(c)) for c in group]
        timeout = self.config.resources.client_timeout_s
        limit = None if timeout is None or group == (SERVER,) else timeout * len(group)
        return Call("chunk", (work, *values, *states), 1 + len(group), limit)

    def _taken(self, task: Task, group: tuple[int, ...], call: Call) -> Chunk:
        """What a call came to. Raises whatever no policy may drop."""
        if isinstance(call.error, Crashed | TimedOut):
            return Chunk(errors=[ClientError(group[0], task.round, task.operation, call.where, str(call.error))])
        if call.error is not None:
            raise call.error
        chunk, kept = call.value
        for client, keep, ref in zip(group, kept, call.refs[1:], strict=True):
            if keep and client != SERVER:
                self._pending[client] = ref
        call.value, call.refs = None, []
        return chunk  # type: ignore[no-any-return]

    def _publish(self, name: str, value: Any) -> None:
        ref = self._published_refs[name] = ray.put(value)
        self._store.remember(value, ref)
        self._pool.each("publish", name, ref)

    # -- states -------------------------------------------------------------------------------------------------------

    def states(self, clients: Iterable[int] | None = None) -> Iterator[tuple[int, State]]:
        for client in sorted(self._states) if clients is None else clients:
            if client in self._states:
                try:
                    yield client, ray.get(self._states[client])
                except ObjectLostError as error:
                    raise StateLost(f"state of client {client} lost ({type(error).__name__})") from None

    def restore(self, states: Iterable[tuple[int, State]]) -> None:
        self._pending = {}
        self._states = {client: ray.put(state) for client, state in states}

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, round: int, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            weights = None if subject.weights is None else ray.put(subject.weights)
            state = None if subject.client is None else self._states.get(subject.client)
            limit = self.config.resources.evaluation_limit_s
            call = Call("assess", (round, replace(subject, weights=None), weights, state), limit_s=limit, attempts=2)
            self._evaluating.append((round, subject.client, call))
            self._pool.background.append(call)
        self._pool.advance(block=False)

    def evaluations(self, *, wait: bool = False) -> list[Evaluated]:
        self._pool.draining = wait
        while wait and not all(call.done for _, _, call in self._evaluating):
            self._pool.advance()
        while self._pool.advance(block=False):
            pass
        self._pool.draining = False
        finished = [entry for entry in self._evaluating if entry[2].done]
        self._evaluating = [entry for entry in self._evaluating if not entry[2].done]
        return [(round, client, self._assessed(round, client, call)) for round, client, call in finished]

    def _assessed(self, round: int, client: int | None, call: Call) -> dict[str, float]:
        match call.error:
            case None:
                return call.value  # type: ignore[no-any-return]
            case UserError() | StateLost() | Diverged():
                raise call.error
        trace = str(call.error.__cause__ or call.error)
        raise ClientError(SERVER if client is None else client, round, "evaluate", call.where, trace)

    def close(self) -> None:
        if self._keep:
            self._pool.idle()
        else:
            self._pool.close()
        self._states, self._pending, self._published_refs, self._evaluating = {}, {}, {}, []
        self._store.clear()
