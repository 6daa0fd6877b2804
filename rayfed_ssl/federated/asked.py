"""Keeps what a server asked of its clients in a round, and detects mistakes of a method that would change a run
silently.
"""

from __future__ import annotations

from collections.abc import Iterable

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.messages import TRAINS


class AskedOperations:
    """The operations that a method's server asks of clients, round by round."""

    def __init__(self, method: str) -> None:
        self.method = method
        self._unread: dict[object, str] = {}  # asked for by `ask`, and nobody has begun to read the replies
        self._unfinished: dict[object, str] = {}  # somebody has begun to, and has not come to the last one
        self._sent: set[str] = set()  # of this round

    def begin_round(self) -> None:
        """Forget what the last round sent."""
        self._sent.clear()

    def promise(self, operation: str) -> object:
        """Note an operation that is sent while its replies are read; returns the token that :meth:`begin_reading` and
        :meth:`finish_reading` take.
        """
        question = object()
        self._unread[question] = operation
        return question

    def begin_reading(self, question: object) -> None:
        """Note that the first reply is about to be read."""
        if question in self._unread:
            self._unfinished[question] = self._unread.pop(question)

    def finish_reading(self, question: object) -> None:
        """Note that all replies were read."""
        self._unfinished.pop(question, None)

    def send(self, operation: str) -> None:
        """Note an operation that is sent to clients."""
        self._sent.add(operation)

    def void(self) -> None:
        """Note that the round comes to nothing: no reply needs to be read, and no client needs to train."""
        self._unread.clear()
        self._unfinished.clear()
        self._sent.clear()

    def nothing_came(self, why: str) -> UserError:
        """The error, to be raised, of clients that were asked before the first round and of whom none replied."""
        return UserError(
            f"method.name: {self.method} asks clients before the first round, and {why}; let some reply by "
            "system.availability, system.deadline_s or system.minimum_replies"
        )

    def check_read(self) -> None:
        """Raise RuntimeError if replies were asked for and not read to the last: then no client was asked, or as many
        as the executor asks ahead.
        """
        if self._unread:
            raise RuntimeError(
                f"{self.method}: nobody read the replies of {', '.join(map(repr, self._unread.values()))}, "
                "so no client was asked; `tell` asks without reading, `gather` reads them all"
            )
        if self._unfinished:
            raise RuntimeError(
                f"{self.method}: the replies of {', '.join(map(repr, self._unfinished.values()))} were not read to the "
                "last, so which clients were asked depends on where they run; to ask some only, name them by `clients`"
            )

    def check_trains(self, plugins: Iterable[str], *, comparing: bool) -> None:
        """Raise RuntimeError if clients did something in this round but not ``train``: the run's plug-ins and the
        comparisons of encoders (``comparing``) take part in ``train`` only.
        """
        idle = [*plugins, *(["evaluation.comparisons"] if comparing else [])]
        if idle and self._sent and TRAINS not in self._sent:
            asked = ", ".join(map(repr, sorted(self._sent)))
            raise RuntimeError(
                f"{self.method}: clients were asked for {asked}, but {', '.join(idle)} needs the operation {TRAINS!r}: "
                "give the client's function that trains this name"
            )
