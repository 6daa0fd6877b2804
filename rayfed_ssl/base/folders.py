"""Writes into folders that other processes may create or remove at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made")
TRIES, PAUSE_S = 100, 0.001  # so often in a row it is not they


def within(folder: Path, act: Callable[[], Made]) -> Made:
    """What ``act`` gives once the folder is there. Another process may remove it just now, between any two calls that
    are made here: then both are done again.

    Raises:
        OSError: the folder cannot be made, or ``act`` raised it; where nothing is there, or what is no folder, again
            and again.
    """
    for left in reversed(range(TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return act()
        except (FileNotFoundError, FileExistsError):  # the latter: there, and when it was looked at, gone
            if not left:
                raise
            time.sleep(PAUSE_S)
    raise AssertionError("no try was made")
