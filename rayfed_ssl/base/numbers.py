"""Checks that what a method, a plug-in or a protocol measured are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def numbers(metrics: Mapping[str, Any], whose: str) -> dict[str, float]:
    """Measurements as they are recorded. Raises TypeError, beginning with ``whose``, for what is no number."""
    found = dict[str, float]()
    for name, value in metrics.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            said = repr(value) if isinstance(value, str) else type(value).__name__
            raise TypeError(f"{whose}[{name!r}]: found {said}; must be a number") from None
    return found
