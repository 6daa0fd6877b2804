"""Shows an audit's result on a terminal."""

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


def show(screen: Console, audit: Leak, run: Path) -> None:
    """Print the areas of each client and their means, and what a reader has to know about them."""
    say = partial(verbatim, screen)
    screen.print(_table(audit))
    if audit.guarantee is not None:
        say(audit.guarantee.sentence)
    say(f"0.5 is chance; a score that knows nothing spreads by {audit.null_deviation:.3f} around it")
    say(f"95%: {INTERVAL}; {BY_CHANCE}")
    for finding in suspicious(audit.findings):
        area = finding.found
        say(
            f"client {finding.client}: an encoder that knows nothing tells its members from the others "
            f"({area.auc:.3f}, {area.low:.3f} to {area.high:.3f}): they differ in more than membership, unless it is "
            "the one interval in twenty; read its other areas against this one"
        )
    if audit.unaudited:
        say(f"crossed, but no attack here reads it: {', '.join(audit.unaudited)}")
    say(f"{'table':<13} {run / FILE}")


def _table(audit: Leak) -> Table:
    table = Table("client", "field", "score", "AUC", "95%", "TPR at 1% FPR", box=box.SIMPLE)
    for finding in audit.findings:
        area = finding.found
        table.add_row(
            str(finding.client), finding.field, finding.score, f"{area.auc:.3f}", f"{area.low:.3f} to {area.high:.3f}",
            f"{area.tpr:.3f}" if finding.members >= ENOUGH else "-",
        )  # fmt: skip
    if len({finding.client for finding in audit.findings}) > 1:
        table.add_section()
        for (field, score), mean in summary(audit.findings).items():
            spread = f"clients: {mean['low']:.3f} to {mean['high']:.3f}"
            table.add_row("mean", field, score, f"{mean['mean']:.3f}", spread, "")
    return table
