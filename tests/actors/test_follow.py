"""A detached run whose driver is gone, or does not answer: one line that says what can be done."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, OutOfMemoryError

from actors import follow
from actors.session import Session
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.user_error import StoppedAtOnce


def unreachable(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A cluster whose drivers answer with ``error``."""

    def raises(*_: Any, **__: Any) -> Any:
        raise error

    called = SimpleNamespace(remote=lambda *_: None)
    driver = SimpleNamespace(stop=called, target=called, progress=called)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(follow, "connect", lambda address: nullcontext())
    monkeypatch.setattr(follow, "find", lambda name: driver)
    monkeypatch.setattr(follow.ray, "get", raises)


def test_a_run_whose_driver_died_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable(monkeypatch, OutOfMemoryError("its node\nis low on memory"))
    with pytest.raises(
        UserError, match=r"^mine: its driver died \(its node is low on memory\); run --resume on its folder"
    ):
        follow.attach("mine", lambda progress: None)
    with pytest.raises(UserError, match=r"^mine: its driver died"):
        follow.stop("mine")


def test_a_driver_that_does_not_hear_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable(monkeypatch, GetTimeoutError("too late"))
    with pytest.raises(UserError, match=r"^mine: its driver gave no answer within 60 s; try again$"):
        follow.stop("mine")


def test_a_driver_that_died_with_its_ray_after_a_stop_has_no_successor() -> None:
    ours, cluster = (Session(local=local, node="here") for local in (True, False))
    with pytest.raises(StoppedAtOnce, match=r"the process that trained ended, too; --resume continues"):
        follow.refuse_successor(ours, lambda: True)
    follow.refuse_successor(ours, lambda: False)
    follow.refuse_successor(cluster, lambda: True)  # which goes on, and so can the run
