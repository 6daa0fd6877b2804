"""Where clients run, and how a run is carried out there."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any


class Executor(StrEnum):
    """Where clients run: in Ray actors, or one after the other in this process."""

    ray = "ray"
    local = "local"


def execute(executor: Executor) -> Callable[..., dict[str, Any]]:
    """How a run is carried out: (config, folder, uri=, resume=, report=, stopping=) -> summary."""
    if executor is Executor.local:
        from rayfed_ssl.config import RunConfig
        from rayfed_ssl.simulation import loop
        from rayfed_ssl.simulation.local import LocalCohort
        from rayfed_ssl.storage.mirror import mirrored

        def here(config: RunConfig, folder: Path, *, uri: str | None, resume: bool, **how: Any) -> dict[str, Any]:
            with mirrored(folder, uri, resume=resume) as saved:
                return loop.run(config, folder, LocalCohort, resume=resume, saved=saved, **how)

        return here
    from actors.follow import run_on_ray

    return run_on_ray
