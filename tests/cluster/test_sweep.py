"""Sweeps on a Ray of their own that pretends to have a GPU: killed and restored, stopped early, failing, perturbed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
from ray.util.placement_group import placement_group_table

from actors.testing import close_pools
from rayfed_ssl.config import load as load_run
from rayfed_ssl.records import hparams
from rayfed_ssl.storage import checkpoint
from tests.cluster.processes import descendants, end, orphans, title, until
from tests.places import ROOT
from tests.tiny import encoders, measured, run_locally
from tests.tune.sweeps import GRID, LR, RUN, sweep, written
from tune.config import Sweep
from tune.files import load
from tune.results import Results
from tune.sweep import run_sweep

pytestmark = pytest.mark.cluster
SHARES = {"resources.cpus_per_client": 0.5, "resources.gpus_per_client": 0.5}  # two trials fill the pretended GPU
ORPHANS_S = 180.0
COMMAND = """
import sys
from pathlib import Path
from tune.files import load
from tune.sweep import run_sweep
run_sweep(load(Path(sys.argv[1])), Path(sys.argv[2]), say=lambda line: print(line, flush=True), num_cpus=4, num_gpus=1)
"""


def swept(made: Sweep, out: Path, **options: Any) -> tuple[Results, list[str]]:
    lines: list[str] = []
    return run_sweep(made, out, say=lines.append, num_cpus=4, num_gpus=1, **options), lines


def summaries(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("trial-*/summary.json"))}


def of_rounds(rounds: int) -> dict[str, Any]:
    return {**RUN, "train": {**RUN["train"], "rounds": rounds}}


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    """A sweep gives back what it took of a Ray that goes on: the next one needs the whole pretended GPU."""
    yield
    if not ray.is_initialized() or until(lambda: ray.available_resources().get("GPU") == 1.0, 120):
        return
    groups = {key: group for key, group in placement_group_table().items() if group["state"] != "REMOVED"}
    actors = [actor for actor in ray._private.state.actors().values() if actor["State"] != "DEAD"]
    kept = f"not given back: {ray.available_resources()}; {groups}; {actors}"
    close_pools()
    ray.shutdown()
    pytest.fail(kept)


def events(run: Path) -> list[Path]:
    """One file for each time that the trial ran."""
    return [path for path in run.glob("events.out.tfevents.*") if path.name != hparams.FILE]


def test_a_sweep_killed_after_two_trials_is_restored_and_runs_no_trial_twice(tmp_path: Path) -> None:
    rounds = 20  # a trial takes longer than it begins after the one beside it
    path, out = written(tmp_path, run=of_rounds(rounds), overrides=SHARES, **GRID), tmp_path / "out"
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(path), str(out)], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert command.stdout is not None
        lines = []
        for line in command.stdout:
            lines.append(line.rstrip())
            if sum("  complete  " in each for each in lines) == 2:
                break
    finally:
        started = descendants(command.pid).values()
        ours = [process for process in started if "Agent" not in title(process[0])]  # Ray's linger for a minute
        with contextlib.suppress(ProcessLookupError):
            os.kill(command.pid, signal.SIGKILL)
        command.wait()
    assert lines[0].startswith("6 trials; 2 trial(s) at a time, each with 1 client actor(s) of 0.5 CPU, 0.5 GPU")
    assert not orphans(ours, ORPHANS_S)  # nobody writes any more
    before = {name: s for name, s in summaries(out).items() if s["status"] == "complete"}
    assert 2 <= len(before) < 6
    stamps = {name: (out / name / "summary.json").stat().st_mtime_ns for name in before}

    results, lines = swept(load(path), out, resume=True)

    assert lines[0].startswith(f"6 trials, {len(before)} of them over already; 2 trial(s) at a time")
    assert sum("  complete  " in line for line in lines[1:]) == 6 - len(before)
    after = summaries(out)
    assert list(after) == [f"trial-{number:05d}" for number in range(6)]
    assert {s["status"] for s in after.values()} == {"complete"}
    for name, stamp in stamps.items():
        assert (out / name / "summary.json").stat().st_mtime_ns == stamp
        assert len(events(out / name)) == 1
    for name in after:
        run = out / name
        done = [round for round, _, tag in measured(run) if tag == "train/loss"]
        assert sorted(done) == list(range(1, rounds + 1))  # none is missing, none is there twice
        assert encoders(run)
    assert results.counts == {"complete": 6}
    table = pq.read_table(out / "results.parquet").to_pylist()
    assert [(row[LR], row["objective.temperature"]) for row in table] == [
        (lr, t) for lr in (0.001, 0.01, 0.1) for t in (0.1, 0.5)
    ]
    assert [row["accuracy.knn"] for row in table] == [s["accuracy"]["knn"] for s in after.values()]
    assert (out / "figures" / "parallel.png").stat().st_size > 5000
    assert not (out / ".tune").exists()

    # Two at a time: some trial began before another was over, and ended after that one began.
    runs = [out / name for name in after if len(events(out / name)) == 1]  # but those interrupted in between
    spans = [((run / "config.yaml").stat().st_mtime, (run / "summary.json").stat().st_mtime) for run in runs]
    assert any(a is not b and a[0] < b[1] and b[0] < a[1] for a in spans for b in spans), spans

    # The winner's file is a run's, and a trial is what `run` makes of the same config, to the bit.
    best = load_run(out / "best.yaml")
    top = max(after.values(), key=lambda s: s["accuracy"]["knn"])["accuracy"]["knn"]
    alone = run_locally(best, tmp_path / "alone")
    assert alone["accuracy"]["knn"] == top
    winner = next(row["folder"] for row in table if row["configuration"] == results.choice.winner)
    assert encoders(tmp_path / "alone") == encoders(out / winner)


def test_asha_stops_trials_at_their_round_as_ordinary_run_folders(tmp_path: Path) -> None:
    """Here by what needs no label; training lowers RankMe of this small network at first."""
    space = {LR: {"grid": [0.05, 1e-6, 1e-7]}}
    made = sweep(
        tmp_path, "concurrent=1", "evaluation.protocols=[rank]", run=of_rounds(4), space=space, overrides=SHARES,
        mode="min", scheduler={"name": "asha", "grace": 1, "reduction": 2},
    )  # fmt: skip
    assert made.settings.metric == "features.rankme"
    results, lines = swept(made, tmp_path / "out")
    assert results.rows[0]["status"] == "complete"
    stopped = [row for row in results.rows if row["status"] == "stopped"]
    assert stopped, lines
    for row in stopped:
        folder = tmp_path / "out" / row["folder"]
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["status"] == "stopped"
        assert 1 <= summary["rounds"] < 4
        assert encoders(folder)
        found, damaged = checkpoint.newest(folder / "checkpoints")
        assert found is not None
        assert found[0] == summary["rounds"]
        assert damaged == []
        assert row["configuration"] != results.choice.winner
    again, lines = swept(made, tmp_path / "out", resume=True)  # nothing is left: what was stopped stays so
    assert lines == [
        "3 trials, 3 of them over already; 1 trial(s) at a time, each with 1 client actor(s) of 0.5 CPU, 0.5 GPU"
    ]
    assert again.rows == results.rows


def test_a_stop_ends_trials_after_their_round_and_one_that_diverges_is_over(tmp_path: Path) -> None:
    space = {LR: {"grid": [0.01, 1e30]}}  # the second diverges
    made = sweep(tmp_path, "concurrent=1", run=of_rounds(50), space=space, overrides=SHARES)
    out = tmp_path / "out"
    stopped, _ = swept(made, out, stopping=lambda: (out / "trial-00000" / "metrics.parquet").exists())
    assert stopped.counts == {"waiting": 2}
    assert summaries(out)["trial-00000"]["status"] == "stopped"
    assert not (out / "trial-00001" / "config.yaml").exists()
    assert stopped.choice.winner is None
    results, lines = swept(made, out, resume=True)
    assert results.counts == {"complete": 1, "diverged": 1}
    assert results.choice.winner == 0
    assert any(line.startswith("trial-00001  diverged  ") and "diverged in round 1" in line for line in lines)
    assert not (out / "trial-00001" / "error.txt").exists()
    assert results.left == 0


@pytest.mark.long
def test_a_trial_whose_process_dies_goes_on_when_the_others_are_over(tmp_path: Path) -> None:
    rounds, out = 20, tmp_path / "out"
    made = sweep(tmp_path, "concurrent=1", run=of_rounds(rounds), space={LR: {"grid": [0.01, 0.1]}}, overrides=SHARES)
    killed: list[int] = []

    def kill_once() -> bool:
        if not killed and list(out.glob("trial-00000/checkpoints/round-*/complete.json")):
            killed.extend(pid for pid in descendants(os.getpid()) if title(pid).startswith("ray::ResourceTrainable"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        return False

    results, lines = swept(made, out, stopping=kill_once)
    assert len(killed) == 1
    assert [line.split("  accuracy")[0] for line in lines[1:] if "no CUDA" not in line] == [
        "trial-00000  failed", "trial-00000 failed: its process died", "trial-00001  complete",
        "1 trial(s) whose process died go on from their newest checkpoints", "trial-00000  complete",
    ]  # fmt: skip
    assert results.counts == {"complete": 2}
    assert not (out / ".tune").exists()
    for name in summaries(out):
        run_locally(load_run(out / name / "config.yaml"), tmp_path / name)
        assert encoders(out / name) == encoders(tmp_path / name)
        assert measured(out / name) == measured(tmp_path / name)


@pytest.mark.long
def test_a_population_exchanges_checkpoints_and_says_so(tmp_path: Path) -> None:
    space = {LR: {"choice": [1e-7, 0.05]}}  # the seed draws one of each
    made = sweep(
        tmp_path, run=of_rounds(5), space=space, overrides=SHARES, search="random", trials=2, seed=1, mode="max",
        scheduler={"name": "pbt", "interval": 1, "quantile": 0.5, "resample": 0.0},
    )  # fmt: skip
    results, _ = swept(made, tmp_path / "out")
    assert results.counts == {"complete": 2}
    changed = sorted((tmp_path / "out").glob("trial-*/schedule.json"))
    assert changed
    for path in changed:
        changes = json.loads(path.read_text())["changes"]
        config = load_run(path.parent / "config.yaml")
        assert config.train.optimizer.lr == changes[-1]["point"][LR]
        assert changes[-1]["from"] != path.parent.name
        rounds = [round for round, _, tag in measured(path.parent) if tag == "train/loss"]
        assert sorted(rounds) == sorted(set(rounds))
        assert max(rounds) == 5


@pytest.mark.long
def test_a_population_interrupted_after_an_exchange_goes_on_and_ends_complete(tmp_path: Path) -> None:
    rounds, out = 6, tmp_path / "out"
    made = sweep(
        tmp_path, run=of_rounds(rounds), space={LR: {"choice": [1e-7, 0.05]}}, overrides=SHARES, search="random",
        trials=3, seed=1, scheduler={"name": "pbt", "interval": 1, "quantile": 0.5, "resample": 0.0},
    )  # fmt: skip
    exchanges: dict[str, list[Any]] = {}
    kept: list[int] = []

    def read() -> dict[str, list[Any]]:
        return {p.parent.name: json.loads(p.read_text())["changes"] for p in out.glob("trial-*/schedule.json")}

    def exchanged() -> bool:
        kept.extend(len(list(folder.glob("checkpoint_*"))) for folder in out.glob(".tune/trials/trial-*"))
        return bool(read())

    stopped, _ = swept(made, out, stopping=exchanged)
    assert set(stopped.counts) <= {"waiting", "complete"}
    assert stopped.counts["waiting"]
    exchanges = read()
    assert exchanges
    over = {name: s for name, s in summaries(out).items() if s["status"] == "complete"}

    results, lines = swept(made, out, resume=True, stopping=lambda: exchanged() and False)
    assert lines[0].startswith("3 trials" + (f", {len(over)} of them over already" if over else "") + "; 2 trial(s)")
    assert results.counts == {"complete": 3}
    after = read()
    for name, summary in summaries(out).items():
        assert after.get(name, [])[: len(exchanges.get(name, []))] == exchanges.get(name, [])
        assert name not in over or summary == over[name]
        done = [round for round, _, tag in measured(out / name) if tag == "train/loss"]
        assert len(done) == len(set(done))
        assert max(done) == rounds
        assert encoders(out / name)
    assert 1 <= max(kept) <= 5  # four of a member, and one that is being written


def test_ctrl_c_ends_the_command_after_its_rounds_and_resume_runs_the_rest(tmp_path: Path) -> None:
    rounds, out = 40, tmp_path / "out"
    overrides = {"resources.cpus_per_client": 0.5}
    path = written(
        tmp_path, run=of_rounds(rounds), space={LR: {"grid": [0.01, 0.1]}}, overrides=overrides, concurrent=1
    )
    log = tmp_path / "log"
    with log.open("w") as file:
        command = subprocess.Popen(
            [sys.executable, "-m", "rayfed_ssl", "tune", str(path), "--out", str(out)], cwd=ROOT, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    ours: dict[int, Any] = {}
    try:
        assert until(lambda: list(out.glob("trial-00000/checkpoints/round-*/complete.json")), 300), log.read_text()
        ours = descendants(command.pid)
        os.kill(command.pid, signal.SIGINT)
        assert command.wait(300) == 130, log.read_text()
    finally:
        if command.poll() is None:
            end(descendants(command.pid).values())
            command.kill()
            command.wait()
    text = log.read_text()
    assert "stopping after this round, with a checkpoint" in text
    assert "stopped with 2 trial(s) left; --resume continues" in text
    assert "Traceback" not in text
    assert not orphans(ours.values(), ORPHANS_S)
    first = summaries(out)["trial-00000"]
    assert first["status"] == "stopped"
    assert 1 <= first["rounds"] < rounds
    assert not (out / "trial-00001" / "config.yaml").exists()
    results, _ = swept(load(path), out, resume=True)
    assert results.counts == {"complete": 2}
    for name in summaries(out):
        done = [round for round, _, tag in measured(out / name) if tag == "train/loss"]
        assert sorted(done) == list(range(1, rounds + 1))
