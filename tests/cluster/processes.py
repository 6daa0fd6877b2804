"""Processes that a test started, told from others by the tick they started at; and waiting for what must come."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

Process = tuple[int, int]  # pid and the tick it started at: a pid alone may be another process's by now
Found = TypeVar("Found")


def stat(pid: int) -> tuple[int, str, int] | None:
    """(parent, state, start) of a process; None where there is none."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return int(fields[1]), fields[0], int(fields[19])
    return None


def descendants(pid: int) -> dict[int, Process]:
    """Those a process started, and those that they did."""
    children: dict[int, list[Process]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        number = int(path.name)
        if (found := stat(number)) is not None:
            children.setdefault(found[0], []).append((number, found[2]))
    out: dict[int, Process] = {}
    todo = [pid]
    while todo:
        for process in children.get(todo.pop(), []):
            out[process[0]] = process
            todo.append(process[0])
    return out


def alive(process: Process) -> bool:
    found = stat(process[0])
    return found is not None and found[2] == process[1] and found[1] != "Z"


def title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def end(processes: Iterable[Process]) -> None:
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process[0], signal.SIGKILL)


def until(found: Callable[[], Found], limit_s: float, every_s: float = 0.1) -> Found:
    """The first value that is true, else the last one after ``limit_s`` seconds: for a caller's assertion."""
    last = time.monotonic() + limit_s
    while not (value := found()) and time.monotonic() < last:
        time.sleep(every_s)
    return value


def orphans(processes: Iterable[Process], limit_s: float) -> list[str]:
    """The titles of those that still live after so many seconds; returns at once when none does."""
    left = list(processes)

    def gone() -> bool:
        left[:] = [process for process in left if alive(process)]
        return not left

    until(gone, limit_s, 0.5)
    return [title(pid) for pid, _ in left]
