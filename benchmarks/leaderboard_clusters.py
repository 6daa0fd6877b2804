"""Differences between methods by clusters of runs: one number per data set and seed, the mean over its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from leaderboard_rows import ONE, REFERENCE, Record
from leaderboard_tables import beyond, complete, of_table


def clusters(
    rows: Sequence[Record],
    board: Mapping[str, Any],
    name: str,
    data: str | None = None,
    reference: str = REFERENCE,
    table: str = ONE,
    partition: str | None = None,
) -> dict[str, list[float]]:
    """Method -> ``row[name]`` less the reference's, one number per (data set, seed).

    Runs of one seed share first values and draws, and a data set's partitions share its images: their differences are
    not independent. Each number is therefore the mean over the partitions in which both runs of that seed are complete
    and have a value, which with a missing run are fewer.

    Args:
        data: only this data set; None: all of ``board``.
        table: the kind of tables that are read, by default those of one architecture.
        partition: only this partition; None: the mean over all of ``board``.

    Returns:
        Numbers by data set in the board's order, then by ascending seed. A method that shares no run with the reference
        is not there; the reference itself has zeros.
    """
    found: dict[str, list[float]] = {}
    for one in board["data"] if data is None else [data]:
        pairs: dict[str, dict[int, list[float]]] = {}
        for split in board["partitions"] if partition is None else [partition]:
            methods = of_table(rows, one, split, table)
            theirs = {row["seed"]: row for row in complete(methods.get(reference, {}))}
            for method, seeds in methods.items():
                for row in complete(seeds):
                    other = theirs.get(row["seed"])
                    if other is not None and (more := beyond(row, other, name)) is not None:
                        pairs.setdefault(method, {}).setdefault(row["seed"], []).append(more)
        for method, by_seed in pairs.items():
            found.setdefault(method, []).extend(fmean(by_seed[seed]) for seed in sorted(by_seed))
    return found
