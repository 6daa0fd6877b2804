"""Exchanges with the clients of a round: messages are sent and booked, time passes, replies are booked and recorded.

Everything that crosses between server and clients is booked here, as a real deployment would have sent it. What a
server can ask for is in ``cohort``; where the clients run, a subclass of that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

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
    OperationResult,
    Reply,
    RoundVoid,
    Task,
    qualified,
    take_qualified,
)
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.settings.run import RunSettings

ADDED = ("images", "seconds")  # measurements of operations that are summed over a round


class Exchanges(Backend):
    """The clients of the current round, what was sent and measured in it, and how an exchange with them goes."""

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

    def attach(self, plugins: dict[str, ServerPlugin[Any]], clock: Clock | None) -> None:
        """Take the server's halves of the plug-ins, and the clock, which from now on hears of every byte booked."""
        self.plugins, self.clock = plugins, clock
        self.ledger.listener = None if clock is None else clock.hear

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

    # -- an exchange ---------------------------------------------------------------------------------------------------

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

    # -- messages and replies ------------------------------------------------------------------------------------------

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
