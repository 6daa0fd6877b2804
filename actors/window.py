"""The window through which a cohort asks its clients: it keeps few requests in flight, and gives replies in client
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from actors.calls import Call
from actors.states import StateRef
from rayfed_ssl.federated.messages import Start

Group = tuple[int, ...]  # the clients of one call


@dataclass(eq=False)
class Request:
    """What one call asks of its clients, and who replied: enough to ask again."""

    group: Group
    fields: tuple[Mapping[str, Any], ...]  # of each client, beside the common message
    states: tuple[StateRef | None, ...]  # the clients' before the call
    replied: Group = ()
    repeated: bool = False  # these clients have replied already, and the sum that held it is lost
    suspect: bool = False  # its client shared a call that came to nothing
    start: Start | None = None  # where a piece of server work stands; None: the task says where its clients' work does

    def suspects(self) -> Iterator[Request]:
        """A request for each client by itself, in order."""
        for client, fields, state in zip(self.group, self.fields, self.states, strict=True):
            yield Request((client,), (fields,), (state,), repeated=self.repeated, suspect=True)

    def again(self) -> list[Request]:
        """The request to send again: only to clients that replied, so that dropped clients stay dropped."""
        who = [k for k, client in enumerate(self.group) if client in self.replied]
        fields, states = tuple(self.fields[k] for k in who), tuple(self.states[k] for k in who)
        return [Request(tuple(self.group[k] for k in who), fields, states, repeated=True)] if who else []


class Window:
    """Requests in client order: some queued, some in flight. Replies are taken in the order of the requests.

    If a call of several clients killed its actor, or was too late, it is not known which client is to blame. Each of
    them becomes a suspect, which is asked alone. Suspects come before all other requests: until the last of them has
    replied, nothing else is sent, and no other reply is taken.

    Args:
        queued: what is still to be sent: groups of clients, or requests that are made already.
        size: the most calls in flight, of suspects and of others.
        paused: whether no further group may be sent. Requests that are made already may always be sent.
    """

    def __init__(self, queued: deque[Group | Request], size: int, paused: Callable[[], bool]) -> None:
        self.queued = queued
        self._size, self._paused = size, paused
        self._suspects: deque[Request] = deque()
        self._in_flight: deque[tuple[Request, Call]] = deque()
        self._suspects_in_flight: deque[tuple[Request, Call]] = deque()

    @property
    def unfinished(self) -> bool:
        return bool(self._in_flight or self._suspects_in_flight) or self._has_next

    @property
    def may_send(self) -> bool:
        """Whether something may be sent now."""
        return self._has_next and len(self._current) < self._size

    @property
    def calls(self) -> list[Call]:
        """The calls in flight."""
        return [call for _, call in (*self._suspects_in_flight, *self._in_flight)]

    def next_to_send(self) -> Group | Request:
        return self._suspects.popleft() if self._suspects else self.queued.popleft()

    def sent(self, request: Request, call: Call) -> None:
        (self._suspects_in_flight if request.suspect else self._in_flight).append((request, call))

    def next_done(self) -> tuple[Request, Call] | None:
        """The first request in flight and its call, removed from the window, if that call is done."""
        current = self._current
        return current.popleft() if current and current[0][1].done else None

    def suspect(self, request: Request) -> None:
        """Mark a request's clients as suspects, to be asked one by one."""
        self._suspects.extend(request.suspects())

    @property
    def _current(self) -> deque[tuple[Request, Call]]:
        """The queue that the next reply comes from."""
        return self._suspects_in_flight if self._suspects or self._suspects_in_flight else self._in_flight

    @property
    def _has_next(self) -> bool:
        if self._suspects or self._suspects_in_flight:
            return bool(self._suspects)
        return bool(self.queued) and (isinstance(self.queued[0], Request) or not self._paused())
