"""A comparison on a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from rayfed_ssl.records.comparison import Comparison
from rayfed_ssl.records.comparison_files import cells


def comparison_table(comparison: Comparison) -> Table:
    """The rows; below each mean its difference to the first row's."""
    head, rows = cells(comparison)
    table = Table(head[0], box=box.SIMPLE)
    for name in head[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(Text("\n".join(cell)) for cell in row))
    return table
