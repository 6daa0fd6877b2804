"""A call of an actor's method, with how often its actors may die; and an actor's slot, with the calls that it holds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ray import ObjectRef
from ray.actor import ActorHandle

from actors.client import ActorInfo

CRASHES = 3  # deaths in a row under the same call before the call is given up


@dataclass(eq=False)
class Call:
    """One call of an actor's method, repeated until it is ``done``: then with a ``value`` or an ``error``."""

    method: str
    args: tuple[Any, ...]
    returns: int = 1
    limit_s: float | None = None
    attempts: int = 1  # how often it may be too late before that is its error
    one_try: bool = False  # given up after one death of its actor: its client was given up before
    pinned: bool = False  # for the actor it is sent to, and no other
    tag: int | None = None  # its number in the actor's running sum, where it adds to one ..
    hands_over: bool = False  # .. and whether it returns that sum
    omits: bool = False  # whether it returns large values of its replies apart
    refs: list[ObjectRef] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    done: bool = False
    abandoned: bool = False
    value: Any = None
    error: Exception | None = None
    where: str = ""
    node: str = ""

    @property
    def most_crashes(self) -> int:
        """How often in a row its actor may die before this becomes the call's error."""
        return 1 if self.one_try else CRASHES

    @property
    def suspected(self) -> bool:
        """Whether the call may be one that kills actors; then it is sent to an actor that holds nothing else."""
        return bool(self.crashes) or self.one_try

    def finish(self, value: Any = None, error: Exception | None = None) -> None:
        """End the call, and release its arguments."""
        self.done, self.value, self.error = True, value, error
        self.args = ()


@dataclass(eq=False)
class Slot:
    """The place of one actor of the plan, whichever process fills it, and the calls that the actor holds."""

    number: int
    actor: ActorHandle | None = None
    info: ActorInfo | None = None  # None while the actor is starting
    queue: deque[Call] = field(default_factory=deque)
    head_since: float = 0.0
    noticed: bool = False  # that it takes long to start
    holds: bool = False  # whether the actor has part of a running sum, once it has done what it was sent

    @property
    def taken(self) -> bool:
        """Whether the actor starts or evaluates: calls would wait here for long, and go elsewhere if they can."""
        return self.info is None or self.runs_suspected_call or any(call.method == "assess" for call in self.queue)

    @property
    def runs_suspected_call(self) -> bool:
        """Whether it runs a call that is suspected of killing actors: no other call may be lost with it."""
        return any(call.suspected for call in self.queue)

    @property
    def where(self) -> str:
        return self.info.where if self.info else f"actor {self.number} (starting)"


def why_given_up(call: Call) -> str:
    """What Ray says of the last death, with the reason in the last line, as in a traceback."""
    if call.one_try:
        why = f"died again: one try, because it died {CRASHES} times in a row before"
    else:
        why = f"died {CRASHES} times in a row (a signal, or the machine is out of memory)"
    return f"{call.crashes[-1]}\nits actor {why}"
