"""The cohort: the only way in which a server reaches clients. The loop and the methods know only this.

What crosses is booked by ``exchanges``. A subclass decides where the clients run: ``simulation.local`` runs them in
this process, ``actors.cohort`` in Ray actors. Both run the same pure function, so they give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np

from rayfed_ssl.base.weights import plain
from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.clock import Exchange
from rayfed_ssl.federated.exchanges import Exchanges
from rayfed_ssl.federated.messages import TRAINS, Averaging, Each, Mean, Reply, Start, Task
from rayfed_ssl.federated.sampling import named

Piece = TypeVar("Piece", bound=Hashable)


class Cohort(Exchanges):
    """The clients of the current round, and the operations (verbs) that a server can have them do."""

    @property
    def shares(self) -> np.ndarray:
        """(N,) q_j = n_j / sum n, over all clients."""
        return self.federation.shares

    def _whom(self, operation: str, clients: Sequence[int] | None) -> tuple[int, ...]:
        """The clients that are asked for an operation: the round's, or those that the method names."""
        return self.clients if clients is None else named(clients, self.federation.clients, f"{operation!r}, clients")

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
        whom = self._whom(operation, clients)
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
        whom, failed = self._whom(operation, clients), len(self.dropped)
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
            by: client -> weight, normalised here over the clients that will reply; by default n_j. Every client
                that is asked has one.
            fields: names of reply fields; each must be an array or ``Weights``, of the same form in all clients.
            operation, each, clients, message: as in :meth:`ask`.
        Raises:
            MixedArchitectures: the fields differ in layout between clients.
            RoundVoid: nobody replies whose weight is above 0, or too few do by the virtual clock.
            ClientError: as in :meth:`ask`.
            ValueError: ``by`` lacks a client.
        """
        whom = self._whom(operation, clients)
        if by is not None and (lacking := [client for client in whom if client not in by]):
            raise ValueError(f"mean of {operation!r}: by has no weight for client {lacking[0]}, which is asked")
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
        for chunk in self._run(task, self._whom(operation, clients), lambda _: {}, None):
            for reply in self._take(task, chunk):
                if reply.fields:
                    raise RuntimeError(f"{operation} of client {reply.client}: a reply needs an exchange, `ask`")

    # -- messages whose replies are taken later ------------------------------------------------------------------------

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
