"""Results as JSON lines: an object a line, the newest last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """The objects of a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Write an object to the end of a file, which is made, with its folder, where there is none."""
    text = json.dumps(line)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
