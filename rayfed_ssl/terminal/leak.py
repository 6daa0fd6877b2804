"""What an audit found, on a terminal."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from rayfed_ssl.leak.findings import summary, suspicious
from rayfed_ssl.leak.run import Leak
from rayfed_ssl.records.leaked import BY_CHANCE, ENOUGH, FILE, INTERVAL
from rayfed_ssl.terminal.output import verbatim


def show(screen: Console, found: Leak, run: Path) -> None:
    """The areas of each client and their means, and what a reader has to know of them."""
    say = partial(verbatim, screen)
    screen.print(_table(found))
    if found.guarantee is not None:
        say(found.guarantee.sentence)
    say(f"0.5 is chance; a score that knows nothing spreads by {found.null_deviation:.3f} around it")
    say(f"95%: {INTERVAL}; {BY_CHANCE}")
    for one in suspicious(found.findings):
        area = one.found
        say(
            f"client {one.client}: an encoder that knows nothing tells its members from the others ({area.auc:.3f}, "
            f"{area.low:.3f} to {area.high:.3f}): they differ in more than membership, unless it is the one interval "
            "in twenty; read its other areas against this one"
        )
    if found.unaudited:
        say(f"crossed, but no attack here reads it: {', '.join(found.unaudited)}")
    say(f"{'table':<13} {run / FILE}")


def _table(found: Leak) -> Table:
    table = Table("client", "field", "score", "AUC", "95%", "TPR at 1% FPR", box=box.SIMPLE)
    for one in found.findings:
        area = one.found
        table.add_row(
            str(one.client), one.field, one.score, f"{area.auc:.3f}", f"{area.low:.3f} to {area.high:.3f}",
            f"{area.tpr:.3f}" if one.members >= ENOUGH else "-",
        )  # fmt: skip
    if len({one.client for one in found.findings}) > 1:
        table.add_section()
        for (field, score), mean in summary(found.findings).items():
            spread = f"clients: {mean['low']:.3f} to {mean['high']:.3f}"
            table.add_row("mean", field, score, f"{mean['mean']:.3f}", spread, "")
    return table
