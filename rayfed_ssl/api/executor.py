"""The names of the executors, which say where clients run."""

from __future__ import annotations

from enum import StrEnum


class Executor(StrEnum):
    """Where clients run: in Ray actors, or one after the other in this process."""

    ray = "ray"
    local = "local"
