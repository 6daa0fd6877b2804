"""The window of a cohort: few requests in flight, replies in order, suspects alone and before everybody else."""

from __future__ import annotations

from collections import deque

from actors.calls import Call
from actors.window import Group, Request, Window


def made(item: Group | Request) -> Request:
    return item if isinstance(item, Request) else Request(item, ({},) * len(item), (None,) * len(item))


def send(window: Window) -> Call:
    request, call = made(window.next_to_send()), Call("chunk", ())
    window.sent(request, call)
    return call


def taken(window: Window) -> Group | None:
    done = window.next_done()
    return None if done is None else done[0].group


def test_replies_are_taken_in_the_order_of_the_requests() -> None:
    window = Window(deque([(0,), (1,), (2,)]), 2, lambda: False)
    first, second = send(window), send(window)
    assert not window.may_send  # two are in flight
    second.finish()
    assert taken(window) is None  # the first comes first
    first.finish()
    assert [taken(window), taken(window), taken(window)] == [(0,), (1,), None]
    assert window.may_send
    assert window.unfinished
    send(window).finish()
    assert taken(window) == (2,)
    assert not window.unfinished


def test_suspects_are_asked_alone_before_anything_else_is_sent_or_taken() -> None:
    window = Window(deque([(0, 1), (2, 3), (4, 5)]), 3, lambda: False)
    for _ in range(2):
        send(window).finish()
    done = window.next_done()
    assert done is not None
    window.suspect(done[0])
    calls = [send(window), send(window)]
    assert not window.may_send  # though (4, 5) is queued
    assert taken(window) is None  # though (2, 3) is done
    assert len(window.calls) == 3
    for call in calls:
        call.finish()
    assert [taken(window), taken(window), taken(window)] == [(0,), (1,), (2, 3)]
    assert window.may_send


def test_where_it_is_paused_only_what_was_asked_before_is_sent() -> None:
    again = Request((7,), ({},), (None,), repeated=True)
    window = Window(deque([again, (8,)]), 3, lambda: True)
    send(window).finish()
    assert not window.may_send
    assert taken(window) == (7,)
    assert not window.unfinished  # (8,) stays queued
    assert list(window.queued) == [(8,)]


def test_only_who_replied_is_asked_again() -> None:
    request = Request((3, 4, 5), ({"a": 3}, {"a": 4}, {"a": 5}), (None, None, None), replied=(3, 5))
    (again,) = request.again()
    assert (again.group, again.fields, again.repeated, again.suspect) == ((3, 5), ({"a": 3}, {"a": 5}), True, False)
    assert [(one.group, one.repeated, one.suspect) for one in again.suspects()] == [
        ((3,), True, True),
        ((5,), True, True),
    ]
    assert Request((3,), ({},), (None,)).again() == []
