"""The leaderboard's rows as the pages speak of them: a method's differences, and what they are called."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Any

from boards import overall, rows
from boards.clusters import OverSets

from tests.benchmarks.pages import ABOVE

BOARD = rows.load_board()
RANKED = [method for method in BOARD["methods"] if method not in BOARD["references"]]
SETS = list(BOARD["data"])
KNN, LINEAR, FEWSHOT = rows.MEASURES


@cache
def made() -> tuple[rows.Record, ...]:
    return tuple(rows.read())


@cache
def found(reference: str, table: str, data: str | None) -> overall.Differences:
    board = BOARD if data is None else {**BOARD, "data": {data: None}}
    return overall.differences(made(), board, reference, table)


def over(
    method: str, reference: str = rows.REFERENCE, table: str = rows.ONE, data: str | None = None
) -> dict[str, OverSets]:
    """Measure -> the difference over both data sets, or of one."""
    return {measure: each[method] for measure, each in found(reference, table, data).items() if method in each}


def words(method: str, reference: str = rows.REFERENCE, table: str = rows.ONE, data: str | None = None) -> list[str]:
    """What it is called by kNN, linear probe and few-shot."""
    return [overall.verdict(one) for one in over(method, reference, table, data).values()]


def mean(method: str, measure: str, reference: str = rows.REFERENCE, **where: Any) -> float:
    """The mean difference in points."""
    return 100 * over(method, reference, **where)[measure].mean


def are(word: str, measure: str, reference: str = rows.REFERENCE, **where: Any) -> set[str]:
    """The ranked methods that are so by a protocol."""
    at = list(rows.MEASURES).index(measure)
    return {method for method in RANKED if words(method, reference, **where)[at:][:1] == [word]}


def by_all(word: str, reference: str = rows.REFERENCE, **where: Any) -> set[str]:
    return set.intersection(*(are(word, measure, reference, **where) for measure in rows.MEASURES))


def interval(
    method: str, measure: str, reference: str = rows.REFERENCE, *, digits: int = 1, **where: Any
) -> list[float]:
    """The mean difference and the ends of its interval in points, rounded."""
    one = over(method, reference, **where)[measure]
    assert one.low is not None
    assert one.high is not None
    return [round(100 * value, digits) for value in (one.mean, one.low, one.high)]


def times_above(method: str, **where: Any) -> int:
    return words(method, **where).count(ABOVE)


def holm(reference: str = rows.REFERENCE, table: str = rows.ONE) -> set[tuple[str, str]]:
    return overall.survive(found(reference, table, None), RANKED)


def survivors_above(table: str) -> set[str]:
    return {method for measure, method in holm(table=table) if over(method, table=table)[measure].mean > 0}


def of_totals(method: str, data: str, name: str = "bytes_total") -> float:
    """A method's total over FedSimCLR's, in the mean over a data set's runs."""
    seeds = [row for row in made() if row["data"] == data and row["table"] == rows.ONE]
    mine, other = (fmean(row[name] for row in seeds if row["method"] == each) for each in (method, rows.REFERENCE))
    return mine / other
