"""Runs in processes of their own, with one thread, for searches and claims; and parts of a benchmark in processes of
their own, so that no part is affected by the one before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import yaml
from machine import described

RESULT = "result "  # starts a line that is meant for the calling process, because Ray prints as well
Wanted = TypeVar("Wanted")
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def carry_out(base: Mapping[str, Any], keys: Mapping[str, Any], out: Path) -> float | None:
    """Make the run folder ``out/run`` from a base and dotted keys. Returns CPU seconds; None if the run was complete
    already.

    A folder with a part of the run, such as a stopped one, is continued. If this process ends, the run stops after its
    round. Raises RuntimeError with the command's output if it fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    config, folder, log = out / "base.yaml", out / "run", out / "log.txt"
    if _ended(folder / "summary.json"):
        return None
    config.write_text(yaml.safe_dump(dict(base), sort_keys=False), encoding="utf-8")
    overrides = [f"{key}={json.dumps(value)}" for key, value in {**keys, "resources.threads": 1}.items()]
    command = with_parent("run", str(config), *overrides, "--out", str(folder))
    resume = ["--resume"] if (folder / "config.yaml").exists() else []
    with log.open("w", encoding="utf-8") as output:
        started = subprocess.Popen(
            [*command, "--executor", "local", *resume], env={**os.environ, **THREADS}, stdout=output, stderr=output
        )
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        text = log.read_text(encoding="utf-8")[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with {started.returncode}: {text}")
    return used.ru_utime + used.ru_stime


def with_parent(*arguments: str) -> list[str]:
    """The command of ``rayfed-ssl`` with these arguments, in a process that does not outlive this one for long."""
    return [sys.executable, str(Path(__file__).with_name("with_parent.py")), str(os.getpid()), *arguments]


def _ended(summary: Path) -> bool:
    """Whether a run is complete or diverged. It is neither if it was stopped, or if its summary is not written in
    full.
    """
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
    """Make a line for each of ``todo``, ``jobs`` at a time, and append each to ``results`` when it is ready. If one
    fails, a line on stderr says so, and the others go on. Returns how many failed.

    ``called`` names an item, ``say`` describes its line.
    """
    failed = 0
    print(f"{len(todo)} runs to make, {jobs} at a time", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        pending = {pool.submit(make, one): one for one in todo}
        for future in as_completed(pending):
            name = called(pending[future])
            try:
                line = future.result()
                text, description = json.dumps(line), say(line)
            except Exception as error:  # of any kind: the other runs must go on
                failed += 1
                print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            with results.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
            print(f"{name}: {description}", flush=True)
    return failed


def end_with_parent(every_s: float = 10) -> None:
    """From now on, once the process that started this worker has ended, end it as SIGTERM does, so a run at its next
    round; and again every so many seconds, because a pool's worker then begins what was queued, or waits for ever.
    """

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            while True:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(every_s)

    Thread(target=watch, daemon=True).start()


def tell(line: Mapping[str, Any]) -> None:
    """Print the results of a part of a benchmark, with machine and commit, for the process that started it."""
    print(RESULT + json.dumps({**line, **described()}), flush=True)


def each_alone(parts: Sequence[str]) -> None:
    """Run this program again for each part, with ``--one PART``, one after the other, and print what each part tells.

    Raises subprocess.CalledProcessError if a part fails.
    """
    for part in parts:
        command = [sys.executable, *sys.argv, "--one", part]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            if line.startswith(RESULT):
                print(line.removeprefix(RESULT), flush=True)
