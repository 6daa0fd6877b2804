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
