"""A configuration as a table of dotted keys, and its values as tables show them."""

from __future__ import annotations

import json
from collections.abc import Mapping


def flat(settings: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Dotted keys and their values, in their order; an empty mapping is a value."""
    found: list[tuple[str, object]] = []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def markdown(settings: Mapping[str, object]) -> str:
    """A Markdown table with a row per key; values are in code, so that nothing in them is markup."""
    rows = [f"| `{_code(key)}` | `{_code(written(value))}` |" for key, value in flat(settings)]
    return "\n".join(["| key | value |", "|---|---|", *rows])


def written(value: object) -> str:
    """A value of a key as a table shows it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _code(text: str) -> str:
    """Text that may stand in a cell, between backticks."""
    return " ".join(text.split()).replace("`", "'").replace("|", "\\|") or " "
