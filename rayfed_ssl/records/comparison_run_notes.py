"""The notes that the runs of a comparison printed before their first round: on images, classes and methods."""

from __future__ import annotations

from rayfed_ssl.base.text import printable
from rayfed_ssl.records.comparison import Comparison

MOST = 1000  # characters of a note


def run_notes(comparison: Comparison) -> list[str]:
    """A line for each note, with the rows that have it, unless all do.

    With several seeds, the notes of each row's first seed are shown: counts that depend on the split differ from seed
    to seed.
    """
    found: dict[tuple[str, int], list[str]] = {}
    complete = [row for row in comparison.trained if row.runs]
    for row in complete:
        seed = min(row.runs)
        for note in row.runs[seed].noted:
            found.setdefault((note, seed), []).append(printable(row.name))
    lines = []
    for (note, seed), names in found.items():
        when = f" at seed {seed}" if len(comparison.seeds) > 1 else ""
        some = "" if len(names) == len(complete) else f" of {', '.join(names)}"
        lines.append(f"Noted{when}{some}: {printable(note, MOST)}")
    return lines
