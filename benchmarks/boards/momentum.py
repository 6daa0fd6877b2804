"""What a server's momentum adds to a method: each method with it compared with itself without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from boards.clusters import OverSets, over_board
from boards.markdown import NAMES, NOT_RUN, SPLITS, head, number
from boards.overall import Differences, corrected, in_cell, survive
from boards.pairing import complete, of_table
from boards.rows import (
    MEASURES,
    MOMENTUM,
    MOMENTUM_LONGER,
    MOMENTUM_MANY,
    MOMENTUM_MANY_LONGER,
    MOMENTUM_METHODS,
    ONE,
    Record,
    load_board,
    results_of,
)
from boards.rows import read as read_rows

BOARDS = (MOMENTUM, MOMENTUM_LONGER, MOMENTUM_MANY, MOMENTUM_MANY_LONGER, MOMENTUM_METHODS)
KEY = "server.optimizer.momentum"
WithRows = tuple[Sequence[Record], Mapping[str, Any]]  # a board: its rows, and what it asks for
HELD_OUT = {"select_knn": "kNN, held out", "select_linear": "linear, held out"}


def read() -> list[WithRows]:
    """Each of ``BOARDS`` with its rows."""
    return [(read_rows(results_of(path)), load_board(path)) for path in BOARDS]


def without(board: Mapping[str, Any]) -> dict[str, str]:
    """The rows of the board that have a server's momentum -> the same methods without it."""
    return {row: keys["method.name"] for row, keys in board["methods"].items() if KEY in keys}


class Case(NamedTuple):
    """A line of ``table``: a method with a server's momentum, on a partition or in the mean over its board's partitions
    (None), after so many rounds. ``part``: whether it is one partition of such a mean. ``data``: its board's data set,
    if there is only one.
    """

    method: str
    momentum: float
    partition: str | None
    rounds: int
    part: bool
    data: str | None


def gains(boards: Sequence[WithRows]) -> dict[Case, dict[str, OverSets]]:
    """What momentum adds over a board's data sets, by each protocol and by those on held-out training images, if each
    data set has at least two seeds of both.

    Args:
        boards: ``BOARDS`` with their rows.
    """
    found: dict[Case, dict[str, OverSets]] = {}
    for rows, board in boards:
        several = len(board["partitions"]) > 1
        alone = next(iter(board["data"])) if len(board["data"]) == 1 else None
        for row_of, method in without(board).items():
            own = [row for row in rows if row["method"] in (row_of, method)]
            if row_of not in {row["method"] for row in own}:
                continue
            momentum = board["methods"][row_of][KEY]
            (rounds,) = {row["rounds"] for row in own}
            for partition in [None, *board["partitions"]] if several else board["partitions"]:
                differences = {
                    measure: over_board(own, board, measure, method, partition=partition).get(row_of)
                    for measure in (*MEASURES, *HELD_OUT)
                }
                known = {
                    measure: gain for measure, gain in differences.items() if gain is not None and gain.low is not None
                }
                if len(known) == len(differences):  # else not enough of it is run yet
                    part = several and partition is not None
                    found[Case(method, momentum, partition, rounds, part, alone)] = known
    return found


def tests(found: Mapping[Case, Mapping[str, OverSets]]) -> Differences:
    """The differences that count as tests: by the protocols on test images, without the partitions of another line's
    mean. Measure -> case -> gain.
    """
    whole = {str(case): each for case, each in found.items() if not case.part}
    return {measure: {case: each[measure] for case, each in whole.items()} for measure in MEASURES}


def surviving(found: Mapping[Case, Mapping[str, OverSets]]) -> set[tuple[str, str]]:
    """The (measure, case) of ``tests`` that differ from zero after Holm's correction for all of them."""
    return survive(tests(found), [str(case) for case in found])


def table(boards: Sequence[WithRows]) -> str:
    """A line per case."""
    found = gains(boards)
    if not found:
        return f"These rows are {NOT_RUN}."
    holm = surviving(found)
    heads = ["method", "momentum", "partition", "rounds", "clusters", *MEASURES.values(), *HELD_OUT.values()]
    lines = head(heads)
    for case, each in found.items():
        place = "all three" if case.partition is None else SPLITS.get(case.partition, case.partition)
        place += "" if case.data is None else f", {NAMES.get(case.data, case.data)} alone"
        cells = [in_cell(each[measure], (measure, str(case)) in holm) for measure in (*MEASURES, *HELD_OUT)]
        count = each[next(iter(MEASURES))].count
        lines.append(f"| `{case.method}` | {case.momentum} | {place} | {case.rounds} | {count} | {' | '.join(cells)} |")
    whose = " of protocols on test images, parts of the first line left out,"
    return "\n".join([*lines, "", corrected(tests(found), [str(case) for case in found], whose, holm)])


def runs(boards: Sequence[WithRows]) -> str:
    """The runs behind the lines of ``table``: mean and standard deviation over seeds, by data set."""
    heads = ["data", "partition", "rounds", "method", "seeds", *MEASURES.values(), "minutes", "made at"]
    lines = head(heads)
    for rows, board in boards:
        for data in board["data"]:
            for partition in board["partitions"]:
                methods = of_table(rows, data, partition, ONE)
                for method in board["methods"]:
                    if own := complete(methods.get(method, {})):
                        cells = [NAMES.get(data, data), SPLITS.get(partition, partition), str(own[0]["rounds"])]
                        cells += [f"`{method}`", str(len(own)), *(number([row[m] for row in own]) for m in MEASURES)]
                        cells += [number([row["minutes"] for row in own], 1)]
                        lines.append(f"| {' | '.join(cells)} | {', '.join(sorted({row['commit'] for row in own}))} |")
    return "\n".join(lines)
