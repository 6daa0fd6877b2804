"""Differences between the methods of one table, paired by seed, and the methods' ranks.

Methods have different seeds, and a seed moves all methods alike. So their means cannot be compared, but their
differences to the same reference can.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from scipy.stats import kendalltau, rankdata

from boards.rows import MEASURE, MIXED, ONE, REFERENCE, TUNED, Record
from rayfed_ssl.base.text import bounds, signed
from rayfed_ssl.records.comparison import difference

ELSEWHERE = "made on another kind of processor or by another torch, which round otherwise"
COMPARED = {ONE: REFERENCE, TUNED: REFERENCE, MIXED: "local"}  # the method that a table's others are compared with
Seeds = dict[int, Record]


def of_table(rows: Sequence[Record], data: str, partition: str, table: str) -> dict[str, Seeds]:
    """Method -> seed -> row, for one table."""
    found: dict[str, Seeds] = {}
    for row in rows:
        if (row["data"], row["partition"], row["table"]) == (data, partition, table):
            found.setdefault(row["method"], {})[row["seed"]] = row
    return found


def complete(seeds: Seeds) -> list[Record]:
    """The complete runs, in the order of their seeds."""
    return [row for _, row in sorted(seeds.items()) if row["status"] == "complete"]


def runs_in_common(seeds: Seeds, reference: Seeds) -> list[tuple[Record, Record]]:
    """The pairs of runs of the seeds that both have, if both runs are complete."""
    runs, others = ({row["seed"]: row for row in complete(each)} for each in (seeds, reference))
    return [(runs[seed], others[seed]) for seed in sorted(runs.keys() & others.keys())]


def paired(seeds: Seeds, reference: Seeds, measure: str) -> list[float]:
    """``measure`` minus the reference's, for each seed in which both runs are complete and have it."""
    found = [beyond(row, other, measure) for row, other in runs_in_common(seeds, reference)]
    return [each for each in found if each is not None]


def beyond(row: Record, other: Record, measure: str) -> float | None:
    """``measure`` of a run minus that of another; None if one of them lacks it. If clients' architectures differ, the
    mean over the architectures that both runs ended with, because some architectures gain more than others by any
    method.
    """
    if row["by_encoder"] and other["by_encoder"]:
        ours, theirs = (json.loads(each["by_encoder"]) for each in (row, other))
        pairs = [(ours[name].get(measure), theirs[name].get(measure)) for name in ours if name in theirs]
    else:
        pairs = [(row[measure], other[measure])]
    known = [own - its for own, its in pairs if None not in (own, its)]
    return fmean(known) if known and len(known) == len(pairs) else None


def made_elsewhere(seeds: Seeds, reference: Seeds) -> bool:
    """Whether any run was made on another kind of processor, or with another torch, than the run with which it is
    paired.
    """
    return any(
        row[key] != other[key] for row, other in runs_in_common(seeds, reference) for key in ("machine", "torch")
    )


def over(methods: Mapping[str, Seeds], reference: str, measure: str = MEASURE) -> dict[str, float]:
    """Method -> mean paired difference to the reference, of methods with a seed in common with it; 0 for the reference
    itself. Rounded to 12 digits, so that equal differences compare equal.
    """
    found = {method: paired(seeds, methods.get(reference, {}), measure) for method, seeds in methods.items()}
    return {method: round(fmean(each), 12) for method, each in found.items() if each}


def ranks(differences: Mapping[str, float]) -> dict[str, float]:
    """Method -> rank; 1 is the largest difference, and equal ones have their mean rank."""
    order = rankdata([-value for value in differences.values()])
    return {method: float(rank) for method, rank in zip(differences, order, strict=True)}


def stability(methods: Mapping[str, Seeds], measure: str = MEASURE) -> float | None:
    """The mean over pairs of seeds of Kendall's tau between the methods that are complete in both. None if no pair has
    three methods of which two differ (with two methods tau is 1 or -1, like a coin).
    """
    of_seeds: dict[int, dict[str, float]] = {}
    for method, seeds in methods.items():
        for row in complete(seeds):
            if row[measure] is not None:
                of_seeds.setdefault(row["seed"], {})[method] = row[measure]
    taus = []
    for a, b in combinations(of_seeds.values(), 2):
        common = [method for method in a if method in b]
        if len(common) > 2:
            taus.append(float(kendalltau([a[m] for m in common], [b[m] for m in common]).statistic))
    known = [tau for tau in taus if not math.isnan(tau)]
    return fmean(known) if known else None


def placed(methods: Mapping[str, Seeds], board: Mapping[str, Any], reference: str) -> list[str]:
    """The methods in the order of a table: by their kNN relative to the reference; then those without a seed in common
    with it; then the board's references; then those without an accuracy.
    """
    differences = over(methods, reference)

    def place(method: str) -> tuple[bool, bool, bool, float]:
        values = [row[MEASURE] for row in complete(methods[method]) if row[MEASURE] is not None]
        own = differences[method] if method in differences else fmean(values or [0.0])
        return not values, method in board["references"], method not in differences, -own

    return sorted(methods, key=place)


# -- cells -------------------------------------------------------------------------------------------------------------


def marked(method: str, seeds: Seeds, reference: Seeds) -> str:
    """The method's name, with an asterisk if :func:`footnote` applies to it."""
    return f"`{method}`{' *' if made_elsewhere(seeds, reference) else ''}"


def footnote(lines: Sequence[str], with_what: str) -> list[str]:
    """What an asterisk in these lines means; nothing if there is none."""
    return [f"\n\\* Paired with {with_what} that were {ELSEWHERE}."] if any("` *" in line for line in lines) else []


def over_reference(seeds: Seeds, reference: Seeds, measure: str) -> str:
    """The mean paired difference and its 95% interval; no interval with one seed, and a dash without a common seed."""
    if (found := difference(paired(seeds, reference, measure))) is None:
        return "-"
    text = signed(found.mean)
    return text if found.low is None or found.high is None else f"{text} {bounds(found.low, found.high)}"
