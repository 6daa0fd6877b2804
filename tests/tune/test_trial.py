"""A trial that lost its actors or was killed in the middle of an exchange; a sweep that waits for a place."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors import store as stores
from actors.failures import StateLost
from actors.shares import Plan
from rayfed_ssl.base.lock import Lock
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.results import Evaluated, EvaluatedEncoder
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.blocks import ResourcesConfig
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.resuming import examine_folder
from rayfed_ssl.storage import checkpoint, failure
from rayfed_ssl.storage.claim import LOCK
from tests.command_line import caller
from tests.tiny import tiny
from tests.tune.sweeps import GRID, LR, sweep
from tune import files as sweep_files
from tune import room as room_module
from tune import sweep as sweep_module
from tune import trial as module
from tune import watch as watch_module
from tune.book import Book, Entry, history, scheduled
from tune.config import Sweep
from tune.room import Patience, TrialSlots
from tune.schedulers import SynchronousPopulation, scheduler
from tune.search import Proposals
from tune.sweep import run_sweep
from tune.trial import LOG, RoundsMeasured, Trial, TrialOrder, exploit, finish_exchange
from tune.watch import StoppedBeforePlacement, Watch

SLOTS = TrialSlots(2, Plan(2, cpus=1.0, gpus=0.0, threads=1, strategy="PACK"), "node:1.2.3.4")


class FakePool:
    """Actors in name only."""

    made: list[FakePool] = []  # noqa: RUF012

    def __init__(self, plan: Plan, reservation: Any) -> None:
        self.plan, self.slots, self.closed = plan, [0], False
        FakePool.made.append(self)

    def close(self) -> None:
        self.slots, self.closed = [], True


DONE = {"rounds": 9, "status": "complete"}
KEYS = {LR: 0.1, "trial": 0}


def begun(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: list[Any],
    meanwhile: Callable[[Path], None] = lambda folder: None,
) -> tuple[Trial, list[bool]]:
    """A trial in this process whose runs take a cohort, reach a round and end as told; which of them were resumed.

    Args:
        meanwhile: called with the run folder before a run ends.
    """
    resumed: list[bool] = []
    FakePool.made = []

    def run(config: Any, folder: Path, connect: Any, *, resume: bool, report: Any, stopping: Any) -> dict[str, Any]:
        round, outcome = outcomes[len(resumed)]
        resumed.append(resume)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").touch()
        connect(config, None, None)
        report(Progress(round, 9, "round"))
        meanwhile(folder)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    monkeypatch.setattr(module.loop, "run", run)
    monkeypatch.setattr(module, "Pool", FakePool)
    monkeypatch.setattr(module, "planned", lambda config: SLOTS.plan)
    monkeypatch.setattr(module, "reserve", lambda plan, wait_s, say: None)
    monkeypatch.setattr(module, "WatchedCohort", lambda config, federation, ledger, pool, **how: (pool, how))
    monkeypatch.setattr(module, "end_at_sigterm", lambda: None)  # of a process of its own
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    trial = Trial.__new__(Trial)
    trial._trial_info = SimpleNamespace(trial_name="trial-00000")
    trial.setup(KEYS, TrialOrder(sweep(folder), folder, str(Path.cwd()), ("tune",), 3))
    return trial, resumed


def test_a_trial_that_lost_its_actors_goes_back_to_its_checkpoint_with_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, resumed = begun(tmp_path, monkeypatch, [(4, StateLost("all actors lost")), (9, DONE)])
    assert trial.step() == {"round": 9, "done": True}
    assert resumed == [False, True]
    first, second = FakePool.made
    assert (first.closed, second.closed) == (True, False)
    pool, how = trial.cohort
    assert pool is second
    assert how["sharing"] == 3
    lines = (tmp_path / "trial-00000" / LOG).read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["all actors lost; going on from the newest checkpoint"]


def test_a_late_evaluation_takes_no_round_of_a_trial_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _ = begun(tmp_path, monkeypatch, [(6, StateLost("lost")), (5, DONE)])
    trial.step()
    assert trial.reached == 6


def test_a_trial_does_not_go_on_with_a_pool_that_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _ = begun(tmp_path, monkeypatch, [(9, DONE)] * 3)
    trial.step()
    trial.reset_config(KEYS)
    trial.step()
    assert len(FakePool.made) == 1  # warm
    FakePool.made[0].slots = []
    trial.reset_config(KEYS)
    trial.step()
    assert len(FakePool.made) == 2
    assert FakePool.made[0].closed


@pytest.mark.long
def test_schedulers_see_the_mean_that_the_summary_has_where_clients_share_an_encoder(tmp_path: Path) -> None:
    """FedDF's clients of one architecture: three of four hold the same, measured once."""
    one, other = "small_cnn", "small_cnn_bn"
    config = tiny("feddf", clients__encoders=[one, one, one, other], evaluation__protocols=["knn", "rank"])
    measured, seen = RoundsMeasured(), dict[int, dict[str, Any]]()

    class Watched(LocalCohort):
        def evaluate(self, round: int, encoders: Sequence[EvaluatedEncoder]) -> None:
            measured.expect(round, encoders)
            super().evaluate(round, encoders)

        def evaluations(self, *, wait: bool = False) -> list[Evaluated]:
            measured.take(found := super().evaluations(wait=wait))
            seen.update(measured.complete())
            return found

    summary = loop.run(config, tmp_path / "run", Watched)
    last = seen[config.train.rounds]
    assert len(set(summary["accuracy"]["knn"].values())) == 2  # of two architectures
    for group in ("accuracy", "features"):
        for name, values in summary[group].items():
            assert {str(client): value for client, value in last[group][name].items()} == values
            score = module.measured(last, f"{group}.{name}")
            assert score == pytest.approx(np.mean(list(values.values())))


def test_a_trial_gives_up_after_losses_in_a_row_not_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [(round, StateLost("lost")) for round in (1, 2, 3, 4, 5)]
    trial, resumed = begun(tmp_path, monkeypatch, [*lost, (9, DONE)])
    trial.step()
    assert len(resumed) == 6
    trial, resumed = begun(tmp_path, monkeypatch, [(4, StateLost("lost"))] * 9)
    with pytest.raises(UserError, match="lost, 3 times in a row"):
        trial.step()
    assert len(resumed) == 3


def test_a_trial_that_completes_has_not_failed_whatever_lies_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(folder: Path) -> None:
        failure.keep(folder, OSError("of another command"))

    trial, _ = begun(tmp_path, monkeypatch, [(9, DONE)], another)
    failure.keep(trial.folder, OSError("of an earlier attempt"))
    assert trial.step() == {"round": 9, "done": True}
    assert failure.kept(trial.folder) is None


def test_what_trials_log_is_said_once_and_nothing_of_an_earlier_session(tmp_path: Path) -> None:
    made, said = sweep(tmp_path), list[str]()
    log = tmp_path / "trial-00002" / LOG
    log.parent.mkdir()
    log.write_text("2026-01-01T10:00:00 old news\n")
    proposals = Proposals(made, Book(tmp_path, 1), lambda entry: None, lambda: False)
    watch = Watch(tmp_path, proposals, said.append, lambda: False)
    with log.open("a") as file:
        file.write("2026-01-01T10:00:01 actor 0 died; replaced\n2026-01-01T10:00:02 actor 0 died; replaced\nhalf a li")
    watch.on_step_begin(0, [])
    assert said == ["trial-00002: actor 0 died; replaced"]
    with log.open("a") as file:
        file.write("ne\n")
    watch.read_on()
    assert said[1:] == ["trial-00002: a line"]  # the time goes, up to the first blank


# -- exchanges ---------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


def exchanged(tmp_path: Path, made: Sweep) -> tuple[Path, Callable[[], None]]:
    """The folder of a run at round 7 and how it takes over a checkpoint of round 4."""
    mine, donor = tmp_path / "trial-00001", tmp_path / "donor"
    mine.mkdir()
    configfile.dump(made.config_of({LR: 0.1}), mine / "config.yaml")
    checkpoint.save(mine / "checkpoints", 7, {"w": np.zeros(2, np.float32)}, [(0, {"own": 3})])
    checkpoint.save(donor, 4, {"w": np.ones(2, np.float32)}, [(0, {"own": 3})])
    point = {LR: 0.4}
    found = checkpoint.complete(donor)[0]
    return mine, lambda: exploit(mine, found, {"trial": 5, "point": {LR: 0.5}}, made.config_of(point), point)


def half_removed(path: Path, **options: Any) -> None:
    """What a kill leaves of a folder being removed: its files are gone, or some of them."""
    for file in sorted(Path(path).rglob("*"))[-2:]:
        if file.is_file():
            file.unlink()


STEPS = [(shutil, "copytree"), (shutil, "rmtree"), (configfile, "dump"), (module, "write_json"),
         (Path, "rename"), (Path, "replace")]  # fmt: skip


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_kill_at_any_step_of_an_exchange_leaves_the_old_run_or_the_new_one(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, outcomes, left = sweep(tmp_path), list[str](), 0

    def step(real: Callable[..., Any]) -> Callable[..., Any]:
        removes = real is shutil.rmtree

        def act(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            now = left == -1
            if now and when == "within" and removes:
                half_removed(args[0])
            if now and (when == "before" or (removes and when == "within")):
                raise Killed
            result = real(*args, **options)
            if now and when == "after":
                raise Killed
            return result

        return act

    for number in range(99):
        (tmp_path / str(number)).mkdir()
        mine, take = exchanged(tmp_path / str(number), made)
        left = number
        with monkeypatch.context() as patch:
            for owner, name in STEPS:
                patch.setattr(owner, name, step(getattr(owner, name)))
            with contextlib.suppress(Killed):
                take()
        through = left >= 0
        finish_exchange(mine)
        outcomes.append(state(mine, made))
        assert not list(mine.glob(".exchange*"))
        take()  # and another one can follow
        assert state(mine, made) == "new"
        if through:
            break
    assert len(outcomes) > 9
    if when != "within":  # old up to some step, new from then on; what was not a removal is not interrupted within
        assert outcomes == sorted(outcomes, reverse=True)
        assert {*outcomes} == {"old", "new"}


def state(mine: Path, made: Sweep) -> str:
    """Which of the two runs the folder holds; fails where it is neither."""
    point = scheduled(mine, {LR: 0.1})
    found = examine_folder(made.config_of(point), mine, True, pytest.fail)  # refuses a config that is not the point's
    assert found is not None
    kind = "new" if point == {LR: 0.4} else "old"
    assert (kind, found[0]) in (("new", 4), ("old", 7))
    assert checkpoint.load(found[1])[0]["w"].tolist() == [float(kind == "new")] * 2
    assert bool(history(mine)) == (kind == "new")
    return kind


# -- waiting for a place -----------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the sweep sees of time and of the cluster."""
    now = SimpleNamespace(s=100.0, placed=False, growing=False, ceiling=None)
    for timed in (room_module, watch_module):
        monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.setattr(room_module, "placed", lambda before: now.placed)
    monkeypatch.setattr(room_module, "growing", lambda: now.growing)
    monkeypatch.setattr(room_module, "free_now", lambda: "1 CPUs, 0 GPUs")
    monkeypatch.setattr(room_module, "autoscaling_ceiling", lambda declared: now.ceiling)
    return now


def test_a_sweep_on_a_busy_cluster_says_what_it_waits_for_and_ends(clock: SimpleNamespace) -> None:
    said: list[str] = []
    patience = Patience(ResourcesConfig(wait_s=60), SLOTS, said.append)
    for clock.s in (101.0, 104.0):
        assert not patience.look()
    assert not said
    for clock.s in (106.0, 110.0, 159.0):
        assert not patience.look()
    assert said == ["waiting up to 60 s for a trial's 2 x 1 CPU; free now: 1 CPUs, 0 GPUs"]
    clock.s, clock.growing = 161.0, True
    patience.look()
    clock.growing = False
    with pytest.raises(UserError, match=r"resources\.wait_s: waited 60 s for a trial's 2 x 1 CPU; free now: 1") as end:
        patience.look()
    assert "\n" not in str(end.value)


@pytest.mark.parametrize("began", [True, False])
def test_a_sweep_that_began_or_whose_cluster_grows_waits_on(clock: SimpleNamespace, began: bool) -> None:
    said: list[str] = []
    clock.ceiling, clock.placed = None if began else {"CPU": 9.0}, began
    patience = Patience(ResourcesConfig(wait_s=60), SLOTS, said.append)
    assert patience.look() == began
    clock.placed = False
    for clock.s in (106.0, 200.0, 900.0):
        assert not patience.look()
    assert said == ["waiting for a trial's 2 x 1 CPU; free now: 1 CPUs, 0 GPUs"]


def test_a_wish_to_stop_ends_a_sweep_that_has_no_place(clock: SimpleNamespace, tmp_path: Path) -> None:
    made, stop = sweep(tmp_path), []
    proposals = Proposals(made, Book(tmp_path, 1), lambda entry: None, lambda: bool(stop))
    patience = Patience(ResourcesConfig(), SLOTS, lambda line: None)
    watch = Watch(tmp_path, proposals, lambda line: None, lambda: bool(stop), patience)
    watch.on_step_begin(0, [])
    stop.append(True)
    clock.s += 2
    with pytest.raises(StoppedBeforePlacement):
        watch.on_step_begin(1, [])


def steady_cpus(session: ModuleType) -> float:
    """The free CPUs, once actors of earlier tests are done with theirs."""
    seen: list[float] = []
    while len(seen) < 5 or len(set(seen[-5:])) > 1 or seen[-1] < 1:
        time.sleep(0.5)
        seen.append(session.available_resources().get("CPU", 0.0))
    return seen[-1]


@pytest.mark.cluster
def test_a_sweep_whose_place_others_hold_ends_in_one_line_and_can_be_resumed(
    ray_session: ModuleType, tmp_path: Path
) -> None:
    class Holder:
        def ready(self) -> None: ...

    holder = ray_session.remote(Holder).options(num_cpus=int(steady_cpus(ray_session))).remote()
    ray_session.get(holder.ready.remote())
    overrides = {"resources.cpus_per_client": 1, "resources.device": "cpu", "resources.wait_s": 6}
    made, said = sweep(tmp_path, space={LR: {"grid": [0.1]}}, overrides=overrides), list[str]()
    try:
        with pytest.raises(
            UserError, match=r"resources\.wait_s: waited 6 s for a trial's 1 x 1 CPU; free now: 0(\.\d+)? CPUs"
        ):
            run_sweep(made, tmp_path / "out", say=said.append)
    finally:
        ray_session.kill(holder)
    (waiting,) = [line for line in said if line.startswith("waiting")]
    assert waiting.startswith("waiting up to 6 s for a trial's 1 x 1 CPU; free now: 0")
    assert [entry.status for entry in Book(tmp_path / "out", 1).entries] == ["waiting"]
    assert run_sweep(made, tmp_path / "out", resume=True, say=said.append).counts == {"complete": 1}


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_a_sweep_with_a_trial_that_the_images_refused_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = sweep(tmp_path, space={"clients.count": {"grid": [2, 10_000]}}), tmp_path / "out"
    with pytest.raises(UserError, match=r"\(the trial with clients\.count=10000  seed=0\)$"):
        run_sweep(made, out)
    out.mkdir()
    sweep_files.dump(made, out)
    Book(out, 1).save()
    monkeypatch.setattr("tune.sweep.run_trials", lambda *args, **options: 1)
    monkeypatch.setattr("tune.sweep.collect", lambda made, book: book)
    assert run_sweep(made, out, resume=True) == 1


def test_a_trial_whose_process_dies_again_and_again_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_session: ModuleType
) -> None:
    attempts: list[int] = []

    def dies(made: Sweep, folder: Path, first: Any, space: Any, proposals: Proposals, *_: Any) -> list[Entry]:
        attempts.append(proposals.left)
        for entry in proposals.todo:
            entry.status = "complete" if entry.trial == 1 else "failed"
        return proposals.book.entries[:1]  # the third failed for a reason of its own

    monkeypatch.setattr(sweep_module, "_fit", dies)
    made = sweep(tmp_path, space={LR: {"grid": [0.1, 0.2, 0.3]}}, overrides={"resources.cpus_per_client": 0.5})
    lines: list[str] = []
    results = run_sweep(made, tmp_path / "out", say=lines.append)
    assert attempts == [3, 1, 1, 1, 1]
    assert lines[1:] == ["1 trial(s) whose process died go on from their newest checkpoints"] * 4
    assert results.counts == {"failed": 2, "complete": 1}
    attempts.clear()
    stopped = run_sweep(made, tmp_path / "out", resume=True, stopping=lambda: True)
    assert (attempts, stopped.counts["failed"]) == ([2], 2)


def test_a_second_sweep_in_the_folder_is_refused_before_it_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out, refused = sweep(tmp_path), tmp_path / "new" / "out", list[str]()

    def run_trials(made: Sweep, folder: Path, *args: Any, **options: Any) -> Book:
        for resume in (False, True):
            with pytest.raises(UserError) as again:
                run_sweep(made, out, resume=resume)
            refused.append(str(again.value))
        assert [path.name for path in out.iterdir()] == [LOCK]
        return Book(folder, 1)

    monkeypatch.setattr("rayfed_ssl.storage.claim.Lock", partial(Lock, patience_s=0.0))
    monkeypatch.setattr("tune.sweep.run_trials", run_trials)
    monkeypatch.setattr("tune.sweep.collect", lambda made, book: book)
    run_sweep(made, out)
    assert len(refused) == 2
    for line in refused:
        assert re.fullmatch(
            rf"--out: {out} is being written by another run \(\S+, pid {os.getpid()}\); "
            "wait for it, stop it, or name another folder",
            line,
        )
    assert not (tmp_path / "new").exists()  # nothing was written


def test_tune_in_a_folder_that_another_command_works_in_ends_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call, out = caller(tmp_path, monkeypatch, capsys), tmp_path / "out"
    sweep_files.dump(sweep(tmp_path), out)
    monkeypatch.setattr("rayfed_ssl.storage.claim.Lock", partial(Lock, patience_s=0.0))
    lock = Lock(out / LOCK)
    before = {path: path.read_bytes() for path in out.rglob("*")}
    status, said, err = call("tune", str(tmp_path / "lr.yaml"), "--out", "out", "--resume")
    assert (status, said, err.count("\n")) == (2, "", 1)
    assert err.startswith("--out: out is being written by another run (")
    assert {path: path.read_bytes() for path in out.rglob("*")} == before
    lock.release()


def test_trials_without_a_sweep_are_refused(tmp_path: Path) -> None:
    made, out = sweep(tmp_path, **GRID), tmp_path / "out"
    out.mkdir()
    (out / "trials.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds trials\.json but no sweep\.yaml") as refused:
        run_sweep(made, out, resume=True)
    assert "\n" not in str(refused.value)


def test_a_population_does_not_wait_for_a_member_that_failed(tmp_path: Path) -> None:
    space = {LR: {"choice": [0.1, 0.2]}}
    made = sweep(tmp_path, space=space, search="random", trials=3, scheduler={"name": "pbt", "interval": 2})
    together = scheduler(made, Book(tmp_path, 1))
    assert isinstance(together, SynchronousPopulation)

    class Member(SimpleNamespace):
        PAUSED, PENDING = "PAUSED", "PENDING"
        __hash__ = object.__hash__

        def is_finished(self) -> bool:
            return self.status in ("ERROR", "TERMINATED")

    members = [Member(status=status) for status in ("PAUSED", "PAUSED", "RUNNING")]
    controller = SimpleNamespace(get_trials=lambda: members)
    together._trial_state = {m: SimpleNamespace(last_train_time=2) for m in members}
    assert together.choose_trial_to_run(controller) is None  # the third is on its way
    members[2].status = "ERROR"
    assert together.choose_trial_to_run(controller) in members[:2]
    members[0].status = members[1].status = "TERMINATED"
    assert together.choose_trial_to_run(controller) is None


@pytest.mark.parametrize(("sharing", "fits"), [(1, True), (2, True), (3, False)])
def test_trials_divide_the_object_stores(sharing: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial puts the images once; all together stay within the share of a node's store."""
    federation = load_federation(tiny("fedsimclr"))
    images = float(stores.pixel_bytes(federation))
    store = 2.5 * images / stores.STORE_SHARE
    node = {"Alive": True, "Resources": {"object_store_memory": store}}
    monkeypatch.setattr(stores.ray, "nodes", lambda: [node])
    monkeypatch.setattr(stores.ray, "put", lambda value: "put")
    assert stores.shared_images(federation, sharing) == ("put" if fits else None)
    place = stores.place_of(1e9, federation, sharing)
    assert place.bytes == pytest.approx(store / sharing - images * fits)
