"""The leaderboard in short: how each method compares with a reference over all data sets and partitions.

A cluster is a data set and a seed (``clusters``). An interval is about the mean over these data sets, and counts
differences between the clusters of each data set as chance (``over_sets``). If two data sets differ by more than that,
a mark says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from scipy import stats

from boards.clusters import OverSets, between, clusters, over_board
from boards.markdown import NAMES, SPLITS, head
from boards.pairing import of_table, over
from boards.rows import MEASURES, MIXED, ONE, REFERENCE, Record
from rayfed_ssl.base.text import bounds, signed
from rayfed_ssl.records.significance import Judgement

LEAST = 3  # with fewer clusters, intervals are too wide to be shown
ALPHA = 0.05
LOCAL = "local"
PIXELS, UNTRAINED = "raw pixels", "untrained encoder"  # stand beside the methods, measured in the reference's runs
DEPENDS = "≠"  # marks differences on which two data sets do not agree
Differences = dict[str, dict[str, OverSets]]  # measure -> method -> over the reference, of LEAST clusters or more


def with_baselines(rows: Sequence[Record], board: Mapping[str, Any]) -> list[Record]:
    """The rows of the board's seeds and, for each run of the reference, one row of the untrained encoder and one of raw
    pixels.
    """
    made = [row for row in rows if row["seed"] in board["seeds"]]
    for row in tuple(made):
        if row["method"] == REFERENCE and row["table"] == ONE:
            untrained = {name: row[f"untrained_{name}"] for name in MEASURES}
            pixels = {name: row.get(f"pixels_{name}") for name in MEASURES}
            for method, scores in ((UNTRAINED, untrained), (PIXELS, pixels)):
                made.append({**row, "method": method, "bytes_total": None, "hours_total": None, **scores})
    return made


def differences(
    rows: Sequence[Record], board: Mapping[str, Any], reference: str = REFERENCE, table: str = ONE
) -> Differences:
    """The difference to ``reference`` of each method and baseline with at least ``LEAST`` clusters."""
    beside = with_baselines(rows, board)
    return {measure: _known(over_board(beside, board, measure, reference, table=table)) for measure in MEASURES}


def _known(found: Mapping[str, OverSets]) -> dict[str, OverSets]:
    """Those with at least ``LEAST`` clusters, and at least two of each data set."""
    return {method: one for method, one in found.items() if one.count >= LEAST and one.low is not None}


def disagreements(
    rows: Sequence[Record], board: Mapping[str, Any], sets: Sequence[str], table: str = ONE
) -> dict[tuple[str, str], bool]:
    """The (measure, method) whose differences to the reference differ between the two data sets, by Welch's t test at
    ``ALPHA`` over the clusters of each -> whether their means have different signs. Empty unless there are two sets.
    """
    found: dict[tuple[str, str], bool] = {}
    if len(sets) != 2:
        return found
    beside = with_baselines(rows, board)
    for measure in MEASURES:
        one, other = (clusters(beside, board, measure, data=name, table=table) for name in sets)
        for method in one.keys() & other.keys() - {REFERENCE}:
            if min(len(one[method]), len(other[method])) >= LEAST:
                p = float(stats.ttest_ind(one[method], other[method], equal_var=False).pvalue)
                if not math.isnan(p) and p < ALPHA:
                    found[measure, method] = fmean(one[method]) * fmean(other[method]) < 0
    return found


def survive(found: Differences, methods: Sequence[str]) -> set[tuple[str, str]]:
    """The (measure, method) that differ from zero at 5% when all ``methods`` are tested by all measures (Holm 1979)."""
    tested = sorted(
        (_p(one), measure, method)
        for measure, each in found.items()
        for method, one in each.items()
        if method in methods
    )
    kept: set[tuple[str, str]] = set()
    for place, (p, measure, method) in enumerate(tested):
        if p > ALPHA / (len(tested) - place):
            break
        kept.add((measure, method))
    return kept


def _p(one: OverSets) -> float:
    """The two-sided p-value of Student's t test of a mean of zero, computed from its 95% interval."""
    assert one.low is not None
    assert one.high is not None
    half = (one.high - one.low) / 2
    if half == 0:
        return 1.0
    return float(2 * stats.t.sf(abs(one.mean) / (half / stats.t.ppf(1 - ALPHA / 2, one.free)), one.free))


def excludes_zero(one: OverSets) -> bool:
    """Whether there is an interval and it excludes zero."""
    return one.low is not None and one.high is not None and (one.low > 0 or one.high < 0)


# -- the tables --------------------------------------------------------------------------------------------------------


def overall(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """A row per method with at least ``LEAST`` clusters: the best by kNN first, then references, then baselines."""
    found, ranked = differences(rows, board), _ranked(rows, board)
    holm, odd = survive(found, ranked), disagreements(rows, board, list(board["data"]))
    of_tables = tables_above(rows, board)
    heads = ["method", "clusters", *(f"{words} over {REFERENCE}" for words in MEASURES.values()), "tables above by kNN"]
    lines = head(heads)
    for method in in_order(found, ranked, board):
        own = {measure: each.get(method) for measure, each in found.items()}
        count = max(one.count for one in own.values() if one is not None)
        shown = [
            in_cell(one, (measure, method) in holm) + (f" {DEPENDS}" if (measure, method) in odd else "")
            for measure, one in own.items()
        ]
        lines.append(f"| {_name(method)} | {count} | {' | '.join(shown)} | {of_tables.get(method, '-')} |")
    if len(lines) == 2:
        return f"No method has {LEAST} clusters yet."
    below = corrected(found, ranked, " of ranked methods", holm)
    return "\n".join([*lines, "", f"{below} {DEPENDS}: the difference is larger on one data set, or of another sign."])


def corrected(found: Differences, methods: Sequence[str], whose: str, holm: set[tuple[str, str]]) -> str:
    """How many intervals exclude zero, and how many after Holm's correction."""
    tested = [one for each in found.values() for method, one in each.items() if method in methods]
    without = sum(excludes_zero(one) for one in tested)
    return (
        f"Of {len(tested)} intervals{whose} {without} exclude zero (bold), where chance alone would make about "
        f"{ALPHA * len(tested):.0f}; {len(holm)} {'does' if len(holm) == 1 else 'do'} after Holm's correction for all "
        "of them (†)."
    )


def verdict(one: OverSets) -> Judgement:
    """The word for the interval."""
    word = one.judged()
    assert word is not None
    return word


def by_data(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """The mean differences on each data set, with how many more MB a method sends and how many more seconds it takes
    than the reference.
    """
    beside = with_baselines(rows, board)
    columns = {
        data: {name: clusters(beside, board, name, data=data) for name in (*MEASURES, "bytes_total", "hours_total")}
        for data in board["data"]
    }
    found, ranked = differences(rows, board), _ranked(rows, board)
    heads = ["method"]
    for data in columns:
        heads += [f"{NAMES.get(data, data)}: {words}" for words in MEASURES.values()]
        heads += ["MB more", "s more"]
    lines = head(heads)
    for method in in_order(found, ranked, board):
        cells = []
        for each in columns.values():
            cells += [_mean(each[measure].get(method), signed) for measure in MEASURES]
            for cost, scale, form in (("bytes_total", 1e-6, ".1f"), ("hours_total", 3600, ".0f")):
                cells.append(_mean([scale * more for more in each[cost].get(method, [])], partial(signed, form=form)))
        lines.append(f"| {_name(method)} | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else f"No method has {LEAST} clusters yet."


def by_partition(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """Whether it matters how clients differ: the reference compared with training alone, and other references with it,
    on each partition, and on the last partition minus the first. Intervals are over clusters, as everywhere.
    """
    beside = with_baselines(rows, board)
    pairs = [(REFERENCE, LOCAL), *((other, REFERENCE) for other in board["references"] if other != LOCAL)]
    first, *_, last = board["partitions"]
    less = f"{SPLITS.get(last, last)} less {SPLITS.get(first, first)}"
    lines = head(["partition", "difference", "clusters", *MEASURES.values()])
    for method, reference in pairs:
        found: dict[str, list[OverSets | None]] = {}
        for split in board["partitions"]:
            of_all = [over_board(beside, board, measure, reference, partition=split) for measure in MEASURES]
            found[SPLITS.get(split, split)] = [_known(each).get(method) for each in of_all]
        apart = [between(beside, board, measure, method, (last, first), reference) for measure in MEASURES]
        found[less] = [None if one is None else _known({method: one}).get(method) for one in apart]
        for place, each in found.items():
            if counts := [one.count for one in each if one is not None]:
                cells = " | ".join(in_cell(one, holm=False) for one in each)
                lines.append(f"| {place} | {_name(method)} over {_name(reference)} | {max(counts)} | {cells} |")
    return "\n".join(lines) if len(lines) > 2 else f"No method has {LEAST} clusters yet."


def mixed(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """Each method compared with training alone if clients' architectures differ, by the architectures that it ended
    with. The best by kNN comes first.
    """
    own = [row for row in rows if row["table"] == MIXED and row["seed"] in board["seeds"]]
    found, ranked = differences(own, board, LOCAL, MIXED), [m for m in board["mixed"]["methods"] if m != LOCAL]
    holm = survive(found, ranked)
    heads = ["method", "clusters", *(f"{words} over {LOCAL}" for words in MEASURES.values()), "MB per round"]
    lines = head(heads)
    for method in in_order(found, list(board["mixed"]["methods"]), board):
        each = [by_method.get(method) for by_method in found.values()]
        sent = [row["bytes_per_round"] for row in own if row["method"] == method and row["bytes_per_round"] is not None]
        shown = [in_cell(by.get(method), (m, method) in holm) for m, by in found.items()]
        count = max(one.count for one in each if one is not None)
        megabytes = _mean([1e-6 * one for one in sent], "{:.2f}".format)
        lines.append(f"| `{method}` | {count} | {' | '.join(shown)} | {megabytes} |")
    if len(lines) == 2:
        return f"No method has {LEAST} clusters yet."
    return "\n".join([*lines, "", corrected(found, ranked, "", holm)])


def tables_above(rows: Sequence[Record], board: Mapping[str, Any]) -> dict[str, str]:
    """Method -> in how many tables its mean paired difference to the reference by kNN is above zero."""
    found: dict[str, list[float]] = {}
    for data in board["data"]:
        for partition in board["partitions"]:
            for method, value in over(of_table(rows, data, partition, ONE), REFERENCE).items():
                found.setdefault(method, []).append(value)
    return {method: f"{sum(value > 0 for value in each)} of {len(each)}" for method, each in found.items()}


def _ranked(rows: Sequence[Record], board: Mapping[str, Any]) -> list[str]:
    """The methods that are ranked, in the board's order."""
    return [method for method in board["methods"] if method not in board["references"]]


def in_order(found: Differences, ranked: Sequence[str], board: Mapping[str, Any]) -> list[str]:
    """The methods and baselines: the best by kNN first, then references, then baselines."""
    by_knn = next(iter(found.values()))
    known = {method for each in found.values() for method in each}

    def place(method: str) -> tuple[int, float]:
        group = 0 if method in ranked else 1 if method in board["references"] else 2
        return group, -by_knn[method].mean if method in by_knn else 0.0

    return sorted(known, key=place)


def _name(method: str) -> str:
    return method if method in (PIXELS, UNTRAINED) else f"`{method}`"


def _mean(each: Sequence[float] | None, form: Callable[[float], str]) -> str:
    return form(fmean(each)) if each else "-"


def in_cell(one: OverSets | None, holm: bool) -> str:
    """Mean and 95% interval over clusters; bold if it excludes zero, with a dagger if it does so after Holm's
    correction.
    """
    if one is None:
        return "-"
    text = f"{signed(one.mean)} {bounds(one.low, one.high)}"
    return f"**{text}**{' †' if holm else ''}" if excludes_zero(one) else text
