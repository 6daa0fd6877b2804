"""The machine and the commit of a measurement: fields of every JSON line."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import torch


def _git(tree: str, *arguments: str) -> str:
    """The output of a git command in a tree; "" if it fails."""
    return subprocess.run(["git", "-C", tree, *arguments], capture_output=True, text=True, check=False).stdout.strip()


def name() -> str:
    """The processor architecture and the number of cores."""
    return f"{platform.machine()}, {os.cpu_count()} cores"


def described() -> dict[str, str]:
    """Machine, torch, commit of the measured tree (the one in PYTHONPATH, or this one), and day. Changes below
    ``benchmarks/results``, which measurements write themselves, do not make the tree dirty.
    """
    tree = os.environ.get("PYTHONPATH", "").split(":")[0] or str(Path(__file__).resolve().parents[1])
    commit = _git(tree, "describe", "--always", "--abbrev=8")
    changed = _git(tree, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return {
        "machine": name(),
        "torch": torch.__version__.split("+")[0],
        "commit": (commit or "unknown") + ("-dirty" if changed else ""),
        "day": time.strftime("%Y-%m-%d"),
    }
