"""Running sums that actors keep over their calls in an exchange: they are handed over once, merged on their node, and
computed again if they are lost.

An actor that dies takes its running sum along. A node that dies takes along the partial sums that lay there. So every
request is kept until the whole sum has arrived. Requests that no partial sum holds are made again: integers add up to
the same bits in any grouping.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.calls import Call, Slot
from actors.failures import Crashed, StateLost, TimedOut
from actors.pool import Pool
from actors.store import nbytes
from actors.window import Request
from actors.wire import SumHeader
from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.messages import mapped

DIRECT_BYTES = 16 << 20  # partial sums of so many bytes in all are read as they are: merging them elsewhere costs more
RETAINED_BYTES = 64 << 20  # clients' own fields that are kept for a repetition; beyond that the sums are collected
HANDED_S = 60.0  # that an actor has at least to hand over, where clients have a limit
SUM_LOSSES = 5  # collections in a row that lose something, before the run goes back to its checkpoint


class PartialSum(NamedTuple):
    """A sum that an actor handed over."""

    header: SumHeader
    totals: ObjectRef
    node: str  # on which the totals lie


class Sums:
    """The sums of one exchange. Used as a context, it has actors hand over before they begin to evaluate."""

    def __init__(self, pool: Pool, limit_s: float | None = None) -> None:
        self.pool = pool
        self.limit_s = limit_s and max(limit_s, HANDED_S)  # of an actor that hands over; later its sum is lost
        self.exchange = uuid.uuid4().hex  # no other's: actors outlive cohorts
        self.requests: dict[int, Request] = {}  # by the tag of the latest call for each
        self.calls: list[Call] = []  # of ``hand_over``
        self.parts: list[PartialSum] = []
        self.read_bytes = 0  # of totals, by this process
        self._tags = 0
        self._retained: dict[int, Any] = {}  # what the requests' fields hold, by identity
        self._retained_bytes = 0

    def __enter__(self) -> Sums:
        self.pool.before_evaluation = self.hand_over
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.before_evaluation = lambda slot: None
        for slot in self.pool.slots:
            slot.holds = False

    @property
    def full(self) -> bool:
        """Whether so much is kept for a possible repetition that the sums should be collected now."""
        return self._retained_bytes > RETAINED_BYTES

    def register(self, request: Request) -> int:
        """Keep the request of a new call; returns the call's tag."""
        self._tags += 1
        self.requests[self._tags] = request
        for fields in request.fields:
            mapped(fields, self._retain)
        return self._tags

    def _retain(self, value: Any) -> Any:
        """Count values that clients share only once, such as the arrays of a bank of which each gets a list."""
        if id(value) not in self._retained:
            self._retained[id(value)] = value  # which keeps its id from being another's
            self._retained_bytes += nbytes(value)
        return value

    def forget(self, call: Call) -> None:
        """Note that a call failed, and its actor with it: the sum does without its request."""
        if call.tag is not None:
            del self.requests[call.tag]

    def replied(self, call: Call, clients: tuple[int, ...], header: SumHeader | None) -> None:
        """Note who replied to a call. With a ``header``, its second return value is the actor's sum."""
        if call.tag is not None:
            self.requests[call.tag].replied = clients
        if header is not None:
            self._arrived(header, call)

    def hand_over(self, slot: Slot) -> None:
        """Have an actor hand over its sum before it does anything that is sent to it later."""
        call = Call("hand_over", (self.exchange,), returns=2, limit_s=self.limit_s, pinned=True)
        self.calls.append(call)
        self.pool.send(slot, call)
        slot.holds = False

    def collect(self, repeat: Callable[[Sequence[Request]], None]) -> FixedPointSum:
        """Collect the whole sum.

        Args:
            repeat: asks again for what was lost.
        Raises:
            StateLost: sums were lost again and again.
            MixedArchitectures: the partial sums differ in their fields.
        """
        losses = 0
        while True:
            for slot in [s for s in self.pool.slots if s.holds]:
                self.hand_over(slot)
            while not all(call.done for call in self.calls):
                self.pool.advance()
            if broken := [c.error for c in self.calls if c.error and not isinstance(c.error, Crashed | TimedOut)]:
                raise broken[0]
            for call in self.calls:
                if call.error is None:
                    self._arrived(call.value, call)
            self.calls = []
            held = [tag for part in self.parts for tag in part.header.tags]
            known = set(held)
            if len(known) != len(held) or not self.requests.keys() >= known:
                raise RuntimeError(f"sums hold calls {sorted(held)}, requests were {sorted(self.requests)}")
            if missing := [tag for tag in self.requests if tag not in known]:
                losses += 1
                if losses == SUM_LOSSES:
                    raise StateLost(f"a sum was lost {losses} times: its actor died, or did not hand it over")
                repeat([again for tag in missing for again in self.requests.pop(tag).again()])
                continue
            try:
                return self._merged()
            except RayError as error:
                losses += 1
                if losses == SUM_LOSSES or not _means_lost(error):
                    raise StateLost(f"a sum was lost {losses} times: {type(error).__name__}") from None
                self._forget_lost()

    def _arrived(self, header: SumHeader, call: Call) -> None:
        if header.tags:
            self.parts.append(PartialSum(header, call.refs[1], call.node))

    def _merged(self) -> FixedPointSum:
        """Read the sums that were handed over. Actors whose clients all failed have none."""
        parts, total = [part for part in self.parts if part.header.total.templates], FixedPointSum()
        for part in parts[1:]:
            parts[0].header.total.must_match(part.header.total)
        refs = [part.totals for part in parts]
        if sum(part.header.nbytes for part in parts) > DIRECT_BYTES:
            home = ray.get_runtime_context().get_node_id()
            refs = merged_where_they_lie([(part.totals, part.node) for part in parts], home)
        for totals in ray.get(refs):
            read = FixedPointSum()
            read.totals, read.templates = totals, parts[0].header.total.templates
            total.merge(read)
            self.read_bytes += sum(array.nbytes for array in totals.values())
        total.weight = sum(part.header.total.weight for part in parts)
        self.parts, self.requests = [], {}
        return total

    def _forget_lost(self) -> None:
        """Forget the sums on dead nodes, or all of them if no dead node explains the loss."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        kept = [part for part in self.parts if part.node in alive]
        self.parts = kept if len(kept) < len(self.parts) else []


def _means_lost(error: RayError) -> bool:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return not isinstance(error, RayTaskError) or isinstance(cause, ObjectLostError)


def merged_where_they_lie(sums: Sequence[tuple[ObjectRef, str]], home: str) -> list[ObjectRef]:
    """References to one or two sums that add up to all of them: they are merged pairwise on each node, then over nodes.

    The caller owns the tasks and what they return, so no actor's death destroys it.

    Args:
        sums: references to dicts of arrays, each with the node it lies on.
        home: the caller's node, where it adds two sums itself: they are mapped there, not copied.
    """
    add = ray.remote(_adder())

    def on(node: str, a: ObjectRef, b: ObjectRef) -> ObjectRef:
        place = NodeAffinitySchedulingStrategy(node, soft=True)
        return add.options(num_cpus=0, scheduling_strategy=place).remote(a, b)

    nodes: dict[str, list[ObjectRef]] = {}
    for ref, node in sums:
        nodes.setdefault(node, []).append(ref)
    enough = 2 if set(nodes) == {home} else 1
    for node, refs in nodes.items():
        while len(refs) > enough:
            refs[:] = [on(node, *pair) if len(pair) == 2 else pair[0] for pair in _pairs(refs)]
    if set(nodes) == {home}:
        return nodes[home]
    rest = sorted(nodes, key=lambda node: node != home)  # the caller's node first
    while len(rest) > 2:
        for pair in _pairs(rest[1:] if rest[0] == home else rest):
            if len(pair) == 2:
                nodes[pair[0]] = [on(pair[0], nodes[pair[0]][0], nodes[pair[1]][0])]
                rest.remove(pair[1])
    return [nodes[node][0] for node in rest]


def _pairs(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return [items[i : i + 2] for i in range(0, len(items), 2)]


def _adder() -> Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """A function that travels by value: the process that runs it imports numpy, and neither this library nor torch."""

    def add(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: total + b[name] for name, total in a.items()}

    return add
