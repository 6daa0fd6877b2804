"""What a figure was measured on: fields of every JSON line."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import torch


def _git(tree: str, *arguments: str) -> str:
    return subprocess.run(["git", "-C", tree, *arguments], capture_output=True, text=True, check=False).stdout.strip()


def name() -> str:
    """The kind of machine, and its cores."""
    return f"{platform.machine()}, {os.cpu_count()} cores"


def described() -> dict[str, str]:
    """Machine, torch, commit of the tree that is measured (PYTHONPATH, or this one), day. Results, which a measurement
    writes itself, are no change of the tree.
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
