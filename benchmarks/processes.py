"""A run in a process of its own, of one thread, which searches and claims are made of; and a part of a benchmark in a
process of its own, so that no part begins with what another left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import yaml
from machine import described

RESULT = "result "  # before what is meant for the process that asked: Ray prints, too
Wanted = TypeVar("Wanted")
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def carry_out(base: Mapping[str, Any], keys: Mapping[str, Any], out: Path) -> float | None:
    """Make the run folder ``out/run`` of a base with dotted keys; returns CPU seconds, None where it was there already.

    A folder that holds a part of the run, a stopped one too, is continued. Raises RuntimeError with what the command
    said where it failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    config, folder, log = out / "base.yaml", out / "run", out / "log.txt"
    if _ended(folder / "summary.json"):
        return None
    config.write_text(yaml.safe_dump(dict(base), sort_keys=False), encoding="utf-8")
    overrides = [f"{key}={json.dumps(value)}" for key, value in {**keys, "resources.threads": 1}.items()]
    command = [sys.executable, "-m", "rayfed_ssl", "run", str(config), *overrides, "--out", str(folder)]
    resume = ["--resume"] if (folder / "config.yaml").exists() else []
    with log.open("w", encoding="utf-8") as told:
        started = subprocess.Popen(
            [*command, "--executor", "local", *resume], env={**os.environ, **THREADS}, stdout=told, stderr=told
        )
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        said = log.read_text(encoding="utf-8")[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with {started.returncode}: {said}")
    return used.ru_utime + used.ru_stime


def _ended(summary: Path) -> bool:
    """Whether a run came to its end, or diverged: what was stopped, or whose summary is half written, did not."""
    try:
        return bool(json.loads(summary.read_text(encoding="utf-8"))["status"] != "stopped")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def append_each(
    todo: Sequence[Wanted],
    make: Callable[[Wanted], Mapping[str, Any]],
    results: Path,
    jobs: int,
    called: Callable[[Wanted], str],
    say: Callable[[Mapping[str, Any]], str],
) -> int:
    """Make the line of each that is wanted, ``jobs`` at a time, and append it to ``results`` as it comes; one that
    fails, in whatever way, is said on stderr, and the others go on. Returns how many failed.
    """
    failed = 0
    print(f"{len(todo)} runs to make, {jobs} at a time", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        pending = {pool.submit(make, one): one for one in todo}
        for future in as_completed(pending):
            name = called(pending[future])
            try:
                line = future.result()
                text, told = json.dumps(line), say(line)
            except Exception as error:  # whatever it is, the others' runs are not lost with it
                failed += 1
                print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            with results.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
            print(f"{name}: {told}", flush=True)
    return failed


def tell(line: Mapping[str, Any]) -> None:
    """What a part of a benchmark measured, with machine and commit, to the process that asked for it."""
    print(RESULT + json.dumps({**line, **described()}), flush=True)


def each_alone(parts: Sequence[str]) -> None:
    """Print what every part tells: this program, as it was called, with ``--one PART``, one after the other.

    Raises subprocess.CalledProcessError where a part failed.
    """
    for part in parts:
        command = [sys.executable, *sys.argv, "--one", part]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            if line.startswith(RESULT):
                print(line.removeprefix(RESULT), flush=True)
