"""Leaving a run, and a detached run whose driver is gone, or does not answer: one line says what can be done."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, OutOfMemoryError

from actors import follow
from actors.order import Update
from actors.session import Session
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.user_error import StoppedAtOnce
from rayfed_ssl.commands.detached import stop
from rayfed_ssl.simulation.progress import Progress
from tests.tiny import tiny


def unreachable(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A cluster whose drivers answer with ``error``."""

    def raises(*_: Any, **__: Any) -> Any:
        raise error

    called = SimpleNamespace(remote=lambda *_: None)
    driver = SimpleNamespace(stop=called, state=called, target=called, progress=called)
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


UNNOTED = "RPC error: Deadline Exceeded"


@pytest.mark.parametrize(
    ("status", "unnoted", "said"),
    [
        ("running", None, "it stops after its round, with a checkpoint; watch it with: rayfed-ssl attach it"),
        ("waiting", None, "it stops before its next round; watch it with: rayfed-ssl attach it"),
        (
            "running", UNNOTED, "it stops after its round, with a checkpoint, unless its driver dies before: Ray's "
            f"head did not note it ({UNNOTED}); watch it with: rayfed-ssl attach it",
        ),
        ("done", UNNOTED, "it has ended before; see how with: rayfed-ssl attach it"),
    ],
)  # fmt: skip
def test_who_stops_is_told_when_the_run_stops(
    status: str, unnoted: str | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unreachable(monkeypatch, GetTimeoutError("never"))
    monkeypatch.setattr(follow.ray, "get", lambda *_, **__: [unnoted, (status, 3)])
    stop("it")
    assert capsys.readouterr().out == f"{said}\n"


def leaving(monkeypatch: pytest.MonkeyPatch, *updates: Update) -> list[object]:
    """What is to be left running looks like these updates, one after the other; returns the drivers that are killed."""
    left, killed = iter(updates), list[object]()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(follow, "connect", lambda address: nullcontext())
    monkeypatch.setattr(follow, "start", lambda *_, **__: ("the driver", SimpleNamespace(lines=())))
    monkeypatch.setattr(follow, "look", lambda driver, since: next(left))
    monkeypatch.setattr(follow, "POLL_S", 0.0)
    monkeypatch.setattr(follow.ray, "kill", killed.append)
    return killed


READ = Progress(0, 2, "tiny: 120 training images")


def test_what_is_refused_after_the_images_are_read_is_told_to_who_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = Update("it", [], 1, "failed", UserError("clients.count: found 10000; 9 MB of memory are free"))
    killed = leaving(monkeypatch, Update("it", [READ], 1, "waiting"), refused)
    with pytest.raises(UserError, match=r"^clients\.count: found 10000"):
        follow.detach(tiny("fedsimclr"), tmp_path)
    assert killed == ["the driver"]


@pytest.mark.parametrize(("status", "goes_on"), [("running", True), ("done", False)])
def test_who_leaves_is_told_whether_the_run_goes_on(
    status: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed = leaving(monkeypatch, Update("it", [READ], 1, "waiting"), Update("it", [], 1, status))
    assert follow.detach(tiny("fedsimclr"), tmp_path) is goes_on
    assert killed == []  # who attaches reads its result


def test_a_run_that_is_stopped_while_it_waits_says_so_to_who_leaves_or_attaches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped = Update("it", [], 1, "stopped", StoppedAtOnce("stopped at once, while it waited for 2 x 1 CPU"))
    killed = leaving(monkeypatch, stopped, stopped)
    with pytest.raises(StoppedAtOnce, match="while it waited"):
        follow.detach(tiny("fedsimclr"), tmp_path)
    assert killed == ["the driver"]
    driver = SimpleNamespace(target=SimpleNamespace(remote=lambda: None))
    monkeypatch.setattr(follow, "find", lambda name: driver)
    monkeypatch.setattr(follow.ray, "get", lambda _: ("/runs/it", 9))
    with pytest.raises(StoppedAtOnce, match="while it waited"):
        follow.attach("it", lambda progress: None)
    assert killed == ["the driver", driver]


def test_who_leaves_hears_that_the_driver_died(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaving(monkeypatch)

    def dead(driver: object, since: int) -> Update:
        raise OutOfMemoryError("its node is low on memory")

    monkeypatch.setattr(follow, "look", dead)
    with pytest.raises(UserError, match=r"^tiny: its driver died \(its node is low on memory\)"):
        follow.detach(tiny("fedsimclr"), tmp_path)


def test_a_driver_that_died_with_its_ray_after_a_stop_has_no_successor() -> None:
    ours, cluster = (Session(local=local, node="here") for local in (True, False))
    with pytest.raises(StoppedAtOnce, match=r"the process that trained ended, too; --resume continues"):
        follow.refuse_successor(ours, lambda: True)
    follow.refuse_successor(ours, lambda: False)
    follow.refuse_successor(cluster, lambda: True)  # which goes on, and so can the run
