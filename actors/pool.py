"""Client actors in numbered slots: calls go to a free actor, a dead actor is replaced and its calls are repeated.

A slot runs its calls in the order they were sent. Each actor holds two calls, so sending one overlaps computing the
other. When an actor dies, every call it held fails. All of them are taken off the slot at once, so a replacement is
never mistaken for the actor that failed. It is not known which call killed the actor: the reply of a finished call is
often lost with the process. So each of these calls is suspected, and sent again alone, to an actor that holds nothing
else. A call whose actor dies three times in a row is given up; a call that shared its actor with it is not. A call
whose client was given up before is sent alone at once, and given up after one death.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ObjectLostError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.calls import CRASHES, Call, Slot, why_given_up
from actors.client import ActorInfo
from actors.client_process import start_client
from actors.failures import DEATHS, Crashed, StateLost, TimedOut, unwrapped
from actors.shares import Plan, Reservation
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable

PER_ACTOR = 2  # calls an actor has in hand: one running, one waiting
SLOW_S = 30.0  # after which a starting actor is worth a line
START_S = 300.0  # how long an actor may take to start: seconds, but minutes on a machine that is swamped


class Pool:
    """The actors of a plan, for one run or for several after one another.

    Args:
        begun: the actors, if they were started already.
    """

    def __init__(self, plan: Plan, reservation: Reservation, begun: Sequence[ActorHandle] = ()) -> None:
        self.plan, self.reservation = plan, reservation
        self.opening: Callable[[], tuple[Any, ...]]
        self.say: Callable[[str], None]
        self.slots = [Slot(number, actor) for number, actor in enumerate(begun or [None] * plan.actors)]
        self.background: deque[Call] = deque()  # evaluations not yet sent
        # Calls to be repeated, and suspected ones, which wait for an actor of their own.
        self.again: deque[Call] = deque()
        self.draining = False
        self.replaced = 0
        self.opened = False  # whether all were ready once
        self.before_evaluation: Callable[[Slot], None] = lambda slot: None  # called where a slot holds part of a sum

    def open(self, opening: Callable[[], tuple[Any, ...]], say: Callable[[str], None]) -> list[ActorInfo]:
        """Make every actor ready for a run, and start missing ones.

        Args:
            opening: makes the arguments of :meth:`ClientActor.open`, now and for every actor that is started later.
            say: takes a line to show to people.
        """
        self.opening, self.say = opening, say
        for slot in list(self.slots):
            if slot.actor is None:
                self._start(slot)
            else:
                slot.info = None
                self.send(slot, Call("open", opening(), limit_s=START_S))
        while any(slot.info is None for slot in self.slots):
            self.advance()
        if not self.slots:
            raise StateLost("all actors lost")
        self.opened = True
        return [slot.info for slot in self.slots if slot.info is not None]

    # -- sending ------------------------------------------------------------------------------------------------------

    def room(self) -> bool:
        """Whether some actor can take a call now, and no call is waiting for an actor."""
        return not self.again and any(len(slot.queue) < PER_ACTOR for slot in self._preferred())

    def submit(self, call: Call) -> None:
        """Send a call to the actor that holds the fewest; a suspected call to the first actor that holds none."""
        if call.suspected:
            self.again.append(call)
            return
        self.send(min(self._preferred(), key=lambda slot: len(slot.queue)), call)

    def each(self, method: str, *args: Any) -> None:
        """Have every actor do something now; actors that start later get it through ``opening``."""
        calls = [Call(method, args) for slot in self.slots]
        for slot, call in zip(self.slots, calls, strict=True):
            self.send(slot, call)
        while not all(call.done for call in calls):
            self.advance()
        for call in calls:
            if call.error is not None:
                raise call.error

    def abandon(self, calls: Iterable[Call]) -> None:
        """Give up calls that nobody waits for any more: they are neither repeated nor kept."""
        for call in calls:
            call.abandoned = True

    def _preferred(self) -> list[Slot]:
        """Slots for ordinary calls: those that neither start nor evaluate, or else all that run no suspected call."""
        return [s for s in self.slots if not s.taken] or [s for s in self.slots if not s.runs_suspected_call]

    def send(self, slot: Slot, call: Call) -> None:
        """Send a call to this slot's actor, after the calls that it holds."""
        method = getattr(slot.actor, call.method).options(num_returns=call.returns)
        refs = method.remote(*call.args)
        call.refs = [refs] if call.returns == 1 else list(refs)
        slot.holds = (slot.holds or call.tag is not None) and not call.hands_over
        if not slot.queue:
            slot.head_since = time.monotonic()
        slot.queue.append(call)

    def _start(self, slot: Slot) -> None:
        """Start a new actor for the slot; its first call is ``open``."""
        slot.actor, slot.info = start_client(self.plan, self.reservation, slot.number), None
        slot.noticed = slot.holds = False
        slot.queue.clear()
        self.send(slot, Call("open", self.opening(), limit_s=START_S))

    # -- what comes back ----------------------------------------------------------------------------------------------

    def advance(self, *, block: bool = True) -> bool:
        """Take the results of finished calls; with ``block``, wait until one has finished. Returns False if none had.

        Raises:
            StateLost, UserError: no actor can be started (any more).
        """
        self._send_again()
        self._send_background()
        heads = {slot.queue[0].refs[0]: slot for slot in self.slots if slot.queue}
        if not heads:
            return False
        ready, _ = ray.wait(list(heads), num_returns=1, timeout=self._patience() if block else 0, fetch_local=False)
        for ref in ready:
            self._receive(heads[ref])
        return bool(ready) or self._expire()

    def _send_again(self) -> None:
        """Send failed calls again in the same order: suspects to an empty actor each, others to any with room."""
        while self.again:
            call = self.again[0]
            if call.abandoned:
                call.finish()
            elif call.suspected:
                empty = [slot for slot in self.slots if slot.info is not None and not slot.queue]
                if not empty:
                    return
                self.send(empty[0], call)
            else:
                free = [slot for slot in self._preferred() if len(slot.queue) < PER_ACTOR]
                if not free:
                    return
                self.send(min(free, key=lambda slot: len(slot.queue)), call)
            self.again.popleft()

    def _send_background(self) -> None:
        """Send evaluations, one per actor, to at most half of the actors unless nothing else is to be done."""
        limit = len(self.slots) if self.draining else max(1, len(self.slots) // 2)
        while self.background and sum(slot.taken for slot in self.slots) < limit:
            slot = min((s for s in self.slots if not s.taken), key=lambda s: (len(s.queue), s.holds))
            if slot.holds:
                self.before_evaluation(slot)
            self.send(slot, self.background.popleft())

    def _receive(self, slot: Slot) -> None:
        """Take the result of the first call in a slot's queue."""
        call, slot.head_since = slot.queue[0], time.monotonic()
        call.where, call.node = slot.where, slot.info.node if slot.info else ""
        try:
            value = ray.get(call.refs[0])
        except RayTaskError as error:
            slot.queue.popleft()
            call.finish(error=unwrapped(error))
        except (*DEATHS, ObjectLostError) as error:  # a reply is lost with the node the actor was on
            self._died(slot, error)
        else:
            slot.queue.popleft()
            call.finish(value)
        if call.method == "open" and call.done and not call.abandoned:
            if call.error is not None:
                raise call.error
            slot.info = call.value

    def _died(self, slot: Slot, reason: Exception) -> None:
        """Replace the slot's actor; repeat its calls, or give up the one that keeps killing actors."""
        where, calls = slot.where, [call for call in slot.queue if call.method != "open"]
        running = slot.queue[0]
        for call in slot.queue if running.method != "open" else [running]:
            call.crashes.append(f"{type(reason).__name__}: {reason}")
        ray.kill(slot.actor)
        self.replaced += 1
        constructor_raised = getattr(reason, "actor_init_failed", False)
        if running.method == "open" and (constructor_raised or len(running.crashes) >= CRASHES):
            slot.queue.clear()
            slot.actor = None
            told = f"{where} died while starting ({len(running.crashes)} times): {running.crashes[-1]}"
            if constructor_raised:  # nothing a user can mend
                raise Crashed(told)
            raise UserError(f"resources.actors: {printable(' '.join(told.split()))}; fewer actors, or more memory")
        self._start(slot)
        if running.method == "open":
            slot.queue[0].crashes = running.crashes
        self.say(f"{where} died; replaced, and {len(calls)} call(s) repeated")
        self._repeat(calls)

    def _repeat(self, calls: Iterable[Call]) -> None:
        """Queue a lost actor's calls again, except those that nobody waits for or that are given up."""
        for call in calls:
            call.refs = []
            if call.pinned:
                call.finish(error=Crashed(call.crashes[-1] if call.crashes else "its actor was stopped"))
            elif len(call.crashes) >= call.most_crashes:
                call.finish(error=Crashed(why_given_up(call)))
            elif call.abandoned:
                call.finish()
            else:
                self.again.append(call)

    # -- too late -----------------------------------------------------------------------------------------------------

    def _patience(self) -> float | None:
        """Seconds until the first running call is too late, or until a starting actor deserves a line."""
        running = [(slot, slot.queue[0]) for slot in self.slots if slot.queue]
        ends = [slot.head_since + call.limit_s for slot, call in running if call.limit_s is not None]
        ends += [slot.head_since + SLOW_S for slot, _ in running if slot.info is None and not slot.noticed]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _expire(self) -> bool:
        """Stop calls that are too late, together with their actors."""
        expired = False
        for slot in list(self.slots):
            if slot.info is None and not slot.noticed and time.monotonic() >= slot.head_since + SLOW_S:
                slot.noticed = True
                self.say(f"actor {slot.number} has not started for {SLOW_S:g} s: a slow machine, or no place for it")
            call = slot.queue[0] if slot.queue else None
            if call is None or call.limit_s is None or time.monotonic() < slot.head_since + call.limit_s:
                continue
            expired = True
            if call.method == "open":
                self._retire(slot)
                continue
            slot.queue.popleft()
            call.where = slot.where
            call.attempts -= 1
            if call.attempts and not call.abandoned:
                self.say(f"{call.where} gave no reply within {call.limit_s:g} s; replaced, and its call repeated")
                call.refs = []
                self.again.append(call)
            else:
                key = "evaluation_timeout_s" if call.method == "assess" else "client_timeout_s"
                call.finish(error=TimedOut(f"no reply within {call.limit_s:g} s (resources.{key}); actor stopped"))
            calls = [other for other in slot.queue if other.method != "open"]
            if slot.info is not None:
                end_process(slot.info)
            ray.kill(slot.actor)
            self.replaced += 1
            self._start(slot)
            self._repeat(calls)
        return expired

    def _retire(self, slot: Slot) -> None:
        """Do without an actor that cannot start because there is no node for it.

        Raises:
            StateLost: it was the last actor of a run under way, which has to go back and plan again with what is left.
            UserError: no actor ever started.
        """
        ray.kill(slot.actor)
        calls = [call for call in slot.queue if call.method != "open"]
        self.slots.remove(slot)
        if not self.slots and self.opened:
            raise StateLost(f"all actors lost, and no place for another within {START_S:g} s")
        if not self.slots:
            raise UserError(
                f"resources.actors: no actor started within {START_S:g} s; each needs {self.plan.bundle} of a living "
                "node (see what the cluster has with `rayfed-ssl doctor`)"
            )
        self.say(f"actor {slot.number} did not start within {START_S:g} s: going on with {len(self.slots)}")
        self._repeat(calls)

    def idle(self) -> None:
        """Abandon all calls that were sent or are waiting; the actors stay."""
        self.background.clear()
        self.abandon(self.again)
        for slot in self.slots:
            self.abandon(slot.queue)

    def close(self) -> None:
        """Stop the actors and give back what was reserved for them."""
        for slot in self.slots:
            if slot.actor is not None:
                ray.kill(slot.actor)
        self.slots = []
        self.background.clear()
        self.again.clear()
        self.reservation.release()


def end_process(info: ActorInfo) -> None:
    """Kill an actor's process, wherever it runs. A frozen one ignores ``ray.kill``, and would keep its place."""
    if info.node == ray.get_runtime_context().get_node_id():
        _kill(info.pid)
        return
    place = NodeAffinitySchedulingStrategy(info.node, soft=False)
    ray.remote(_kill).options(num_cpus=0, scheduling_strategy=place).remote(info.pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):  # it has just ended
        os.kill(pid, signal.SIGKILL)
