"""Keyword arguments as changes of a configuration: ``train__rounds=2`` is ``{"train.rounds": 2}``."""

from __future__ import annotations

from typing import Any


def dotted(**changes: Any) -> dict[str, Any]:
    return {key.replace("__", "."): value for key, value in changes.items()}
