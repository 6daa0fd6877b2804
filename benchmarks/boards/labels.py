"""How well fine-tuning with 1% of the labels tells methods apart, compared with the other protocols, in tables that
have it for all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from boards.markdown import NAMES, NOT_RUN, SPLITS, head
from boards.pairing import Seeds, complete, of_table, paired
from boards.rows import MEASURES, ONE, REFERENCE, Record
from boards.tables import LABELS
from rayfed_ssl.records.comparison import difference

COMPARED = {LABELS: "1% labels", **MEASURES}


def resolved(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """For each table of one architecture whose runs all were fine-tuned, a row per protocol: the median half width of
    the 95% intervals of the ranked methods' differences to the reference, and how many of these intervals exclude zero.
    """
    parts = []
    for data in board["data"]:
        for partition in board["partitions"]:
            methods = of_table(rows, data, partition, ONE)
            if methods and all(row[LABELS] is not None for seeds in methods.values() for row in complete(seeds)):
                parts.append(f"**{NAMES.get(data, data)}, {SPLITS.get(partition, partition)}.**\n\n")
                parts[-1] += _table(methods, board)
    return "\n\n".join(parts) or f"No table has 1% of the labels for every run: {NOT_RUN}."


def _table(methods: Mapping[str, Seeds], board: Mapping[str, Any]) -> str:
    """The rows of one table."""
    heads = ["protocol", "half width of an interval: median", "methods apart from `fedsimclr`"]
    lines = head(heads)
    ranked = [name for name in methods if name not in board["references"] and name != REFERENCE]
    for measure, words in COMPARED.items():
        found = [difference(paired(methods[name], methods[REFERENCE], measure)) for name in ranked]
        bounds = [(one.low, one.high) for one in found if one and one.low is not None and one.high is not None]
        if bounds:
            half = median((high - low) / 2 for low, high in bounds)
            apart = sum(low > 0 or high < 0 for low, high in bounds)
            lines.append(f"| {words} | {half:.3f} | {apart} of {len(bounds)} |")
    return "\n".join(lines)
