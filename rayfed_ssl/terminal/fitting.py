"""Shows tables that are wider than the terminal in parts: no number is cut or wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def show(console: Console, table: Table, keys: int = 1) -> None:
    """Print a table, in parts one below the other if its cells do not fit side by side.

    Args:
        keys: how many of the first columns, which say what a row is, each part begins with.
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
    tables = [_part(table, [*range(keys), *group]) for group in groups]
    tables[0].title, tables[-1].caption = table.title, table.caption
    return tables


def _width(console: Console, table: Table) -> int:
    """How wide a table is if no line of a cell is wrapped."""
    return Measurement.get(console, console.options.update(max_width=100_000), table).maximum


def _part(table: Table, indices: Sequence[int]) -> Table:
    """A table of the columns with these indices."""
    part = Table(box=table.box, title_justify=table.title_justify, caption_justify=table.caption_justify)
    part.columns = [replace(table.columns[index], _index=place, overflow="fold") for place, index in enumerate(indices)]
    part.rows = table.rows
    return part
