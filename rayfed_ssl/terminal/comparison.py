"""A comparison on a terminal: its answer in a sentence and a short table, or the whole table."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rayfed_ssl.base.text import listed, printable
from rayfed_ssl.evaluation import OWN
from rayfed_ssl.records.comparison import PREFERRED, Comparison, Difference, Row
from rayfed_ssl.records.comparison_choice import Selection
from rayfed_ssl.records.comparison_files import cells, document, marked, megabytes
from rayfed_ssl.records.comparison_notes import cautions, notes
from rayfed_ssl.report.comparison_verdict import verdict
from rayfed_ssl.terminal.fitting import show

MOST = 3  # measures in the short table
MORE = "All measures, intervals, costs and notes: --full"


def comparison_table(comparison: Comparison) -> Table:
    """The rows; below each mean its difference to the first row's."""
    head, rows = cells(comparison)
    table = Table(head[0], box=box.SIMPLE)
    for name in head[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(Text("\n".join(cell)) for cell in row))
    return table


def print_comparison(screen: Console, comparison: Comparison, selection: Selection | None, *, full: bool) -> None:
    """Print the answer and the short table with what nobody may overlook, or with ``full`` the whole table and all
    notes; last what was chosen without test labels.
    """

    def say(text: str) -> None:
        screen.print(text, markup=False, highlight=False, soft_wrap=True)

    say(answer(comparison))
    show(screen, comparison_table(comparison) if full else short_table(comparison, screen))
    for note in notes(comparison) if full else short_notes(comparison):
        say(note)
    if selection is not None:
        say(selection.sentence)
    if not full:
        say(MORE)


def answer(comparison: Comparison) -> str:
    """Which row is first by the main measure, who is not told apart from it, who beats the untrained encoder: the
    sentence of the report.
    """
    return verdict(document(comparison, Path())["rows"], comparison.scores).sentence


def short_measures(comparison: Comparison) -> list[str]:
    """The measures of the short table, the main one first: the best known accuracies, else those that there are."""
    names = [name for name in comparison.measures if "/" not in name and not name.startswith(OWN)]
    known = [name for name in names if name in PREFERRED]
    return (known or names or comparison.measures)[:MOST]


def short_table(comparison: Comparison, console: Console) -> Table:
    """A line for each row: means with their deviations over seeds, the difference of the first measure to the first
    row with its interval, and bytes. Where the console is too narrow for that column, the difference stands below the
    mean.
    """
    wide = _short(comparison, apart=True)
    width = Measurement.get(console, console.options.update(max_width=100_000), wide).maximum
    return wide if width <= console.width else _short(comparison, apart=False)


def _short(comparison: Comparison, *, apart: bool) -> Table:
    measures = short_measures(comparison)
    head = [measure.removeprefix("features/") for measure in measures]
    table = Table("", box=box.SIMPLE, padding=(0, 1) if apart else (0, 0, 0, 1))
    for name in [*head, *(["difference [95 %]"] if apart and measures else []), "MB"]:
        table.add_column(name, justify="right")
    for row in comparison.rows:
        means = [_mean(row, measure, " ± " if apart else "±") for measure in measures]
        further = [_difference(row.difference(comparison.first, measures[0]))] if measures else []
        if not apart and further and further[0]:
            means[0], further = f"{means[0]}\n{further[0]}", []
        shown = [marked(comparison, row), *means, *(further if apart else []), megabytes(row.bytes_total)]
        table.add_row(*(Text(cell) for cell in shown))
    return table


def _mean(row: Row, measure: str, sign: str) -> str:
    found = row.spread(measure)
    if found is None:
        return "-"
    return f"{found.mean:.3f}" + ("" if found.deviation is None else f"{sign}{found.deviation:.3f}")


def _difference(found: Difference | None) -> str:
    """The difference and the interval by which it is judged."""
    if found is None:
        return ""
    return f"{found.mean:+.3f}" + ("" if found.interval is None else " [{:+.3f}, {:+.3f}]".format(*found.interval))


def short_notes(comparison: Comparison) -> list[str]:
    """What the columns of the short table are, and what nobody may overlook."""
    measures, first = short_measures(comparison), printable(comparison.first.name)
    seeds = listed([str(seed) for seed in comparison.seeds])
    told = f"Last round, seed{'s' if len(comparison.seeds) > 1 else ''} {seeds}"
    if measures and comparison.first.values:
        name, further = measures[0].removeprefix("features/"), []
        for row in comparison.rows:
            found = row.difference(comparison.first, measures[0])
            further += [] if found is None or found.over is None else [found.over]
        over = listed(list(dict.fromkeys(further))).replace(" of one seed", " of this one seed")
        interval = f"with its 95% interval over {over}" if further else "without an interval, so it may be chance"
        told += f"; difference, beside the means or below {name}: in {name} to {first}, paired, {interval}"
    return [f"{told}; MB: millions of bytes to and from all clients.", *cautions(comparison)]
