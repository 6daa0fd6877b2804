"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def head(names: Sequence[str]) -> list[str]:
    """The first two lines of a table whose columns have these names."""
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
