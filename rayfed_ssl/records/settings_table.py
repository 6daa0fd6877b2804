"""A configuration as a table of dotted keys."""

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
    """A Markdown table with a row per key; what is not text is JSON, in code so that nothing in it is markup."""
    rows = [f"| `{_code(key)}` | `{_code(_text(value))}` |" for key, value in flat(settings)]
    return "\n".join(["| key | value |", "|---|---|", *rows])


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _code(text: str) -> str:
    """Text that may stand in a cell, between backticks."""
    return " ".join(text.split()).replace("`", "'").replace("|", "\\|") or " "
