"""What a figure was measured on: fields of every JSON line."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import torch


def described() -> dict[str, str]:
    """Machine, torch, commit of the tree that is measured (PYTHONPATH, or this one), day."""
    tree = os.environ.get("PYTHONPATH", "").split(":")[0] or str(Path(__file__).resolve().parents[1])
    git = ["git", "-C", tree, "describe", "--always", "--dirty", "--abbrev=8"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__.split("+")[0],
        "commit": commit or "unknown",
        "day": time.strftime("%Y-%m-%d"),
    }
