"""A comparison on a terminal: its answer in a sentence and a short table, or the whole table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rayfed_ssl.base.text import bounds, fraction, listed, printable, signed
from rayfed_ssl.evaluation import OWN
from rayfed_ssl.records.comparison import PREFERRED, Comparison, Difference, Row
from rayfed_ssl.records.comparison_choice import Selection
from rayfed_ssl.records.comparison_files import cells, document, marked, megabytes
from rayfed_ssl.records.comparison_notes import cautions, notes
from rayfed_ssl.report.comparison_verdict import verdict
from rayfed_ssl.report.verdict import Verdict
from rayfed_ssl.terminal.fitting import show
from rayfed_ssl.terminal.output import prose, verbatim

MOST = 3  # measures in the short table
MOST_ROWS = 5  # rows that are named beside an interval that not all rows have


def comparison_table(comparison: Comparison) -> Table:
    """The whole table: a row for each variant, with the difference to the first row's mean below each mean."""
    head, rows = cells(comparison)
    table = Table(head[0], box=box.SIMPLE)
    for name in head[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(Text("\n".join(cell)) for cell in row))
    return table


def print_comparison(
    screen: Console, comparison: Comparison, selection: Selection | None, folders: Sequence[Path], *, full: bool
) -> None:
    """Print the answer, then the short table with the notes that matter most, or with ``full`` the whole table and all
    notes; then what was chosen without test labels, and below the short table the command that prints the whole one.

    Args:
        folders: what ``rayfed-ssl compare`` reads the comparison from: its own folder, or those of runs.
    """
    answered = answer(comparison)
    prose(screen, answered.sentence)
    if full:
        show(screen, comparison_table(comparison))
        lines = notes(comparison)
    else:
        measures = short_measures(comparison, answered.protocol)
        table, apart = short_table(comparison, measures, screen)
        show(screen, table)
        lines = short_notes(comparison, measures, apart=apart)
    for line in [*lines, *([] if selection is None else [selection.sentence])]:
        prose(screen, line)
    if not full:
        verbatim(screen, f"All measures, intervals, costs and notes: {full_command(folders, selection)}")


def full_command(folders: Sequence[Path], selection: Selection | None) -> str:
    """The command that prints the whole table of the comparison in ``folders``, with the choice that was made."""
    words = [*map(str, folders), *([] if selection is None or selection.row is None else ["--select", selection.asked])]
    return " ".join(["rayfed-ssl compare", *map(quote, words), "--full"])


def answer(comparison: Comparison) -> Verdict:
    """The verdict that the report has, too: which row is first by the main measure, which rows are not told apart from
    it, and which are better than the untrained encoder.
    """
    return verdict(document(comparison, Path())["rows"], comparison.scores)


def short_measures(comparison: Comparison, main: str | None) -> list[str]:
    """The measures of the short table: first ``main``, by which the answer orders rows, then the preferred accuracies,
    or, if there are none, whatever was measured.
    """
    names = [name for name in comparison.measures if "/" not in name and not name.startswith(OWN)]
    known = [name for name in names if name in PREFERRED]
    first = [main] if main in comparison.measures else []
    return list(dict.fromkeys([*first, *(known or names or comparison.measures)]))[:MOST]


def short_table(comparison: Comparison, measures: Sequence[str], console: Console) -> tuple[Table, bool]:
    """The short table, and whether the difference to the first row has a column of its own. The table has a line for
    each row: means with their deviations over seeds, the difference in the first measure with its interval, and bytes.
    If the console is too narrow, the difference is below the mean.
    """
    wide = _short(comparison, measures, apart=True)
    width = Measurement.get(console, console.options.update(max_width=100_000), wide).maximum
    return (wide, True) if width <= console.width else (_short(comparison, measures, apart=False), False)


def _short(comparison: Comparison, measures: Sequence[str], *, apart: bool) -> Table:
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
    """A row's mean with its deviation over seeds, separated by ``sign``."""
    spread = row.spread(measure)
    if spread is None:
        return "-"
    return fraction(spread.mean) + ("" if spread.deviation is None else f"{sign}{spread.deviation:.3f}")


def _difference(difference: Difference | None) -> str:
    """A difference and the interval by which it is judged; "" for none."""
    if difference is None:
        return ""
    return signed(difference.mean) + ("" if difference.interval is None else f" {bounds(*difference.interval)}")


def short_notes(comparison: Comparison, measures: Sequence[str], *, apart: bool) -> list[str]:
    """Lines on what the columns of the short table mean, and the notes that matter most. ``apart``: whether the
    difference has a column of its own.
    """
    seeds = listed([str(seed) for seed in comparison.seeds])
    plural = "s" if len(comparison.seeds) > 1 else ""
    lines = [f"Last round, seed{plural} {seeds}; MB: millions of bytes to and from all clients."]
    differences = {
        row.name: difference
        for row in comparison.rows
        for measure in measures[:1]
        if (difference := row.difference(comparison.first, measure)) is not None
    }
    if differences:
        name, first = measures[0].removeprefix("features/"), printable(comparison.first.name)
        where = (
            f"column difference is in {name} to {first}" if apart else f"difference in {name} to {first} is below it"
        )
        lines.append(f"The {where}: paired, {intervals_in_words(differences)}.")
    return [*lines, *cautions(comparison)]


def intervals_in_words(differences: Mapping[str, Difference]) -> str:
    """What the 95% intervals of the rows' differences are over; if they are not all alike, with the rows of each."""
    rows: dict[str, list[str]] = {}
    for name, difference in differences.items():
        over = "without an interval, so it may be chance"
        if difference.over is not None:
            over = f"with its 95% interval over {difference.over.replace(' of one seed', ' of this one seed')}"
        rows.setdefault(over, []).append(printable(name))
    if len(rows) == 1:
        return next(iter(rows))
    return "; ".join(f"{over} ({_named(names)})" for over, names in rows.items())


def _named(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    more = len(names) - MOST_ROWS
    return listed([*names[:MOST_ROWS], *([f"{more} more"] if more > 0 else [])])
