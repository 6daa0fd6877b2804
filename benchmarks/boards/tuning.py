"""The small grid with which every method of the leaderboard is tuned: its runs, and the values that they chose.

Keys are tuned one after the other, each with the winners of the ones before. They are tuned on one seed that is not in
the tables, and therefore on other splits and held-out images. The value with the highest accuracy on held-out training
images wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from boards.rows import CONFIGS, HERE, NOWHERE, ONE, Cell, Record

RESULTS = HERE / "results" / "leaderboard_tuning.jsonl"
FEATURES = ("early_effective_rank", "effective_rank", "early_uniformity", "uniformity")  # what is known without labels
Line = dict[str, Any]


def line_of(cell: Cell, key: str, row: Record, measure: str) -> Line:
    """The results of a run of the grid. ``score``, by which values are chosen, is None if it diverged."""
    return {
        "data": cell.data, "partition": cell.partition, "method": cell.method, "seed": cell.seed, "key": key,
        "value": cell.keys[key], "keys": dict(cell.keys), "score": row[f"select_{measure}"], "measure": measure,
        "scores": {name: row[f"select_{name}"] for name in ("knn", "linear")},
        "features": {name: row[name] for name in FEATURES},
        "settings": row["settings"], "status": row["status"], "minutes": row["minutes"], "commit": row["commit"],
    }  # fmt: skip


def known(key: str, cell: Cell, lines: Sequence[Line]) -> Line | None:
    """The line of a value whose run exists already under another key, for example because the value is the default."""
    wanted = cell.built(NOWHERE)
    for line in lines:
        same = (line["data"], line["method"]) == (cell.data, cell.method)
        if same and replace(cell, keys=line["keys"]).built(NOWHERE) == wanted:
            return {**line, "key": key, "value": cell.keys[key], "keys": dict(cell.keys)}
    return None


def grid(board: Mapping[str, Any], method: str) -> dict[str, Sequence[Any]]:
    """Key -> values, in the order in which the keys are tuned."""
    tuning = board["tuning"]
    return {**tuning["all"], **tuning["methods"].get(method, {})}


def chosen(lines: Sequence[Line], data: str, method: str) -> dict[str, Any]:
    """Key -> the value with the highest score; if scores are equal, the first that was run. Runs without a score never
    win.
    """
    best: dict[str, Line] = {}
    for line in lines:
        if (line["data"], line["method"]) != (data, method) or line["score"] is None:
            continue
        if line["key"] not in best or line["score"] > best[line["key"]]["score"]:
            best[line["key"]] = line
    return {key: line["value"] for key, line in best.items()}


def winners(lines: Sequence[Line], board: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """(data set, method) -> the keys that its grid chose, for grids whose runs are all done."""
    found = {}
    for data, method in sorted({(line["data"], line["method"]) for line in lines}):
        run = {
            (line["key"], json.dumps(line["value"]))
            for line in lines
            if (line["data"], line["method"]) == (data, method)
        }
        wanted = {(key, json.dumps(value)) for key, values in grid(board, method).items() for value in values}
        if wanted <= run and (best := chosen(lines, data, method)):
            found[data, method] = best
    return found


def settings(lines: Sequence[Line], board: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """(data set, method) -> the keys of a tuned cell: those that the grid chose on the data set that the board
    names.
    """
    found = winners(lines, board)
    return {
        (data, method): keys
        for data, source in board["tuning"]["chosen_on"].items()
        for (own, method), keys in found.items()
        if own == source
    }


def with_grids(board: Mapping[str, Any], sets: Sequence[str]) -> list[str]:
    """Those of the data sets whose grids choose settings."""
    return [name for name in sets if name in board["tuning"]["chosen_on"].values()]


def tuned_cells(board: Mapping[str, Any], data: str, method: str, lines: Sequence[Line]) -> Iterator[tuple[str, Cell]]:
    """(key, cell) for the values without a run of the first key of a method's grid that has any; none if all have been
    run.
    """
    tuning, own = board["tuning"], board["methods"][method]
    known = {
        (line["key"], json.dumps(line["value"])) for line in lines if (line["data"], line["method"]) == (data, method)
    }
    for key, values in grid(board, method).items():
        left = [value for value in values if (key, json.dumps(value)) not in known]
        best = chosen(lines, data, method)
        for value in left:
            keys = {
                **board["partitions"][tuning["partition"]], "method.name": method, **own, **best, key: value,
                "seed": tuning["seed"],
            }  # fmt: skip
            yield key, Cell(data, tuning["partition"], ONE, method, tuning["seed"], CONFIGS / board["data"][data], keys)
        if left:
            return
