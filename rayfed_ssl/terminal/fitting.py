"""Shows tables that are wider than the terminal in parts: no number is cut or wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def show(console: Console, table: Table, keys: int = 1) -> None:
    """Print a table: whole, or, where its cells do not fit side by side, in parts one below the other.

    Args:
        keys: each part begins with so many of the first columns, which say what a row is.
    """
    for part in parts(console, table, keys):
        console.print(part)


def parts(console: Console, table: Table, keys: int = 1) -> list[Table]:
    """The table's columns in as few tables as the console's width allows, in their order, ``keys`` at the head of each.
    A column that is too wide by itself is folded within its part.
    """
    if _width(console, table) <= console.width:
        return [table]
    groups: list[list[int]] = [[]]
    for index in range(keys, len(table.columns)):
        if groups[-1] and _width(console, _part(table, [*range(keys), *groups[-1], index])) > console.width:
            groups.append([])
        groups[-1].append(index)
    made = [_part(table, [*range(keys), *group]) for group in groups]
    made[0].title, made[-1].caption = table.title, table.caption
    return made


def _width(console: Console, table: Table) -> int:
    """How wide it is with each line of each cell on a line of its own."""
    return Measurement.get(console, console.options.update(max_width=100_000), table).maximum


def _part(table: Table, indices: Sequence[int]) -> Table:
    made = Table(box=table.box, title_justify=table.title_justify, caption_justify=table.caption_justify)
    made.columns = [replace(table.columns[index], _index=place, overflow="fold") for place, index in enumerate(indices)]
    made.rows = table.rows
    return made
