"""What fewer bytes cost: rows of one method, sorted by the bytes of a whole run, the most first, with their differences
to the unchanged method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from boards.markdown import NAMES, NOT_RUN, SPLITS, head, number
from boards.pairing import Seeds, complete, of_table, over_reference
from boards.rows import MEASURES, ONE, REFERENCE, Record
from boards.tables import made_at


def less(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """A table for each data set and partition of ``board``: megabytes of a whole run, up and down, of all clients; how
    many times fewer than the reference's; accuracies; and the paired differences to the reference with 95% intervals.
    """
    parts = []
    for data in board["data"]:
        for partition in board["partitions"]:
            methods = of_table(rows, data, partition, ONE)
            if complete(methods.get(REFERENCE, {})):
                title = f"{NAMES.get(data, data)}, {SPLITS.get(partition, partition)}"
                minutes = sorted(row["minutes"] for seeds in methods.values() for row in complete(seeds))
                took = f"{minutes[0]:.1f} to {minutes[-1]:.1f} minutes a run, beside other work."
                parts.append(f"**{title}.** {made_at(methods)} {took}\n\n{_table(methods, board)}")
    return "\n\n".join([board["untuned"].strip(), *parts]) if parts else f"These rows are {NOT_RUN}."


def megabytes(seeds: Seeds) -> float | None:
    """MB of a whole run, the mean over seeds; None if a run has no total."""
    totals = [row["bytes_total"] for row in complete(seeds)]
    return None if not totals or None in totals else 1e-6 * fmean(totals)


def _table(methods: Mapping[str, Seeds], board: Mapping[str, Any]) -> str:
    reference = methods[REFERENCE]
    whole = megabytes(reference)
    known = {name: size for name in board["methods"] if (size := megabytes(methods.get(name, {}))) is not None}
    over = [f"{words} over {REFERENCE}" for words in MEASURES.values()]
    heads = ["method", "seeds", "MB in all", "times less", *MEASURES.values(), *over]
    lines = head(heads)
    for name in sorted(known, key=lambda name: -known[name]):
        runs = complete(methods[name])
        scores = [number([row[measure] for row in runs]) for measure in MEASURES]
        beside = [over_reference(methods[name], reference, m) if name != REFERENCE else "-" for m in MEASURES]
        times = "-" if whole is None or name == REFERENCE or not known[name] else f"{whole / known[name]:.1f}"
        lines.append(f"| {' | '.join([f'`{name}`', str(len(runs)), f'{known[name]:.1f}', times, *scores, *beside])} |")
    if absent := [f"`{name}`" for name in board["methods"] if name not in known]:
        lines.append(f"| {', '.join(absent)} | 0 | {NOT_RUN} |{' |' * (len(heads) - 3)}")
    return "\n".join(lines)
