"""The notes that the runs of a comparison printed before their first round: on images, classes and methods."""

from __future__ import annotations

from rayfed_ssl.base.text import printable
from rayfed_ssl.records.comparison import Comparison

MOST = 1000  # characters of a note


def run_notes(comparison: Comparison) -> list[str]:
    """A line for each note, with the rows that it is of where it is not of all.

    Of several seeds each row's first tells: what was counted of who holds what is another number with each split.
    """
    found: dict[str, list[str]] = {}
    complete = [row for row in comparison.trained if row.runs]
    for row in complete:
        for note in row.runs[min(row.runs)].noted:
            found.setdefault(note, []).append(printable(row.name))
    seed = f" at seed {comparison.seeds[0]}" if len(comparison.seeds) > 1 else ""
    lines = []
    for note, names in found.items():
        some = "" if len(names) == len(complete) else f" of {', '.join(names)}"
        lines.append(f"Noted{seed}{some}: {printable(note, MOST)}")
    return lines
