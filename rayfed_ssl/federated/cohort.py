"""The cohort: the only way in which a server reaches clients. The loop and the methods know only this.

Everything that crosses between server and clients is booked here, as a real deployment would have sent it. A subclass
decides where the clients run: ``simulation.local`` runs them in this process, ``actors.cohort`` in Ray actors. Both run
the same pure function, so they give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rayfed_ssl.base.weights import plain
from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.asked import AskedOperations
from rayfed_ssl.federated.backend import Backend
from rayfed_ssl.federated.clock import Clock, Exchange
from rayfed_ssl.federated.coding import Downloads
from rayfed_ssl.federated.failure_policy import FailurePolicy
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import (
    SERVER,
    TRAINS,
    Averaging,
    Chunk,
    ClientError,
    Each,
    Fields,
    Mean,
    OperationResult,
    Reply,
    RoundVoid,
    Start,
    Task,
    qualified,
    take_qualified,
)
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.settings.run import RunSettings

Piece = TypeVar("Piece", bound=Hashable)
ADDED = ("images", "seconds")  # measurements of operations that are summed over a round


class Cohort(Backend):
    """The clients of the current round, and the operations (verbs) that a server can have them do."""

    def __init__(self, config: RunSettings, federation: Federation, ledger: Ledger) -> None:
        self.config = config
        self.federation = federation
        self.ledger = ledger
        self.ledger.code = config.transport.down
        self._downloads = Downloads(config.transport.down, config.seed)
        self.plugins: dict[str, ServerPlugin[Any]] = {}
        self.clients: tuple[int, ...] = federation.clients
        self.round = 0
        self.metrics: dict[int, dict[str, float]] = {}  # client -> what it measured this round
        self.compared_features: dict[int, Mapping[str, np.ndarray]] = {}  # client -> comparison -> (n, D)
        self.dropped: list[ClientError] = []  # of this round
        self.on_drop: Callable[[ClientError], None] = lambda error: None  # called when it happens
        self.failure_policy = FailurePolicy(len(federation.clients))
        self.every_client_failed = False  # every client asked in this round failed
        self.published: dict[str, Any] = {}
        self.clock: Clock | None = None  # decides who replies in time, where clients are unequal or unreliable
        self.exchange: Exchange | None = None
        self._asked_for = AskedOperations(config.method.name)

    @property
    def shares(self) -> np.ndarray:
        """(N,) q_j = n_j / sum n, over all clients."""
        return self.federation.shares

    def attach(self, plugins: dict[str, ServerPlugin[Any]], clock: Clock | None) -> None:
        """Take the server's halves of the plug-ins, and the clock, which from now on hears of every byte booked."""
        self.plugins, self.clock = plugins, clock
        self.ledger.listener = None if clock is None else clock.hear

    # -- a round -------------------------------------------------------------------------------------------------------

    def begin_round(self, round: int, clients: Sequence[int]) -> None:
        """Forget the last round's measurements and dropped clients; from now on the ledger books to this round."""
        self.round, self.clients = round, tuple(clients)
        self.metrics, self.compared_features, self.dropped, self.every_client_failed = {}, {}, [], False
        self.ledger.begin_round(round)
        self._downloads.forget()
        self._asked_for.begin_round()

    def end_round(self) -> None:
        """Commit the round: only now do its new client states replace the old ones. Raises RuntimeError as
        :meth:`check_read` does, and if clients never had to ``train``, which plug-ins and comparisons of encoders need.
        """
        self.check_read()
        self._asked_for.check_trains(self.plugins, comparing=bool(self.config.evaluation.comparisons))
        if not self.every_client_failed and any(client != SERVER for client in self.metrics):
            self.failure_policy.succeeded()
        for plugin in self.plugins.values():
            plugin.end_round(self.round)
        self.metrics = dict(sorted(self.metrics.items()))  # in whichever order clients replied
        self.commit()

    def check_read(self) -> None:
        """Raise RuntimeError if replies were asked for and not read to the last."""
        self._asked_for.check_read()

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def ask(
        self, operation: str, *, each: Each | None = None, clients: Sequence[int] | None = None, **message: Any
    ) -> Iterator[Reply]:
        """Have clients run ``operation``; yields their replies in client order. Clients are asked while the replies are
        read, a few of them ahead, so the replies must be read to the last: use :meth:`tell` if you need none.

        Args:
            operation: the name of the method of the Client class that is run.
            each: client -> fields for that client alone, in addition to the common ``message``. A pure function: it is
                called before earlier replies are read, and perhaps twice.
            clients: the clients to ask; by default the round's.
            message: fields that every client is sent: the operation's keyword arguments.
        Raises:
            RoundVoid: ``train`` failed on every client, or too few reply by the virtual clock.
            ClientError: a client failed under ``on_client_error: fail``, or all failed in too many rounds.
        """
        return self._asked(self._asked_for.promise(operation), operation, each, clients, message)

    def _asked(
        self, question: object, operation: str, each: Each | None, clients: Sequence[int] | None, common: dict[str, Any]
    ) -> Iterator[Reply]:
        self._asked_for.begin_reading(question)
        whom = tuple(self.clients if clients is None else clients)
        task = Task(operation, self.round, common)
        with self._exchange(task, whom, self._own_fields(operation, each)) as (replying, own):
            for chunk in self._run_sent(task, replying, own, None):
                yield from self._take(task, chunk)
        self._asked_for.finish_reading(question)
        failed = {error.client for error in self.dropped if error.operation == TRAINS}
        if operation == TRAINS and failed and failed >= set(self.clients):
            raise self._all_failed()

    def tell(
        self, operation: str, *, each: Each | None = None, clients: Sequence[int] | None = None, **message: Any
    ) -> None:
        """:meth:`ask`, where the server needs no reply; plug-ins still get their fields of the replies."""
        for _ in self.ask(operation, each=each, clients=clients, **message):
            pass

    def gather(
        self, operation: str, *, each: Each | None = None, clients: Sequence[int] | None = None, **message: Any
    ) -> list[Reply]:
        """All clients' whole replies, in client order; an empty list for no clients. Arguments as in :meth:`ask`.

        Raises:
            RoundVoid: nobody replied.
            ClientError: as in :meth:`ask`.
        """
        whom, failed = tuple(self.clients if clients is None else clients), len(self.dropped)
        replies = list(self.ask(operation, each=each, clients=whom, **message))
        if whom and not replies:
            raise self._all_failed() if len(self.dropped) > failed else self._void("nobody replied")
        return replies

    def require(self, replies: Sized) -> None:
        """Raise an error if there are no replies: RoundVoid, or, after too many such rounds, the last ClientError."""
        if not replies:
            raise self._all_failed()

    def mean(
        self,
        operation: str,
        *,
        by: Mapping[int, float] | None = None,
        fields: Sequence[str] = ("weights",),
        each: Each | None = None,
        clients: Sequence[int] | None = None,
        **message: Any,
    ) -> Mean:
        """Have clients run ``operation`` and return the weighted mean of their replies' ``fields``; other fields come
        back reply by reply. Sums are made where the clients run, and are exact in any order.

        Args:
            by: client -> weight, normalised here over the clients that will reply; by default n_j.
            fields: names of reply fields; each must be an array or ``Weights``, of the same form in all clients.
            operation, each, clients, message: as in :meth:`ask`.
        Raises:
            MixedArchitectures: the fields differ in layout between clients.
            RoundVoid: nobody replies whose weight is above 0, or too few do by the virtual clock.
            ClientError: as in :meth:`ask`.
        """
        whom = tuple(self.clients if clients is None else clients)
        task = Task(operation, self.round, message)
        total, replies, counts = FixedPointSum(), [], self.shares if by is None else by
        with self._exchange(task, whom, self._own_fields(operation, each)) as (replying, own):
            if not replying:
                raise self._void("nobody replied")
            lost = any(counts[client] for client in whom) and not any(counts[client] for client in replying)
            averaging = None if lost else Averaging.over(replying, counts, fields)
            for chunk in self._run_sent(task, replying, own, averaging):
                replies += list(self._take(task, chunk))
                if chunk.total is not None and chunk.total.totals:
                    total.merge(chunk.total)
        self.require(replies)
        replies.sort(key=lambda reply: reply.client)
        if not total.weight:
            raise self._void(f"all {len(replies)} that replied have weight 0")
        return Mean(total.mean(), replies)

    def publish(self, name: str, value: Any) -> None:
        """Send something to every client, once for the whole run."""
        self.ledger.publish(self.federation.clients, name, value)
        self.published[name] = value
        self._publish(name, plain(self._downloads.received({name: value})[name]))

    def serve(self, operation: str, *, call: int = 0, **message: Any) -> Reply:
        """Run heavy server work, ``operation`` of the method's Service, where the clients run; it is seeded and retried
        like a client's call. No bytes are booked. If ``system.server_seconds_per_image`` is set, virtual time passes
        for the images that the work reads.

        Args:
            call: numbers the calls of one operation in one round from 0, so that each draws its own random numbers.
            message: the operation's keyword arguments.
        Raises:
            ClientError: the work failed.
        """
        (chunk,) = self._run_server(Task(operation, self.round, message), [Start(self.round, call)], lambda _: {})
        for error in chunk.errors:
            raise error
        return self._served(chunk)

    def serve_all(
        self,
        operation: str,
        pieces: Iterable[Piece],
        each: Callable[[Piece], Mapping[str, Any]],
        *,
        call: Callable[[Piece], int] | None = None,
        **message: Any,
    ) -> dict[Piece, Reply]:
        """Like :meth:`serve`, for independent pieces of work: no piece needs another's reply. They run in parallel,
        where the clients run, with the same results. Virtual time adds up, because the server is one machine.

        Args:
            pieces: the names of the pieces, such as clients' numbers; no two may be the same.
            each: piece -> fields for this piece alone, beside the common ``message``; called when it is sent, in order.
            call: piece -> its ``call``; by default its position. Pieces with equal calls draw the same random numbers.
        Returns:
            piece -> its reply, in the order of ``pieces``.
        Raises:
            ClientError: a piece failed; the text names the first one that did.
            ValueError: two pieces have the same name.
        """
        names, replies = tuple(pieces), dict[Piece, Reply]()
        if len(set(names)) < len(names):
            raise ValueError(f"server work '{operation}': found the pieces {names!r}; no two may be the same")
        starts = [Start(self.round, k if call is None else call(name)) for k, name in enumerate(names)]
        chunks = self._run_server(Task(operation, self.round, message), starts, lambda k: each(names[k]))
        for name, chunk in zip(names, chunks, strict=True):
            for error in chunk.errors:
                raise error.of_piece(name)
            replies[name] = self._served(chunk)
        return replies

    def conclude(self, operation: str, clients: Sequence[int]) -> None:
        """Have clients do something by themselves after the last round. Nothing crosses, so this is not an exchange: no
        client is lost or late, and no time passes. Raises RuntimeError if a client replies.
        """
        task = Task(operation, self.round, {})
        for chunk in self._run(task, tuple(clients), lambda _: {}, None):
            for reply in self._take(task, chunk):
                if reply.fields:
                    raise RuntimeError(f"{operation} of client {reply.client}: a reply needs an exchange, `ask`")

    # -- unequal clients -----------------------------------------------------------------------------------------------

    def send(self, operation: str, client: int, **message: Any) -> None:
        """Send a message whose reply :meth:`take_up` takes later."""
        self.ledger.book_down(client, operation, message)

    def take_up(self, operation: str, starts: Mapping[int, Start], each: Each) -> Iterator[Reply]:
        """The replies of clients that were sent messages (``each``) earlier; ``starts``: where their work began."""
        task, whom = Task(operation, self.round, {}, starts), tuple(starts)
        if self.clock is not None:
            self.exchange = Exchange(operation, whom, (), {c: self.clock.expected(operation, c) for c in whom})
        try:
            for chunk in self._run_sent(task, whom, each, None):
                yield from self._take(task, chunk)
        finally:
            self.exchange = None

    @contextmanager
    def _exchange(self, task: Task, whom: tuple[int, ...], own: Each) -> Iterator[tuple[tuple[int, ...], Each]]:
        """Gives the clients that will reply, of those asked, and what each is sent. Without a clock all of them reply.
        With one, a client that is lost leaves the round. Raises RoundVoid if too few remain.
        """

        def send(client: int) -> Mapping[str, Any]:
            """The client's fields, booked when they are made, which is when they are sent."""
            fields = own(client)
            self.ledger.book_down(client, task.operation, {**task.message, **fields})
            return fields

        self._asked_for.send(task.operation)
        if self.clock is None:
            yield whom, send
            return
        everybody = set(whom) >= set(self.clients)
        exchange = self.exchange = self.clock.begin(task.operation, whom, everybody, send)
        lost = set(exchange.lost)
        self.clients = tuple(client for client in self.clients if client not in lost)
        if len(self.clients) < self.clock.system.minimum_replies:
            for client, work in exchange.expected.items():
                self.ledger.book_up(client, task.operation, work.up)
            self.clock.end(exchange)
            left = f"{len(self.clients)} " + (f"of {len(whom)} replied" if everybody else "clients are left")
            raise self._void(left if self.clients else "nobody replied")
        try:
            yield exchange.replying, own if self.clock.predicts else send
        finally:
            self.clock.end(exchange)
            self.exchange = None

    def _void(self, why: str) -> Exception:
        """End a round that comes to nothing, with no exchange open and no reply awaited; returns the error to raise:
        RoundVoid, or, before the first round, UserError.
        """
        self._asked_for.void()
        self.exchange = None
        return RoundVoid(why) if self.round else self._asked_for.nothing_came(why)

    def _all_failed(self) -> Exception:
        """End a round in which every client asked failed; returns the error to raise: RoundVoid, or the last failure if
        the run gives up, as it does before the first round.
        """
        self.every_client_failed = True
        failed, last = {error.client for error in self.dropped}, self.round == self.config.train.rounds
        if self.round == 0 or self.failure_policy.failed(failed, last=last):
            return self.dropped[-1]
        return self._void("every client that was asked failed")

    # -- bookkeeping ---------------------------------------------------------------------------------------------------

    def _run_sent(self, task: Task, whom: Sequence[int], own: Each, averaging: Averaging | None) -> Iterator[Chunk]:
        """Run the task with messages as clients receive them, and compare encoders after it if this round does so."""
        compare, received, compared = self.config.evaluation.comparisons, self._downloads.received, list[int]()
        if task.operation == TRAINS and compare and self.config.evaluates(self.round):
            most = max(row.clients(self.config.evaluation.of(name)) for name, row in compare.items())
            compared = sorted(whom)[: max(most - len(self.compared_features), 0)]
        task = replace(task, message=received(task.message), compare_clients=frozenset(compared))
        return self._run(task, whom, lambda client: received(own(client)), averaging)

    def _own_fields(self, operation: str, each: Each | None) -> Each:
        """A function that makes one client's own fields: those of ``each`` and of the plug-ins."""

        def own(client: int) -> Mapping[str, Any]:
            fields = dict(each(client)) if each else {}
            if operation == TRAINS:
                for name, plugin in self.plugins.items():
                    fields |= qualified(name, plugin.message(self.round, client))
            return fields

        return own

    def _take(self, task: Task, chunk: Chunk) -> Iterator[Reply]:
        """Book, record and pass on what came back; failures are treated as ``on_client_error`` says."""
        for error in chunk.errors:
            if self.config.on_client_error == "fail":
                raise error
            self.dropped.append(error)
            self.on_drop(error)
        for result, booked in zip(chunk.results, chunk.sizes, strict=True):
            self.ledger.book_up(result.client, task.operation, booked)
            self._note(result)
            if self.clock is not None and self.exchange is not None:
                self.clock.replied(self.exchange, result, booked)
            reply = dict(result.reply)
            if task.operation == TRAINS:
                for name, plugin in self.plugins.items():
                    plugin.collect(self.round, result.client, Fields(take_qualified(name, reply)))
            yield Reply(result.client, Fields(reply))

    def _served(self, chunk: Chunk) -> Reply:
        """The reply of server work that succeeded. Its measurements are recorded, and its virtual time passes."""
        (result,) = chunk.results
        self._note(result)
        if self.clock is not None:
            self.clock.served(result.images)
        return Reply(SERVER, Fields(result.reply))

    def _note(self, result: OperationResult) -> None:
        """Record the newest measurements of a client or the server; those in ``ADDED`` are summed over the round."""
        if result.compared_features:
            self.compared_features[result.client] = result.compared_features
        known = self.metrics.setdefault(result.client, {})
        sums = {name: known.get(name, 0.0) + result.metrics[name] for name in ADDED if name in result.metrics}
        known |= result.metrics | sums
