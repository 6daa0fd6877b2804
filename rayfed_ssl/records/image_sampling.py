"""Notes on what a comparison's intervals count, and which of them leave out the choice of test images.

An interval over seeds says how far another seed may move a difference. All seeds may share their test images, and then
no number of seeds shows what these images did to it. How much that is of a difference depends on how often two encoders
are right on the same image. Where run folders say so (``outcomes.parquet``), an interval counts it; where they do not,
the reason is said, and of a single accuracy what other images may do to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rayfed_ssl.base.text import fraction, printable
from rayfed_ssl.evaluation.material import SELECT
from rayfed_ssl.records.comparison import Comparison, Row
from rayfed_ssl.records.image_pairs import BY_SEED, HELD_OUT, NOT_OF_IMAGES, Drawn, DrawnInterval
from rayfed_ssl.records.intervals import counts_images, wilson


def test_images(row: Row, measure: str) -> int | None:
    """The fewest test images that an accuracy of the row's runs was measured on; None where a run did not say."""
    if not counts_images(measure):
        return None
    known = [run.task_test_images if measure == "task" else run.test_images for run in row.runs.values()]
    return None if not known or None in known else min(count for count in known if count is not None)


def counted(comparison: Comparison) -> set[Drawn]:
    """What intervals of the table count, beside seeds; also those of the untrained encoder and of raw pixels."""
    found = _compared(comparison, comparison.measures, comparison.rows[1:])
    return {drawn.of for _, _, drawn in found if isinstance(drawn, DrawnInterval)}


def _compared(
    comparison: Comparison, measures: Sequence[str], rows: Sequence[Row]
) -> Iterator[tuple[Row, str, DrawnInterval | str]]:
    """(row, measure, the interval of its difference to the first row that counts more than seeds; or why not)."""
    for row in rows:
        for measure in measures:
            if (found := row.difference(comparison.first, measure)) is not None:
                yield row, measure, found.drawn


def not_counted(comparison: Comparison) -> list[str]:
    """Sentences below the table: which intervals do not count the test images, and why. Where none of the main accuracy
    does, over several seeds, what the number of images allows for the first row's (95%, Wilson 1927).
    """
    found: dict[str, dict[str, list[str]]] = {}
    whole = set()
    for row, measure, drawn in _compared(comparison, comparison.scores, comparison.trained[1:]):
        if isinstance(drawn, DrawnInterval):
            whole.add(measure)
        else:
            found.setdefault(drawn, {}).setdefault(printable(row.name), []).append(measure)
    several, main = len(comparison.seeds) > 1, comparison.main if comparison.first.values else None
    lines = _size(comparison, main) if several and main is not None and main not in whole else []
    beyond = "the interval counts seeds alone" if several else "there is no interval"
    for why, by_row in found.items():
        if whole or why != NOT_OF_IMAGES:  # else no other kind is there to be told from
            named = rows_in_words(by_row, len(comparison.trained) - 1)
            lines.append(f"Of {named}: {beyond}, because {why}.")
    return lines


def rows_in_words(by_row: Mapping[str, Sequence[str]], others: int) -> str:
    """Rows with their measures, those of the same measures together; all ``others`` of the first row in few words."""
    rows_of: dict[str, list[str]] = {}
    for row, measures in by_row.items():
        rows_of.setdefault(", ".join(measures), []).append(row)
    if len(rows_of) == 1 and len(by_row) == others > 1:
        return f"{next(iter(rows_of))} of every other row"
    return "; ".join(f"{', '.join(rows)} ({measures})" for measures, rows in rows_of.items())


def held_out(comparison: Comparison) -> list[str]:
    """What ``select/..`` is, on how many images, and how far so many may move the first row's first such accuracy."""
    names = [name for name in comparison.measures if name.startswith(SELECT)]
    if not names:
        return []
    told = f"{SELECT}..: measured on training images held out to choose by"
    runs = [run for row in comparison.trained for run in row.runs.values() if not run.values.keys().isdisjoint(names)]
    counts = {run.held_out.images for run in runs if run.held_out is not None}
    own = [run.held_out.images for run in comparison.first.runs.values() if run.held_out is not None]
    if any(run.held_out is None for run in runs):
        return [f"{told}; how many there are is not recorded."]
    fewest = min(counts)
    many = f"{fewest:,} in each run" if len(counts) == 1 else f"{fewest:,} to {max(counts):,} in a run"
    told += f", {many}: one is {1 / fewest:.2g} of an accuracy{'' if len(counts) == 1 else ' or less'}"
    shares = {name: comparison.first.spread(name) for name in names if counts_images(name.removeprefix(SELECT))}
    known = [(name, found.mean) for name, found in shares.items() if found is not None and 0 <= found.mean <= 1]
    for name, mean in known[:1]:
        low, high = wilson(mean, min(own))
        told += (
            f", and with others {fraction(mean)} of {name} may be {fraction(low)} to {fraction(high)} in one run (95%)"
        )
    found = [drawn for _, _, drawn in _compared(comparison, names, comparison.trained[1:])]
    if BY_SEED in found:
        return [f"{told}. Each seed holds out other ones, so intervals over seeds count which were drawn."]
    if any(isinstance(drawn, DrawnInterval) and drawn.of == HELD_OUT for drawn in found):
        return [f"{told}. An interval over them takes answers as independent, so it may be too wide."]
    if len(comparison.seeds) < 2:
        return [f"{told}."]
    return [f"{told}. Intervals of differences count seeds alone, and of few images may be far too narrow."]


def _size(comparison: Comparison, main: str) -> list[str]:
    """What an interval over seeds leaves out, in numbers."""
    told = "Intervals count seeds, not which test images were drawn"
    images, found = test_images(comparison.first, main), comparison.first.spread(main)
    if images is None or found is None or not 0 <= found.mean <= 1:
        return [f"{told}; how many there are is not recorded."]
    low, high = wilson(found.mean, images)
    return [
        f"{told}: one of {images:,} is {1 / images:.2g} of an accuracy, and with others {fraction(found.mean)} of "
        f"{main} may be {fraction(low)} to {fraction(high)} (95%). On the same images part of that cancels in a "
        "difference, but not all."
    ]
