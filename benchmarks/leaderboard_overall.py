"""The leaderboard in one table: each method against the reference over all data sets and partitions, from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from leaderboard_rows import MEASURES, ONE, REFERENCE, Record
from leaderboard_tables import of_table, over

from rayfed_ssl.reporting.comparison import difference

LEAST_TABLES = 3  # for an interval that says something


def differences(rows: Sequence[Record], board: Mapping[str, Any], name: str) -> dict[str, list[float]]:
    """Method -> one number per table in which it and the reference have a seed in common: the mean over those seeds of
    ``row[name]`` less the reference's.
    """
    found: dict[str, list[float]] = {}
    for data in board["data"]:
        for partition in board["partitions"]:
            for method, value in over(of_table(rows, data, partition, ONE), REFERENCE, name).items():
                found.setdefault(method, []).append(value)
    return found


def overall(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """A row per method with ``LEAST_TABLES`` tables or more: the best by kNN first, references last."""
    by_measure = {name: differences(rows, board, name) for name in MEASURES}
    sent = differences(rows, board, "bytes_total")
    shown = [m for m, each in by_measure["knn"].items() if m != REFERENCE and len(each) >= LEAST_TABLES]
    heads = ["method", "tables", *(f"{words} over {REFERENCE}" for words in MEASURES.values())]
    heads += ["tables above by kNN", "MB more"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method in sorted(shown, key=lambda m: (m in board["references"], -fmean(by_measure["knn"][m]))):
        each = by_measure["knn"][method]
        above = f"{sum(value > 0 for value in each)} of {len(each)}"
        beside = [_interval(found.get(method, [])) for found in by_measure.values()]
        more = f"{1e-6 * fmean(sent[method]):+.2f}" if method in sent else "-"
        lines.append(f"| `{method}` | {len(each)} | {' | '.join(beside)} | {above} | {more} |")
    return "\n".join(lines) if len(lines) > 2 else f"No method has {LEAST_TABLES} tables yet."


def _interval(each: Sequence[float]) -> str:
    """Mean and 95% interval over tables; bold where that leaves zero out."""
    if (found := difference(list(each))) is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.mean:+.3f}"
    text = f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text
