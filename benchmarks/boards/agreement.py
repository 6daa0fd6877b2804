"""Whether the leaderboard's tables agree: do other images or other clients order the methods in the same way?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from scipy.stats import kendalltau

from boards.markdown import NAMES, SPLITS, head
from boards.pairing import Seeds, of_table, over
from boards.rows import MEASURES, ONE, REFERENCE, Record
from rayfed_ssl.base.text import signed

LEAST_COMMON = 5  # two tables are compared if they have at least so many methods in common


def _over_all(rows: Sequence[Record], board: Mapping[str, Any], data: str, partition: str) -> dict[str, list[float]]:
    """Ranked method -> its kNN, linear and few-shot accuracy minus the reference's, if it has all three."""
    methods = of_table(rows, data, partition, ONE)
    found = [over(methods, REFERENCE, measure) for measure in MEASURES]
    known = [m for m in methods if m not in board["references"] and all(m in differences for differences in found)]
    return {method: [differences[method] for differences in found] for method in known}


def agreement(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """Whether tables order the methods in the same way: Kendall's tau between their differences to the reference, by
    each protocol, for every pair of tables with at least ``LEAST_COMMON`` ranked methods in common. Below it are means,
    also over only those methods that are in the lower half by kNN, because two groups that are far apart make tau high
    whatever the order within them.
    """
    tables = {
        (data, partition): found
        for data in board["data"]
        for partition in board["partitions"]
        if len(found := _over_all(rows, board, data, partition)) >= LEAST_COMMON
    }
    pairs = {pair: found for pair in combinations(tables, 2) if (found := _taus(*(tables[each] for each in pair)))}
    if not pairs:
        return f"No two tables have {LEAST_COMMON} methods in common yet."
    names = {(d, p): f"{NAMES.get(d, d)}, {SPLITS.get(p, p)}" for d, p in tables}
    heads = ["", *list(names.values())[1:]]
    lines = head(heads)
    for first_table in list(tables)[:-1]:
        cells = [
            _shown(pairs[first_table, second_table]) if (first_table, second_table) in pairs else ""
            for second_table in list(tables)[1:]
        ]
        lines.append(f"| {names[first_table]} | {' | '.join(cells)} |")
    within = [taus for (first_table, second_table), taus in pairs.items() if first_table[0] == second_table[0]]
    between = [taus for (first_table, second_table), taus in pairs.items() if first_table[0] != second_table[0]]
    low = _lower_half(tables)
    beneath = [
        taus
        for first_table, second_table in combinations(tables, 2)
        if first_table[0] != second_table[0]
        and (
            taus := _taus(
                *({m: tables[each][m] for m in low if m in tables[each]} for each in (first_table, second_table))
            )
        )
    ]
    groups = [("within a data set", within), ("between data sets", between),
            (f"between data sets, of the {len(low)} lowest methods by kNN", beneath)]  # fmt: skip
    means = [
        f"{words} {_shown([fmean(each) for each in zip(*found, strict=True)])}" for words, found in groups if found
    ]
    return "\n".join([*lines, "", f"In the mean: {'; '.join(means)}."])


def _lower_half(tables: Mapping[Any, Mapping[str, Sequence[float]]]) -> list[str]:
    """The methods of all tables that are in the lower half by the mean of their first measure."""
    common = set.intersection(*(set(found) for found in tables.values()))
    order = sorted(common, key=lambda method: fmean(found[method][0] for found in tables.values()))
    return order[: len(order) // 2]


def _taus(one: Mapping[str, Sequence[float]], two: Mapping[str, Sequence[float]]) -> list[float]:
    """Kendall's tau by each protocol, over the methods that both have; none if these are too few."""
    common = [method for method in one if method in two]
    if len(common) < LEAST_COMMON:
        return []
    columns = [zip(*(table[method] for method in common), strict=True) for table in (one, two)]
    return [float(kendalltau(a, b).statistic) for a, b in zip(*columns, strict=True)]


def _shown(taus: Sequence[float]) -> str:
    """The taus of one cell."""
    return " / ".join(signed(tau, ".2f") for tau in taus)


def kept_order(before: Mapping[str, Seeds], after: Mapping[str, Seeds], references: Sequence[str]) -> str:
    """Kendall's tau between the orders of two tables, by each protocol: over the methods that both have, without
    ``references``, ordered by their differences to the reference.
    """
    ranked = [name for name in after if name in before and name not in references]
    told = []
    for measure, words in MEASURES.items():
        columns = [over({name: table[name] for name in ranked}, REFERENCE, measure) for table in (before, after)]
        common = [name for name in ranked if all(name in column for column in columns)]
        if len(common) > 1:
            tau = kendalltau(*([column[name] for name in common] for column in columns)).statistic
            told.append(f"{signed(tau, '.2f')} by {words}")
    found = ", ".join(told) or "not known yet"
    return f"Kendall's tau between the two orders of the {len(ranked)} ranked methods: {found}."
