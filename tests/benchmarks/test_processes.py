"""Runs in processes of their own: what is finished is not made again, what was stopped is, and one item that fails
takes no other with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import processes
import psutil
import pytest

from rayfed_ssl.testing.tiny import BASE
from tests.cluster.processes import until
from tests.places import ROOT

POOL = """
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from processes import end_with_parent

def stoppable():
    def stop(*_):
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, stop)  # as a run does
    print("ready", flush=True)
    try:
        time.sleep(60)
    finally:
        signal.signal(signal.SIGTERM, former)

if __name__ == "__main__":
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=end_with_parent, initargs=(0.5,)) as executor:
        for future in [executor.submit(stoppable) for _ in range(3)]:
            future.result()
"""
RUN = """
import json
import sys
from pathlib import Path
from processes import carry_out

carry_out({}, json.loads(sys.argv[1]), Path(sys.argv[2]))
"""
KEYS = {**BASE, "method.name": "fedsimclr", "train.rounds": 2, "evaluation.protocols": []}


def status(out: Path) -> str:
    return str(json.loads((out / "run" / "summary.json").read_text())["status"])


@pytest.mark.long
@pytest.mark.parametrize("left", ["stopped", "half written"])
def test_a_run_that_was_stopped_is_resumed_and_one_that_ended_is_not_made_again(tmp_path, left):
    assert processes.carry_out({}, KEYS, tmp_path) is not None
    assert status(tmp_path) == "complete"
    assert processes.carry_out({}, KEYS, tmp_path) is None
    summary = tmp_path / "run" / "summary.json"
    told = {**json.loads(summary.read_text()), "status": left}
    summary.write_text(json.dumps(told) if left == "stopped" else json.dumps(told)[:40])
    assert processes.carry_out({}, KEYS, tmp_path) is not None
    assert status(tmp_path) == "complete"
    assert "resumed from round 2" in (tmp_path / "log.txt").read_text()


def test_whatever_ends_one_item_the_others_lines_are_kept(tmp_path, capsys):
    failures = {"b": KeyError("encoder"), "c": ValueError("no such row"), "d": RuntimeError("ended with 2")}

    def make(name: str) -> dict[str, object]:
        if name in failures:
            raise failures[name]
        return {"name": name, "value": object() if name == "e" else 1, "told": name != "f"}

    def say(line) -> str:
        if not line["told"]:
            raise ZeroDivisionError("no round")
        return "done"

    results = tmp_path / "results.jsonl"
    assert processes.append_each([*"abcdefg"], make, results, 2, str.upper, say) == 5
    assert sorted(json.loads(line)["name"] for line in results.read_text().splitlines()) == ["a", "g"]
    said = capsys.readouterr()
    assert sorted(line for line in said.out.splitlines() if line.endswith("done")) == ["A: done", "G: done"]
    failed = sorted(line for line in said.err.splitlines() if " failed: " in line)
    assert [line.split(":")[0] for line in failed] == [f"{name} failed" for name in "BCDEF"]
    assert failed[0] == "B failed: KeyError: 'encoder'"
    assert failed[2] == "D failed: RuntimeError: ended with 2"


def test_workers_end_soon_after_the_process_that_started_them(tmp_path):
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    environment = {**os.environ, "PYTHONPATH": str(Path(processes.__file__).parent)}
    with subprocess.Popen([sys.executable, program], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        workers = psutil.Process(parent.pid).children(recursive=True)
        parent.terminate()
    assert workers
    assert psutil.wait_procs(workers, timeout=30)[1] == []


@pytest.mark.long
def test_a_run_stops_after_its_round_once_the_process_that_started_it_was_killed(tmp_path):
    program = tmp_path / "one.py"
    program.write_text(RUN)
    out, keys = tmp_path / "out", {**KEYS, "train.rounds": 100_000, "checkpoint.every": 0}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(processes.__file__).parent), str(ROOT)])}
    with subprocess.Popen([sys.executable, program, json.dumps(keys), str(out)], env=environment) as parent:
        assert until(lambda: (out / "log.txt").exists() and "round 2/" in (out / "log.txt").read_text(), 120)
        children = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    left = psutil.wait_procs(children, timeout=60)[1]
    for process in left:
        process.kill()
    assert children
    assert left == []
    assert status(out) == "stopped"
    assert list((out / "run" / "checkpoints").glob("round-*/complete.json"))
    command = json.loads((out / "run" / "environment.json").read_text())["command"]
    assert command.startswith("__main__.py run ")  # as of ``python -m``
