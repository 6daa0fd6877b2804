"""Clients in Ray actors: the same operations and the same bits as in one process, on any number of actors.

Replies come in client order through a bounded window. What every client is sent is put into the object store once a
round, published values once a run. States are references that the driver owns; new ones are pending until the round is
complete.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import ray
from ray import ObjectRef

from actors.arguments import Packer
from actors.calls import Call
from actors.client import Factory
from actors.failures import Crashed, StateLost, TimedOut
from actors.pool import Pool
from actors.replies import Replies
from actors.states import TOGETHER_BYTES, States
from actors.store import INLINE_BYTES, nbytes, place_of, shared_images
from actors.sums import Sums
from actors.window import Group, Request, Window
from actors.wire import ChunkResult, StateReturn, Work
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import (
    SERVER,
    Averaging,
    Chunk,
    ClientError,
    Diverged,
    Each,
    Start,
    State,
    Task,
)
from rayfed_ssl.federated.results import Evaluated, EvaluatedEncoder
from rayfed_ssl.simulation.memory import check_fits, estimate, free_memory
from rayfed_ssl.simulation.worker import Worker

WINDOW = 3  # calls per actor whose replies are not taken yet: so many replies wait behind a slow client
LONGEST_CHUNK = 32
GROUP_S = 0.05  # clients share a call, without regard to how many actors wait, up to so much work ..
GROUP_BYTES = 8 << 20  # .. and so large a reply: a call costs 2 to 4 ms


@dataclass(frozen=True)
class Pace:
    """Seconds and bytes of a client's last reply. Fields that the actor itself sums do not count as bytes."""

    seconds: float
    nbytes: float

    @classmethod
    def of(cls, chunk: Chunk) -> Pace:
        """The mean over a chunk's clients."""
        count = len(chunk.results)
        seconds = sum(result.metrics.get("seconds", math.inf) for result in chunk.results)  # not said: alone
        return cls(seconds / count, sum(nbytes(result.reply) for result in chunk.results) / count)

    @property
    def clients(self) -> int:
        """How many clients may share a call: few enough that the death of an actor, or a slow client, costs little."""
        most = min(GROUP_S / max(self.seconds, 1e-6), GROUP_BYTES / max(self.nbytes, 1.0))
        return max(1, min(int(most), LONGEST_CHUNK))


class RayCohort(Cohort):
    """Clients in the actors of a pool.

    Args:
        pool: closed with the cohort, unless ``keep`` is set; then its warm actors can serve the next run.
        sharing: how many cohorts share the nodes' object stores, each with its own images.
        say: takes lines to show to people.
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
        self.pool, self._keep = pool, keep
        self.packer = Packer(WINDOW * pool.plan.actors)
        self._published_refs: dict[str, ObjectRef] = {}
        self.client_states = States()
        self.replies = Replies()
        self._evaluating: list[tuple[int, int | None, Call]] = []
        self._seen_states = False  # whether any client had a new state: then those to come are returned apart
        self.crashed_clients: set[int] = set()  # their actors died as often in a row as a call may: one try is left
        self.paces: dict[str, Pace] = {}  # by operation, of whole replies
        self.sum_bytes = 0  # of sums that this process read

        def opening() -> tuple[Any, ...]:
            return (*fixed, list(self._published_refs), *self._published_refs.values())

        try:
            needed = estimate(config, federation)
            self._state_bytes = needed.state  # of one client
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
        """The number of actors so far that died or were stopped, and were replaced."""
        return self.pool.replaced

    # -- rounds -------------------------------------------------------------------------------------------------------

    def begin_round(self, round: int, clients: Sequence[int]) -> None:
        self.client_states.forget_pending()
        self.packer.clear()
        super().begin_round(round, clients)

    def commit(self) -> None:
        self.client_states.commit()
        self.packer.clear()

    def _run(self, task: Task, clients: Sequence[int], own: Each, averaging: Averaging | None) -> Iterator[Chunk]:
        size = min(max(1, math.ceil(len(clients) / (4 * len(self.pool.slots)))), LONGEST_CHUNK)
        make = partial(self._request, own)
        if averaging is None:
            for chunk in self._replies(task, deque((c,) for c in clients), make, None, None, size):
                if chunk.results:
                    self.paces[task.operation] = Pace.of(chunk)
                yield chunk
            return
        if (known := self.paces.get(task.operation)) is not None:  # quick clients need no balance between actors
            size = max(size, min(math.ceil(len(clients) / len(self.pool.slots)), known.clients))
        todo: deque[Group | Request] = deque(self._groups(clients, size))
        while todo:
            with Sums(self.pool, self.config.resources.client_timeout_s) as sums:
                for chunk in self._replies(task, todo, make, averaging, sums):
                    if chunk.results:
                        self.paces[task.operation] = Pace.of(chunk)
                    yield chunk
                total = sums.collect(partial(self._repeat, task, averaging, sums))
            self.sum_bytes += sums.read_bytes
            yield Chunk(total=total)

    def _run_server(self, task: Task, starts: Sequence[Start], own: Each) -> Iterator[Chunk]:
        """Each piece is one call, sent through the same window as an exchange, so all actors work at the same time."""
        numbers = iter(range(len(starts)))

        def make(group: Group) -> Request:
            k = next(numbers)
            return Request(group, (own(k),), (None,), start=starts[k])

        return self._replies(task, deque((SERVER,) for _ in starts), make, None, None)

    def _groups(self, clients: Sequence[int], size: int) -> Iterator[Group]:
        """The clients in groups of ``size``, one call each; a client of ``crashed_clients`` gets a call to itself."""
        for i in range(0, len(clients), size):
            group = tuple(clients[i : i + size])
            yield from [group] if self.crashed_clients.isdisjoint(group) else [(client,) for client in group]

    def _replies(
        self,
        task: Task,
        todo: deque[Group | Request],
        make: Callable[[Group], Request],
        averaging: Averaging | None,
        sums: Sums | None,
        together: int = 1,
    ) -> Iterator[Chunk]:
        """Send what is to be asked, and yield what comes back, in order. Ends early if ``sums`` should be collected
        first.

        Args:
            todo: what to ask; what is sent is removed from it.
            make: makes the request for a group when it is sent.
            together: how many clients may share a call if they are known to be quick.
        """
        hand_over = len(todo) <= len(self.pool.slots)  # each actor has one call, which returns its running sum, too
        paused = (lambda: False) if sums is None else (lambda: sums.full)
        window = Window(todo, WINDOW * len(self.pool.slots), paused)
        try:
            while window.unfinished:
                if (finished := window.next_done()) is not None:
                    request, call = finished
                    if len(request.group) > 1 and isinstance(call.error, Crashed | TimedOut):
                        window.suspect(request)
                        if sums is not None:
                            sums.forget(call)
                    else:
                        yield self._taken(task, request.group, call, sums)
                elif window.may_send and self.pool.room():
                    if isinstance(item := window.next_to_send(), Request):
                        request = item
                    else:
                        request = make(self._joined(task, item, todo, together))
                    call = self.call_of(task, request, averaging, sums, hand_over and not request.suspect)
                    self.pool.submit(call)
                    window.sent(request, call)
                else:
                    self.pool.advance()
        finally:
            self.pool.abandon(window.calls)

    def _joined(self, task: Task, group: Group, todo: deque[Group | Request], together: int) -> Group:
        """The group, and the following groups that share its call."""
        known = self.paces.get(task.operation)
        most = 1 if known is None else min(together, known.clients)
        while len(group) < most and todo and not isinstance(after := todo[0], Request):
            if not self.crashed_clients.isdisjoint(group + after):
                break
            todo.popleft()
            group += after
        return group

    def _request(self, own: Each, group: Group) -> Request:
        """A request to a group; the clients' own fields are made and booked now."""
        states = tuple(self.client_states.latest(client) for client in group)
        return Request(group, tuple(own(client) for client in group), states)

    def _repeat(self, task: Task, averaging: Averaging, sums: Sums, lost: Sequence[Request]) -> None:
        """Ask again for what sums have lost. The replies themselves are known already.

        Raises:
            ClientError: a client that replied before fails now.
        """
        for chunk in self._replies(task, deque(lost), partial(self._request, lambda _: {}), averaging, sums):
            for error in chunk.errors:
                raise error

    def call_of(
        self, task: Task, request: Request, averaging: Averaging | None, sums: Sums | None, hands_over: bool
    ) -> Call:
        """The call that makes a request."""
        arguments = self.packer.arguments(task)
        group = request.group
        hands_over = hands_over and sums is not None
        tag = None if sums is None else sums.register(request)
        state_return = self._state_return(group)
        starts = task.starts if request.start is None else {SERVER: request.start}
        omits = averaging is None and group != (SERVER,) and self._replies_large(task.operation)
        work = Work(
            task.operation,
            task.round,
            arguments.message(task.message),
            group,
            own=tuple(arguments.own(fields) for fields in request.fields),
            averaging=averaging.of(group) if averaging else None,
            starts={client: starts[client] for client in group if client in starts},
            compare_clients=task.compare_clients.intersection(group),
            states=tuple(arguments.state(kept) for kept in request.states),
            state_return=state_return,
            omits=omits,
            exchange=None if sums is None else sums.exchange,
            tag=tag or 0,
            hands_over=hands_over,
        )
        timeout = self.config.resources.client_timeout_s
        limit = None if timeout is None or group == (SERVER,) else timeout * len(group)
        returns = 1 + state_return.returns(len(group))
        if hands_over:
            returns += 1
        if omits:
            returns += 1
        call = Call("chunk", (work, *arguments.refs), returns, limit, tag=tag, hands_over=hands_over, omits=omits)
        if len(group) == 1 and group[0] in self.crashed_clients and not request.repeated:
            call.one_try = True
        return call

    def _replies_large(self, operation: str) -> bool:
        """Whether whole replies are large, or may be large."""
        known = self.paces.get(operation)
        return known is None or known.nbytes > INLINE_BYTES

    def _state_return(self, group: Group) -> StateReturn:
        """How the new states of these clients are returned."""
        if not self._seen_states:
            return StateReturn.WITHIN
        everybody = len(self.clients) == len(self.federation.clients)
        small = self._state_bytes * len(group) <= TOGETHER_BYTES
        return StateReturn.TOGETHER if everybody and small else StateReturn.APART

    def _taken(self, task: Task, group: Group, call: Call, sums: Sums | None) -> Chunk:
        """The results or the failure of a finished call. Raises errors that no policy may drop."""
        if isinstance(call.error, Crashed | TimedOut):
            if isinstance(call.error, Crashed):
                self.crashed_clients.add(group[0])
            if sums is not None:
                sums.forget(call)
            return Chunk(errors=[ClientError(group[0], task.round, task.operation, call.where, str(call.error))])
        if call.error is not None:
            raise call.error
        reply: ChunkResult = call.value
        apart = call.refs[2:] if call.hands_over else call.refs[1:]  # what follows the first value and the sum's totals
        self.replies.count(reply.chunk.results)
        if call.omits:
            reply.chunk.results = self.replies.with_remote_values(reply.chunk.results, apart.pop(0))
        if group != (SERVER,):
            self.client_states.take(group, reply, apart)
            self._seen_states = self._seen_states or any(reply.has_state)
        if sums is not None:
            sums.replied(call, tuple(result.client for result in reply.chunk.results), reply.sum_header)
        call.value, call.refs = None, []
        return reply.chunk

    def _publish(self, name: str, value: Any) -> None:
        ref = self._published_refs[name] = ray.put(value)
        self.packer.store.remember(value, ref)
        self.pool.each("publish", name, ref)

    # -- states -------------------------------------------------------------------------------------------------------

    def states(self, clients: Iterable[int] | None = None) -> Iterator[tuple[int, State]]:
        return self.client_states.read(clients)

    def restore(self, states: Iterable[tuple[int, State]]) -> None:
        self.client_states.restore(states)

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, round: int, encoders: Sequence[EvaluatedEncoder]) -> None:
        put = cache(ray.put)  # by identity: clients may share one architecture's values
        for encoder in encoders:
            weights = None if encoder.weights is None else put(encoder.weights)
            where = None if encoder.client is None else self.client_states.complete(encoder.client)
            state = (None, None) if where is None else (where.ref, where.index)
            limit = self.config.resources.evaluation_limit_s
            call = Call("assess", (round, replace(encoder, weights=None), weights, *state), limit_s=limit, attempts=2)
            self._evaluating.append((round, encoder.client, call))
            self.pool.background.append(call)
        self.pool.advance(block=False)

    def evaluations(self, *, wait: bool = False) -> list[Evaluated]:
        self.pool.draining = wait
        try:
            while wait and not all(call.done for _, _, call in self._evaluating):
                self.pool.advance()
            while self.pool.advance(block=False):
                pass
        finally:
            self.pool.draining = False
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
            self.pool.idle()
        else:
            self.pool.close()
        self.client_states, self._published_refs, self._evaluating = States(), {}, []
        self.packer.clear()
