"""Differences between methods by clusters of runs: one number per data set and seed, the mean over its partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

import numpy as np
from scipy import stats

from boards.pairing import beyond, complete, of_table
from boards.rows import ONE, REFERENCE, Record
from rayfed_ssl.records.comparison import Difference
from rayfed_ssl.records.intervals import LEVEL
from rayfed_ssl.records.seed_image_intervals import SAME


@dataclass(frozen=True)
class OverSets(Difference):
    """A difference over several data sets. ``count``: the number of clusters; ``free``: the degrees of freedom of its
    interval.
    """

    free: float = 0.0


def over_sets(sets: Sequence[Sequence[float]]) -> OverSets:
    """The mean of the data sets' mean differences, with its 95% interval; without one if a set has fewer than two
    clusters, or only ones that are alike: how far others would be apart, these do not tell. Differences that are all
    zero are known to be: the runs are the same.

    The interval is about exactly these data sets: only differences between the clusters of one set count as chance, and
    each set has its own variance. How far data sets differ from each other is not part of it. It is Student's t with
    Welch and Satterthwaite's degrees of freedom; for one set it is the paired t interval.

    Args:
        sets: for each of S data sets, n_s >= 1 numbers.
    """
    means = [fmean(each) for each in sets]
    middle, count = fmean(means), sum(map(len, sets))
    if any(len(each) < 2 or (np.ptp(each) < SAME and abs(each[0]) >= SAME) for each in sets):
        return OverSets(middle, None, None, count)
    of_means = [variance(each, mean) / len(each) for each, mean in zip(sets, means, strict=True)]
    if sum(of_means) < SAME**2:
        return OverSets(0.0, 0.0, 0.0, count, free=float(count - len(sets)))
    free = sum(of_means) ** 2 / sum(v**2 / (len(each) - 1) for v, each in zip(of_means, sets, strict=True))
    half = float(stats.t.ppf((1 + LEVEL) / 2, free)) * math.sqrt(sum(of_means)) / len(sets)
    return OverSets(middle, middle - half, middle + half, count, free=free)


def over_board(
    rows: Sequence[Record], board: Mapping[str, Any], name: str, reference: str = REFERENCE, **where: Any
) -> dict[str, OverSets]:
    """Method -> its difference to ``reference`` over the data sets of ``board`` in which both have runs.

    ``where``: further arguments of ``clusters``.
    """
    by_set = [clusters(rows, board, name, data=data, reference=reference, **where) for data in board["data"]]
    methods = dict.fromkeys(method for own in by_set for method in own if method != reference)
    return {method: over_sets([own[method] for own in by_set if method in own]) for method in methods}


def clusters(
    rows: Sequence[Record],
    board: Mapping[str, Any],
    name: str,
    data: str | None = None,
    reference: str = REFERENCE,
    table: str = ONE,
    partition: str | None = None,
) -> dict[str, list[float]]:
    """Method -> ``row[name]`` minus the reference's, one number per (data set, seed).

    Runs of one seed share first values and draws, and a data set's partitions share its images, so their differences
    are not independent. Each number is therefore the mean over the partitions in which both runs of that seed are
    complete and have a value; if a run is missing, it is a mean over fewer.

    Args:
        data: only this data set; None: all of ``board``.
        table: the kind of tables that are read, by default those of one architecture.
        partition: only this partition; None: the mean over all of ``board``.

    Returns:
        Numbers by data set in the board's order, then by ascending seed. A method that shares no run with the reference
        is left out; the reference itself has zeros.
    """
    found: dict[str, list[float]] = {}
    splits = list(board["partitions"]) if partition is None else [partition]
    for one in board["data"] if data is None else [data]:
        for method, by_seed in by_seeds(rows, splits, name, one, reference, table).items():
            found.setdefault(method, []).extend(by_seed[seed] for seed in sorted(by_seed))
    return found


def by_seeds(
    rows: Sequence[Record], splits: Sequence[str], name: str, data: str, reference: str = REFERENCE, table: str = ONE
) -> dict[str, dict[int, float]]:
    """Method -> seed -> the number of that cluster of this data set: the mean over these partitions."""
    pairs: dict[str, dict[int, list[float]]] = {}
    for split in splits:
        methods = of_table(rows, data, split, table)
        theirs = {row["seed"]: row for row in complete(methods.get(reference, {}))}
        for method, seeds in methods.items():
            for row in complete(seeds):
                other = theirs.get(row["seed"])
                if other is not None and (more := beyond(row, other, name)) is not None:
                    pairs.setdefault(method, {}).setdefault(row["seed"], []).append(more)
    return {method: {seed: fmean(each) for seed, each in by_seed.items()} for method, by_seed in pairs.items()}


def between(
    rows: Sequence[Record], board: Mapping[str, Any], name: str, method: str, splits: tuple[str, str], reference: str
) -> OverSets | None:
    """A method's difference to ``reference`` on the first of two partitions minus that on the second, paired by data
    set and seed, which share images and first values. None if no seed has both.
    """
    sets = []
    for data in board["data"]:
        one, other = (by_seeds(rows, [split], name, data, reference).get(method, {}) for split in splits)
        if both := sorted(one.keys() & other.keys()):
            sets.append([one[seed] - other[seed] for seed in both])
    return over_sets(sets) if sets else None
