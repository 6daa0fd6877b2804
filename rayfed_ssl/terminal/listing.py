"""A list of runs on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from rayfed_ssl.base.text import LIMIT, amount, fraction, printable
from rayfed_ssl.storage.listing import Listed


def listing_table(there: Sequence[Listed], detached: Sequence[Mapping[str, object]]) -> Table:
    """A row per run; those on a cluster come last, with the folder in which they are."""
    table = Table("run", "method", "status", "rounds", "measured", "size", "changed", box=box.SIMPLE)
    for one in there:
        table.add_row(*_cells(one))
    for run in detached:
        name, where = printable(run["run"]), printable(run["folder"] or "")
        status, rounds = f"detached, {run['status']}", _of(run["done"], run["rounds"])
        table.add_row(name, "", status, rounds, "", "", where)
    return table


def _cells(one: Listed) -> tuple[str, ...]:
    measured = one.accuracy or one.features
    values = [f"{printable(name)} {'-' if value is None else fraction(value)}" for name, value in measured.items()]
    varied = [f"{key}={value}" for key, value in one.point.items() if key != "method.name"]
    varied += [] if one.seed is None else [f"seed={one.seed}"]
    named = printable("  ".join([one.run, *varied])), printable(one.method or ""), one.status, _of(one.done, one.rounds)
    return (*named, _fitting(values), amount(one.bytes), one.changed or "")


def _fitting(values: Sequence[str]) -> str:
    """As many of the values as fit into a cell, each of them whole, and how many more there are."""
    fit = len(values)
    while fit > 1 and len("  ".join(values[:fit])) > LIMIT:
        fit -= 1
    return "  ".join([*values[:fit], *([f"and {len(values) - fit} more"] if fit < len(values) else [])])


def _of(done: object, rounds: object) -> str:
    return "" if rounds is None else f"{done or 0}/{rounds}"
