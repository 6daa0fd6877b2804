"""A run in a process of its own, of one thread: what searches and claims are made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def carry_out(base: Mapping[str, Any], keys: Mapping[str, Any], out: Path) -> float | None:
    """Make the run folder ``out/run`` of a base with dotted keys; returns CPU seconds, None where it was there already.

    A folder that holds a part of the run is continued. Raises RuntimeError with what the command said where it failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    config, folder, log = out / "base.yaml", out / "run", out / "log.txt"
    if (folder / "summary.json").exists():
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
