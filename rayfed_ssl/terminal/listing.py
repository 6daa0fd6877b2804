"""A list of runs on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from rayfed_ssl.base.text import LIMIT, amount, fraction, printable
from rayfed_ssl.storage.listing import Listed


def listing_table(there: Sequence[Listed], detached: Sequence[Mapping[str, object]]) -> Table:
    """A row per run: first the runs in the folder (``there``), then those on a cluster, with their folders."""
    table = Table("run", "method", "status", "rounds", "measured", "size", "changed", box=box.SIMPLE)
    for run in there:
        table.add_row(*_cells(run))
    for on_cluster in detached:
        name, where = printable(on_cluster["run"]), printable(on_cluster["folder"] or "")
        status, rounds = f"detached, {on_cluster['status']}", _of(on_cluster["done"], on_cluster["rounds"])
        table.add_row(name, "", status, rounds, "", "", where)
    return table


def _cells(run: Listed) -> tuple[str, ...]:
    """The cells of a run in a folder."""
    measured = run.accuracy or run.features
    values = [f"{printable(name)} {'-' if value is None else fraction(value)}" for name, value in measured.items()]
    varied = [f"{key}={value}" for key, value in run.point.items() if key != "method.name"]
    varied += [] if run.seed is None else [f"seed={run.seed}"]
    name, method = printable("  ".join([run.run, *varied])), printable(run.method or "")
    return name, method, run.status, _of(run.done, run.rounds), _fitting(values), amount(run.bytes), run.changed or ""


def _fitting(values: Sequence[str]) -> str:
    """As many of the values as fit into a cell, each of them whole, and how many more there are."""
    fit = len(values)
    while fit > 1 and len("  ".join(values[:fit])) > LIMIT:
        fit -= 1
    return "  ".join([*values[:fit], *([f"and {len(values) - fit} more"] if fit < len(values) else [])])


def _of(done: object, rounds: object) -> str:
    """How many rounds are done, of how many; "" if that is not known."""
    return "" if rounds is None else f"{done or 0}/{rounds}"
