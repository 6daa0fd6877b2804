"""The leaderboard's plain facts: accuracies of references and baselines, methods that change next to nothing, and the
machines that made the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from boards.clusters import clusters, over_sets
from boards.markdown import NAMES, NOT_RUN, head, number
from boards.overall import LOCAL, PIXELS, UNTRAINED, excludes_zero, with_baselines
from boards.pairing import complete, of_table, paired
from boards.rows import MEASURES, MIXED, ONE, REFERENCE, Record

NOTHING = 0.003  # a method whose differences are on average smaller changes next to nothing


def absolute(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """Accuracies by data set of the untrained encoder, raw pixels, the reference of all comparisons and the board's
    references: each is a mean over the partitions, shown as mean and standard deviation over seeds.
    """
    beside = with_baselines(rows, board)
    heads = ["", *(f"{NAMES.get(data, data)}: {words}" for data in board["data"] for words in MEASURES.values())]
    lines = head(heads)
    for method in (PIXELS, UNTRAINED, LOCAL, REFERENCE, *(name for name in board["references"] if name != LOCAL)):
        cells = [number(by_seed(beside, board, data, method, m)) for data in board["data"] for m in MEASURES]
        if any(cell != "-" for cell in cells):
            name = method if method in (PIXELS, UNTRAINED) else f"`{method}`"
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else f"Accuracies: {NOT_RUN}."


def by_seed(rows: Sequence[Record], board: Mapping[str, Any], data: str, method: str, measure: str) -> list[float]:
    """The mean over the partitions, for every seed whose runs are complete in all of them and have a value."""
    found: dict[int, list[float]] = {}
    for partition in board["partitions"]:
        for row in complete(of_table(rows, data, partition, ONE).get(method, {})):
            if row[measure] is not None:
                found.setdefault(row["seed"], []).append(row[measure])
    return [fmean(values) for _, values in sorted(found.items()) if len(values) == len(board["partitions"])]


def below_pixels(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """For each data set and protocol, the accuracy of raw pixels and the methods below it: those whose 95% interval of
    the paired differences over seeds says so, and those that are below only in the mean. A difference is a mean over
    the partitions.
    """
    beside = with_baselines(rows, board)
    heads = ["", "raw pixels", "below them", "in the mean also"]
    lines = head(heads)
    for data in board["data"]:
        for measure, words in MEASURES.items():
            of_pixels = by_seed(beside, board, data, PIXELS, measure)
            pairs = clusters(beside, board, measure, data=data, reference=PIXELS)
            known = {name: over_sets([pairs[name]]) for name in board["methods"] if name in pairs}
            if of_pixels and known:
                below = [name for name, one in known.items() if one.mean < 0]
                apart = [name for name in below if excludes_zero(known[name])]
                shown = [_named(apart, len(known)), _named([name for name in below if name not in apart], len(known))]
                title = f"{NAMES.get(data, data)}, {words}"
                lines.append(f"| {title} | {fmean(of_pixels):.3f} | {' | '.join(shown)} |")
    return "\n".join(lines) if len(lines) > 2 else f"Raw pixels: {NOT_RUN}."


def _named(some: Sequence[str], of: int) -> str:
    """How many of the measured methods these are, and their names."""
    return f"{len(some)} of {of}: {', '.join(f'`{name}`' for name in some)}" if some else "none"


def inert(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """The methods whose runs end next to where those of a simpler method do: by every protocol, the mean size of the
    paired differences over all runs is below ``NOTHING``.
    """
    heads = ["method", "ends where", "runs", *(f"{words}: mean size (largest)" for words in MEASURES.values())]
    lines = head(heads)
    known = [row for row in rows if row["seed"] in board["seeds"]]
    for table, reference in ((ONE, REFERENCE), (ONE, LOCAL), (MIXED, LOCAL)):
        for method in board["methods"]:
            sizes = {m: differing(known, board, table, method, reference, m) for m in MEASURES}
            if method != reference and all(each and fmean(each) < NOTHING for each in sizes.values()):
                where = f"`{reference}`" + (f", {MIXED}" if table == MIXED else "")
                shown = [f"{fmean(each):.4f} ({max(each):.4f})" for each in sizes.values()]
                lines.append(f"| `{method}` | {where} | {len(sizes['knn'])} | {' | '.join(shown)} |")
    return "\n".join(lines) if len(lines) > 2 else "No method ends within that of a simpler one."


def differing(
    rows: Sequence[Record], board: Mapping[str, Any], table: str, method: str, reference: str, measure: str
) -> list[float]:
    """The sizes of a method's paired differences, one for each run that the reference has as well."""
    found: list[float] = []
    for data in board["data"]:
        for partition in board["partitions"]:
            methods = of_table(rows, data, partition, table)
            pairs = paired(methods.get(method, {}), methods.get(reference, {}), measure)
            found += [abs(one) for one in pairs]
    return found


def made_with(rows: Sequence[Record], _: Mapping[str, Any]) -> str:
    """The processors and torch versions that made the rows, the most frequent first."""
    if not rows:
        return f"The rows of the leaderboard are {NOT_RUN}."
    parts = [
        ", ".join(f"{count} {what.format(value)}" for value, count in Counter(row[key] for row in rows).most_common())
        for key, what in (("machine", "on {}"), ("torch", "with torch {}"))
    ]
    return f"Of the leaderboard's {len(rows)} rows {'; '.join(parts)}."
