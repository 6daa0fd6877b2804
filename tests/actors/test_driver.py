"""The driver: a run through it, stopped and resumed, and how it goes back to a checkpoint."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError, RpcError
from ray.util.placement_group import placement_group_table

from actors import driver as module
from actors import follow as following
from actors.driver import Driver, ProgressLog
from actors.failures import StateLost
from actors.follow import run_on_ray
from actors.order import RESTARTS, RunOrder, Update
from actors.plan import reserve
from actors.shares import Plan
from actors.testing import close_pools
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.user_error import StoppedAtOnce
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.messages import ClientError, OperationResult, State
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.worker import Worker
from rayfed_ssl.storage import failure
from tests.cluster.processes import until
from tests.tiny import booked, encoders, measured, run_locally, tiny

ON_RAY = {"resources__actors": 2, "resources__cpus_per_client": 0.5, "resources__device": "cpu"}


@dataclass(frozen=True)
class Gated:
    """Makes workers whose clients make the file "reached" in round 2, and wait until the file "go" exists."""

    folder: Path

    def __call__(self, config: RunConfig, federation: Federation) -> Worker:
        reached, go = self.folder / "reached", self.folder / "go"

        class Waiting(Worker):
            def execute(self, operation: str, client: int, round: int, *rest: Any) -> tuple[OperationResult, State]:
                if round == 2:
                    reached.touch()
                    assert until(go.exists, 120)
                return super().execute(operation, client, round, *rest)

        return Waiting(config, federation)


@pytest.mark.long
def test_a_run_stopped_and_resumed_on_ray_is_the_run_in_process(ray_session: ModuleType, tmp_path: Path) -> None:
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    config, seen, looks = tiny("fedbyol", train__rounds=4, **ON_RAY), [Progress(0, 0, "")], [False]

    def stopping() -> bool:
        looks.append((tmp_path / "reached").exists())
        if sum(looks) > 3:  # the driver has answered several times since it was sent the wish
            (tmp_path / "go").touch()
        return looks[-1]

    first = run_on_ray(config, tmp_path / "ray", report=seen.append, stopping=stopping, factory=Gated(tmp_path))
    assert (first["status"], first["rounds"]) == ("stopped", 2)
    assert any("2 client actor(s) of 0.5 CPU" in p.line for p in seen)
    assert any(p.line == "round 1/4" and p.values for p in seen)
    seen.clear()
    alone = tiny("fedbyol", train__rounds=4, **{**ON_RAY, "resources__actors": 1})
    second = run_on_ray(alone, tmp_path / "ray", resume=True, report=seen.append)
    assert second["status"] == "complete"
    assert any("resumed from round 2" in p.line for p in seen)
    assert [p.line for p in seen].count("round 4/4") == 1  # nothing is reported twice
    summary = run_locally(tiny("fedbyol", train__rounds=4), tmp_path / "local")
    assert second["accuracy"] == summary["accuracy"]
    assert second["communication"] == summary["communication"]
    for read in (encoders, measured, booked):
        assert read(tmp_path / "ray") == read(tmp_path / "local")  # type: ignore[operator]


@pytest.mark.long
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_run_that_ends_at_once_gives_its_bundles_back(
    ray_session: ModuleType, tmp_path: Path, error: type[BaseException]
) -> None:
    """A second Ctrl-C, or what a function of one's own for reports raises, kills the driver, and the session, as a
    notebook's, stays.
    """

    def groups() -> list[str]:
        return [each["placement_group_id"] for each in placement_group_table().values() if each["state"] != "REMOVED"]

    before, during = groups(), []

    def interrupted(progress: Progress) -> None:
        if progress.values:
            during.extend(groups())
            raise error

    with pytest.raises(error):
        run_on_ray(
            tiny("fedsimclr", train__rounds=500, **ON_RAY), tmp_path / "run", report=interrupted,
            stopping=lambda: bool(during),
        )  # fmt: skip
    assert len(during) == len(before) + 1
    assert groups() == before


@pytest.mark.long
def test_a_run_that_is_stopped_while_it_waits_for_its_place_ends_and_leaves_nothing(
    ray_session: ModuleType, tmp_path: Path
) -> None:
    close_pools()
    held = reserve(Plan(4, cpus=1.0, gpus=0.0, threads=1, strategy="PACK"), 60)
    lines: list[str] = []
    try:
        with pytest.raises(StoppedAtOnce, match=r"^stopped at once, while it waited for 2 x 0\.5 CPU; --resume"):
            run_on_ray(
                tiny("fedsimclr", resources__wait_s=600, **ON_RAY), tmp_path / "run",
                report=lambda progress: lines.append(progress.line),
                stopping=lambda: any(line.startswith("waiting up to 600 s") for line in lines),
            )  # fmt: skip
    finally:
        held.release()
    assert not (tmp_path / "run").exists()


def test_a_driver_that_dies_again_and_again_ends_the_run_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(following.time, "sleep", paused.append)
    said: list[str] = []
    losses = following.DriverDeaths(said.append)
    seen = losses.watching(lambda progress: None)
    died = OutOfMemoryError("the node was low on memory:\n  95% in use")
    for _ in range(2):
        losses.wait(died)
    assert paused == [2.0, 4.0]
    assert said[0].startswith("the driver's process died (")
    assert said[0].endswith("); another starts in 2 s")
    seen(Progress(3, 9, "round 3/9"))  # it got further: not in a row
    for _ in range(RESTARTS):
        losses.wait(died)
    with pytest.raises(UserError, match=r"resources: the run's driver died \d+ times in a row.*and --resume") as caught:
        losses.wait(died)
    assert paused[2:] == [2.0 * 2**n for n in range(RESTARTS)]
    assert f"died {RESTARTS + 1} times" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_folder_with_a_run_is_refused_as_a_user_error(ray_session: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: mine\n")
    with pytest.raises(UserError, match="already holds a run") as caught:
        run_on_ray(tiny("fedsimclr", **{**ON_RAY, "resources__actors": 1}), tmp_path)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "config.yaml").read_text() == "name: mine\n"


def test_what_cannot_be_scheduled_is_refused_before_anything_is_written(
    ray_session: ModuleType, tmp_path: Path
) -> None:
    wishes = {"actors": 5, "gpus_per_client": 0.25, "cpus_per_client": 0.1, "device": "auto"}
    config = tiny("fedsimclr", **{f"resources__{key}": value for key, value in wishes.items()})
    with pytest.raises(UserError, match=r"5 actors x 0\.25 GPU = 1\.25 GPUs, the cluster has 1\.0: at most 4"):
        run_on_ray(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    outcomes: list[Any],
    rounds: list[int],
    statuses: list[str] | None = None,
) -> tuple[Driver, list[bool]]:
    """A driver object in this process whose runs write their config and end as told; which of them were resumed.

    Args:
        statuses: gets the driver's status before and after each run has begun.
    """
    resumed: list[bool] = []
    statuses = [] if statuses is None else statuses

    def run(
        config: Any, folder: Path, connect: Any, *, resume: bool, report: Any, stopping: Any, saved: Any, begun: Any
    ) -> dict[str, Any]:
        resumed.append(resume)
        statuses.append(driver.state()[0])
        begun()
        statuses.append(driver.state()[0])
        (folder / "config.yaml").write_text("name: mine\n")
        report(Progress(rounds[len(resumed) - 1], 9, "round"))
        outcome = outcomes[len(resumed) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    monkeypatch.setattr(module.loop, "run", run)
    driver = Driver.__new__(Driver)
    order: Any = SimpleNamespace(config=tiny("fedsimclr"), folder=folder, uri=None, resume=False, group="mine")
    driver.order, driver.restarted, driver.reconstructed, driver.process = order, False, False, "here"
    driver.begun, driver.under_way = None, False
    driver.reported, driver.status, driver.result = ProgressLog(), "waiting", None
    driver.stop_wanted = threading.Event()
    return driver, resumed


def test_a_run_waits_until_nothing_can_be_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    statuses: list[str] = []
    driver, _ = scripted(monkeypatch, tmp_path, [StateLost("lost"), {}], [1, 2], statuses)
    driver.run()
    assert statuses == ["waiting", "running", "running", "running"]  # a run under way does not wait again
    assert driver.state()[0] == "done"


@pytest.mark.parametrize("outcome", [StoppedAtOnce("stopped at once, while it waited"), {"status": "stopped"}])
def test_a_run_that_was_stopped_did_not_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: StoppedAtOnce | dict[str, str]
) -> None:
    """Neither while it waited for its place nor after a round; who lists detached runs reads this."""
    driver, _ = scripted(monkeypatch, tmp_path, [outcome], [0])
    with pytest.raises(StoppedAtOnce) if isinstance(outcome, Exception) else nullcontext():
        driver.run()
    assert driver.state()[0] == driver.progress().status == "stopped"


@pytest.mark.parametrize("under_way", [True, False])
def test_a_run_under_way_that_is_stopped_while_it_waits_to_go_on_did_not_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, under_way: bool
) -> None:
    """Its folder keeps no trace of the loss. Of a run that failed before, and whose resume did not begin, it does."""
    stopped = StoppedAtOnce("stopped at once, while it waited")
    driver, _ = scripted(
        monkeypatch, tmp_path, [StateLost("all actors lost"), stopped] if under_way else [stopped], [4] * 2
    )
    ending = module.loop.run

    def run(*arguments: Any, **options: Any) -> dict[str, Any]:
        try:
            return ending(*arguments, **options)
        except StateLost as error:
            failure.keep(tmp_path, error)  # as the loop does
            raise

    monkeypatch.setattr(module.loop, "run", run)
    failure.keep(tmp_path, OSError("of an earlier attempt"))
    with pytest.raises(StoppedAtOnce):
        driver.run()
    assert failure.kept(tmp_path) == (None if under_way else "OSError: of an earlier attempt")


def test_who_comes_after_a_driver_knows_that_it_was_asked_to_stop(
    ray_session: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "restarted", lambda: False)

    def driver(run: str) -> Driver:
        plan = Plan(1, cpus=0.5, gpus=0.0, threads=1, strategy="PACK")
        return Driver(RunOrder(tiny("fedsimclr"), tmp_path, False, plan, run, tuple(sys.argv), os.getcwd()))

    first = driver("one")
    assert not first.stop_wanted.is_set()
    first.stop()
    assert driver("one").stop_wanted.is_set()
    assert not driver("another").stop_wanted.is_set()


def test_a_driver_whose_head_does_not_answer_stops_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It tells who asked, and has the head note the next request."""
    driver, _ = scripted(monkeypatch, tmp_path, [], [])
    driver.stop_noted, noted, asleep = False, list[str](), [True]

    def put(run: str, value: bytes, *, namespace: str) -> None:
        if asleep:
            raise RpcError("RPC error:\n  Deadline Exceeded")
        noted.append(run)

    monkeypatch.setattr(module.kv, "_internal_kv_put", put)
    assert driver.stop() == "RPC error: Deadline Exceeded"
    assert driver.stop_wanted.is_set()
    asleep.clear()
    assert [driver.stop(), driver.stop()] == [None, None]
    assert noted == ["mine"]


def test_actors_that_were_started_for_nothing_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The driver has begun them before it knows whether their bundles come."""
    driver, _ = scripted(monkeypatch, tmp_path, [], [])
    closed: list[str] = []

    def close() -> None:
        closed.append(driver.state()[0])  # not failed yet: who follows it kills a driver that failed

    driver.begun = SimpleNamespace(reservation=None, actors=[], close=close)  # type: ignore[assignment]
    driver.plan = None  # type: ignore[assignment]

    def never(*rest: Any) -> None:
        raise UserError("resources.wait_s: waited 1 s")

    def connecting(config: Any, folder: Path, connect: Any, **options: Any) -> None:
        connect(config, None, None)

    monkeypatch.setattr(module, "await_ready", never)
    monkeypatch.setattr(module.loop, "run", connecting)
    with pytest.raises(UserError, match="waited 1 s"):
        driver.run()
    assert closed == ["waiting"]
    assert driver.state()[0] == "failed"


def test_lost_state_sends_the_run_back_to_its_checkpoint_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver, resumed = scripted(
        monkeypatch, tmp_path, [StateLost("state of client 3 lost"), {"status": "complete"}], [4, 9]
    )
    assert driver.run() == {"status": "complete"}
    assert resumed == [False, True]
    assert "state of client 3 lost; going on from the newest checkpoint" in lines_of(driver.reported, 0)
    assert driver.progress(0).status == "done"


def test_state_lost_again_and_again_without_progress_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver, resumed = scripted(monkeypatch, tmp_path, [StateLost("lost")] * 9, [4] * 9)
    with pytest.raises(UserError, match=r"resources: lost, 3 times in a row .*--resume"):
        driver.run()
    assert len(resumed) == 3
    driver, resumed = scripted(
        monkeypatch, tmp_path, [*[StateLost("lost")] * 5, {}], [1, 2, 3, 4, 5, 9]
    )  # with rounds between
    driver.run()
    assert len(resumed) == 6


def test_errors_that_cannot_travel_become_their_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Awkward(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("only one argument")

    driver, _ = scripted(monkeypatch, tmp_path, [Awkward(1, 2)], [1])
    with pytest.raises(Awkward):
        driver.run()
    assert "only one argument" in str(driver.progress(0).result)
    error = ClientError(3, 2, "train", "actor 0", "trace")
    driver, _ = scripted(monkeypatch, tmp_path, [error], [1])
    with pytest.raises(ClientError):
        driver.run()
    assert driver.progress(0).result is error
    assert [p.round for p in driver.progress(0).progress] == [1]
    assert driver.progress(1).progress == []


def lines_of(log: ProgressLog, since: int) -> list[str]:
    return [progress.line for progress in log.since(since)[0]]


def test_lines_that_their_reader_has_are_kept_no_longer() -> None:
    log = ProgressLog()
    for number in range(5):
        log.append(Progress(number, 9, f"line {number}"))
    assert lines_of(log, 0) == [f"line {number}" for number in range(5)]
    assert lines_of(log, 0) == [f"line {number}" for number in range(5)]  # the answer was lost: asked again
    assert lines_of(log, 3) == ["line 3", "line 4"]
    assert lines_of(log, 0) == ["line 3", "line 4"]  # nobody asks for the others again
    log.append(Progress(5, 9, "line 5"))
    assert lines_of(log, 5) == ["line 5"]
    assert (lines_of(log, 6), log.round) == ([], 5)


def test_a_late_evaluation_takes_no_round_back() -> None:
    log = ProgressLog()
    for progress in (Progress(5, 9, "resumed from round 5"), Progress(6, 9, "round 6/9"), Progress(5, 9, "evaluated")):
        log.append(progress)
    assert log.round == 6


def test_a_reader_of_the_driver_before_takes_no_line_from_its_successor() -> None:
    log = ProgressLog()
    log.append(Progress(1, 9, "going on"))
    assert lines_of(log, 50) == []
    assert lines_of(log, 0) == ["going on"]


def test_of_a_detached_run_the_newest_lines_are_kept() -> None:
    log = ProgressLog(kept=3)
    for number in range(8):
        log.append(Progress(number, 9, f"line {number}"))
    assert (lines_of(log, 0), log.round) == (["line 5", "line 6", "line 7"], 7)
    assert lines_of(log, 7) == ["line 7"]
    assert lines_of(log, 8) == []
    assert lines_of(log, 0) == ["line 5", "line 6", "line 7"]  # another reader's


def test_who_attaches_late_is_told_each_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest lines are kept, and more of them may come between two looks than are."""
    log, came = ProgressLog(kept=3), iter([8, 0, 1, 5, 0])

    def look(driver: Any, since: int) -> Update:
        for _ in range(new := next(came)):
            log.append(Progress(log.round + 1, 99, f"line {log.round + 1}"))
        return Update("it", *log.since(since), "running" if new or log.round < 14 else "done")

    monkeypatch.setattr(following, "look", look)
    monkeypatch.setattr(following, "POLL_S", 0.0)
    told: list[str] = []
    driver: Any = None
    following.follow(driver, lambda progress: told.append(progress.line))
    assert told == [f"line {number}" for number in (6, 7, 8, 9, 12, 13, 14)]
