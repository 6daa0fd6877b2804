"""Keeps clients' states between rounds in objects that the driver owns, one per client or one per call.

An object per client costs about a millisecond to return and to map again, which is too much for a small state. An
object per call is kept until all of its clients have taken part again, so it suits rounds in which all clients take
part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError

from actors.failures import StateLost
from actors.wire import ChunkResult, StateReturn, item
from rayfed_ssl.federated.messages import State

TOGETHER_BYTES = 64 << 20  # of states in one object


@dataclass(frozen=True)
class StateRef:
    """Where one client's state is: an object in the store, and the item of it that is the state; None: the whole
    object.
    """

    ref: ObjectRef
    index: int | None = None


class States:
    """The states of all clients that have one. A round's new states are kept beside the old ones until the round is
    complete.
    """

    def __init__(self) -> None:
        self._complete: dict[int, StateRef] = {}
        self._pending: dict[int, StateRef] = {}

    def latest(self, client: int) -> StateRef | None:
        """The state that the client's next call begins with."""
        return self._pending.get(client, self._complete.get(client))

    def take(self, clients: Sequence[int], result: ChunkResult, refs: Sequence[ObjectRef]) -> None:
        """Remember the new states that a call returned.

        Args:
            refs: references to the return values that are states.
        """
        for k, client in enumerate(clients):
            if result.has_state[k]:
                match result.state_return:
                    case StateReturn.WITHIN:
                        self._pending[client] = StateRef(ray.put(result.states[k]))
                    case StateReturn.APART:
                        self._pending[client] = StateRef(refs[k])
                    case StateReturn.TOGETHER:
                        self._pending[client] = StateRef(refs[0], k)

    def forget_pending(self) -> None:
        """Drop the states of a round that was not completed."""
        self._pending = {}

    def commit(self) -> None:
        """Make the round's states those of the last complete round."""
        self._complete |= self._pending
        self._pending = {}

    def complete(self, client: int) -> StateRef | None:
        """The client's state as of the last complete round."""
        return self._complete.get(client)

    def read(self, clients: Iterable[int] | None = None) -> Iterator[tuple[int, State]]:
        """States as of the last complete round, of all clients by default. Raises StateLost."""
        last: tuple[ObjectRef | None, Any] = (None, None)  # the object mapped last: several states may be in it
        for client in sorted(self._complete) if clients is None else clients:
            if (kept := self._complete.get(client)) is None:
                continue
            if last[0] is not kept.ref:
                try:
                    last = kept.ref, ray.get(kept.ref)
                except ObjectLostError as error:
                    raise StateLost(f"state of client {client} lost ({type(error).__name__})") from None
            yield client, item(last[1], kept.index)

    def restore(self, states: Iterable[tuple[int, State]]) -> None:
        """Put a checkpoint's states into the store, in place of the current ones."""
        self._pending = {}
        self._complete = {client: StateRef(ray.put(state)) for client, state in states}
