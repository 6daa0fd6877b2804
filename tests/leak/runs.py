"""Finished runs to audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rayfed_ssl.testing.tiny import run_locally, tiny_run
from tests.dotted import dotted
from tests.tiny import OWN

HELD_OUT = {
    "data.limit": 240, "data.partition.name": "iid", "evaluation.select": {"share": 0.35}, "evaluation.protocols": [],
}  # fmt: skip


def finished(folder: Path, method: str, **changes: Any) -> Path:
    run_locally(tiny_run(method, {**OWN.get(method, {}), **HELD_OUT, **dotted(**changes)}), folder)
    return folder
