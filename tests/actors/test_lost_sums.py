"""Sums that are lost again and again: the run goes back to its checkpoint instead of asking for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.calls import Call
from actors.failures import Crashed, StateLost, TimedOut
from actors.sums import HANDED_S, SUM_LOSSES, Sums
from actors.window import Request


class Pool:
    """A pool of one actor, which never hands over what it holds."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.slots = [SimpleNamespace(holds=False)]
        self.sent: list[Call] = []

    def send(self, slot: Any, call: Call) -> None:
        self.sent.append(call)
        call.finish(error=self.error)

    def advance(self) -> None:
        raise AssertionError("nothing is running")


@pytest.mark.parametrize("error", [Crashed("signal 9"), TimedOut("no reply within 60 s")])
def test_an_actor_that_never_hands_over_is_not_asked_for_ever(error: Exception) -> None:
    pool = Pool(error)
    sums = Sums(pool, limit_s=5.0)  # type: ignore[arg-type]
    repeated: list[tuple[int, ...]] = []

    def ask(requests: Any) -> None:
        for one in requests:
            repeated.append(one.group)
            sums.requests[sums.register(one)].replied = one.group
        pool.slots[0].holds = True

    ask([Request((1, 2), ({}, {}), (None, None))])
    with pytest.raises(StateLost, match=f"a sum was lost {SUM_LOSSES} times: its actor died, or did not hand it over"):
        sums.collect(ask)
    assert repeated == [(1, 2)] * SUM_LOSSES  # the first time, and once more after every loss but the last
    assert {call.limit_s for call in pool.sent} == {HANDED_S}  # more than a client has


def test_what_is_wrong_with_a_sum_itself_is_not_repeated() -> None:
    pool = Pool(ZeroDivisionError("its own"))
    sums = Sums(pool)  # type: ignore[arg-type]
    sums.register(Request((1,), ({},), (None,)))
    pool.slots[0].holds = True
    with pytest.raises(ZeroDivisionError):
        sums.collect(lambda lost: None)
    assert pool.sent[0].limit_s is None


def test_fields_that_clients_share_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.sums.RETAINED_BYTES", 1000)
    sums = Sums(Pool(Crashed("never asked")))  # type: ignore[arg-type]
    shared, own = np.zeros(100, np.float32), [np.zeros(100, np.float32) for _ in range(2)]
    for client in range(50):
        sums.register(Request((client,), ({"rest": shared, "alpha": 0.5},), (None,)))
        sums.register(Request((client,), ({"bank": [shared, {"theirs": shared}]},), (None,)))
    assert not sums.full
    sums.register(Request((50, 51), ({"rest": own[0]}, {"rest": own[1]}), (None, None)))
    assert sums.full
