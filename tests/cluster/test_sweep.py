"""Sweeps on a Ray of their own that pretends to have a GPU: killed and restored, stopped early, failing, perturbed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rayfed_ssl import checkpoint
from rayfed_ssl.config import load as load_run
from tests.tiny import encoders, measured, run_locally
from tests.tune.sweeps import GRID, LR, RUN, sweep, written
from tune.config import Sweep, load
from tune.results import Results
from tune.sweep import run_sweep

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
SHARES = {"resources.cpus_per_client": 0.5, "resources.gpus_per_client": 0.5}  # two trials fill the pretended GPU
COMMAND = """
import sys
from pathlib import Path
from tune.config import load
from tune.sweep import run_sweep
run_sweep(load(Path(sys.argv[1])), Path(sys.argv[2]), say=lambda line: print(line, flush=True), num_cpus=4, num_gpus=1)
"""


def swept(made: Sweep, out: Path, **options: Any) -> tuple[Results, list[str]]:
    lines: list[str] = []
    return run_sweep(made, out, say=lines.append, num_cpus=4, num_gpus=1, **options), lines


def summaries(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("trial-*/summary.json"))}


def events(run: Path) -> list[Path]:
    return list(run.glob("events.out.tfevents.*"))


def test_a_sweep_killed_after_two_trials_is_restored_and_runs_no_trial_twice(tmp_path: Path) -> None:
    path, out = written(tmp_path, overrides=SHARES, **GRID), tmp_path / "out"
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(path), str(out)], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert command.stdout is not None
        lines = []
        for line in command.stdout:
            lines.append(line.rstrip())
            if sum("complete" in each for each in lines) == 2:
                break
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(command.pid, signal.SIGKILL)
        command.wait()
    assert lines[0].startswith("6 trials; 2 trial(s) at a time, each with 1 client actor(s) of 0.5 CPU, 0.5 GPU")
    time.sleep(10)  # until the actors have noticed
    before = {name: s for name, s in summaries(out).items() if s["status"] == "complete"}
    assert 2 <= len(before) < 6
    stamps = {name: (out / name / "summary.json").stat().st_mtime_ns for name in before}

    results, lines = swept(load(path), out, resume=True)

    assert lines[0].startswith(f"6 trials, {len(before)} of them over already; 2 trial(s) at a time")
    assert sum("complete" in line for line in lines[1:]) == 6 - len(before)
    after = summaries(out)
    assert list(after) == [f"trial-{number:05d}" for number in range(6)]
    assert {s["status"] for s in after.values()} == {"complete"}
    for name, stamp in stamps.items():
        assert (out / name / "summary.json").stat().st_mtime_ns == stamp
        assert len(events(out / name)) == 1
    for name in after:
        run = out / name
        rounds = [round for round, _, tag in measured(run) if tag == "system/round_s" or tag == "train/loss"]
        assert sorted(rounds) == [1, 2, 3]  # none is missing, none is there twice
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
    spans = []
    for name in after:
        files = events(out / name)
        if len(files) == 1:  # not one that was interrupted in between
            spans.append((int(files[0].name.split(".")[3]), (out / name / "summary.json").stat().st_mtime))
    assert any(a is not b and a[0] < b[1] and b[0] < a[1] for a in spans for b in spans), spans

    # The winner's file is a run's, and a trial is what `run` makes of the same config, to the bit.
    best = load_run(out / "best.yaml")
    top = max(after.values(), key=lambda s: s["accuracy"]["knn"])["accuracy"]["knn"]
    alone = run_locally(best, tmp_path / "alone")
    assert alone["accuracy"]["knn"] == top
    winner = next(row["folder"] for row in table if row["configuration"] == results.winner)
    assert encoders(tmp_path / "alone") == encoders(out / winner)


def test_asha_stops_trials_at_their_round_as_ordinary_run_folders(tmp_path: Path) -> None:
    space = {LR: {"grid": [0.05, 1e-6, 1e-7]}}
    run = {**RUN, "train": {**RUN["train"], "rounds": 4}}
    made = sweep(
        tmp_path, "concurrent=1", run=run, space=space, overrides=SHARES, mode="max",
        scheduler={"name": "asha", "grace": 1, "reduction": 2},
    )  # fmt: skip
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
        assert row["configuration"] != results.winner
    again, lines = swept(made, tmp_path / "out", resume=True)  # nothing is left: what was stopped stays so
    assert lines == [
        "3 trials, 3 of them over already; 1 trial(s) at a time, each with 1 client actor(s) of 0.5 CPU, 0.5 GPU"
    ]
    assert again.rows == results.rows


def test_a_stop_ends_trials_after_their_round_and_a_failed_one_runs_again(tmp_path: Path) -> None:
    made = sweep(tmp_path, "concurrent=1", space={LR: {"grid": [0.01, 1e30]}}, overrides=SHARES)  # the second diverges
    asked: list[str] = []
    out = tmp_path / "out"

    def say(line: str) -> None:
        asked.append(line)

    stopped = run_sweep(
        made, out, say=say, stopping=lambda: (out / "trial-00000" / "metrics.parquet").exists(), num_cpus=4, num_gpus=1
    )
    assert stopped.counts == {"waiting": 2}
    assert summaries(out)["trial-00000"]["status"] == "stopped"
    assert not (out / "trial-00001" / "config.yaml").exists()
    assert stopped.winner is None
    results, lines = swept(made, out, resume=True)
    assert results.counts == {"complete": 1, "failed": 1}
    assert results.winner == 0
    assert any(line.startswith("trial-00001 failed: ") for line in lines)
    assert "Traceback" in (out / "trial-00001" / "error.txt").read_text()
    assert results.left == 1


def test_a_population_exchanges_checkpoints_and_says_so(tmp_path: Path) -> None:
    run = {**RUN, "train": {**RUN["train"], "rounds": 5}}
    space = {LR: {"choice": [1e-7, 0.05]}}  # the seed draws one of each
    made = sweep(
        tmp_path, run=run, space=space, overrides=SHARES, search="random", trials=2, seed=1, mode="max",
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
