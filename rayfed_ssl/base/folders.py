"""Writes into folders that other processes may create or remove at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made")
TRIES, PAUSE_S = 100, 0.001  # after so many failures in a row, other processes are not the cause


def within(folder: Path, act: Callable[[], Made]) -> Made:
    """Create the folder, call ``act`` and return its result. Another process may remove the folder between the two
    steps; then both are repeated.

    Raises:
        OSError: the folder cannot be created, or ``act`` raised it. FileNotFoundError and FileExistsError are raised
            only after ``TRIES`` attempts.
    """
    for left in reversed(range(TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return act()
        except (FileNotFoundError, FileExistsError):  # mkdir raises the latter if the folder is removed meanwhile
            if not left:
                raise
            time.sleep(PAUSE_S)
    raise AssertionError("no try was made")
