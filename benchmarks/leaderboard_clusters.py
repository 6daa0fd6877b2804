"""Differences between methods by clusters of runs: one number per data set and seed, the mean over its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from leaderboard_rows import ONE, REFERENCE, Record
from leaderboard_tables import complete, of_table


def clusters(
    rows: Sequence[Record], board: Mapping[str, Any], name: str, data: str | None = None, reference: str = REFERENCE
) -> dict[str, list[float]]:
    """Method -> ``row[name]`` less the reference's, one number per (data set, seed).

    Runs of one seed share first values and draws, and a data set's partitions share its images: their differences are
    not independent. Each number is therefore the mean over the partitions in which both runs of that seed are complete
    and have a value, which with a missing run are fewer. The tables of one architecture alone are read.

    Args:
        data: only this data set; None: all of ``board``.

    Returns:
        Numbers by data set in the board's order, then by ascending seed. A method that shares no run with the reference
        is not there; the reference itself has zeros.
    """
    found: dict[str, list[float]] = {}
    for one in board["data"] if data is None else [data]:
        pairs: dict[str, dict[int, list[float]]] = {}
        for partition in board["partitions"]:
            methods = of_table(rows, one, partition, ONE)
            theirs = {row["seed"]: row[name] for row in complete(methods.get(reference, {}))}
            for method, seeds in methods.items():
                for row in complete(seeds):
                    if None not in (row[name], other := theirs.get(row["seed"])):
                        pairs.setdefault(method, {}).setdefault(row["seed"], []).append(row[name] - other)
        for method, by_seed in pairs.items():
            found.setdefault(method, []).extend(fmean(by_seed[seed]) for seed in sorted(by_seed))
    return found
