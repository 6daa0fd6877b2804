"""Numbers of a run's summary as cells of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rayfed_ssl.report.folder import RunFolder
from rayfed_ssl.report.formats import number
from rayfed_ssl.report.page import Cell

CLIENTS = 200  # the most clients with a row in a table


def number_cell(run: RunFolder, *keys: str, form: Any = number, of: Callable[[Any], Any] = lambda value: value) -> Cell:
    """The number at a path of keys in the summary as a cell; ``of`` may turn the value there into a number first."""
    value = of(run.told(*keys))
    known = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Cell(form(known), known, "/".join(keys))
