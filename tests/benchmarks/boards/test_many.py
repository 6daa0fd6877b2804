"""Many clients beside few: differences and intervals against SciPy's, from rows that are made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from boards import many, rows
from scipy import stats

from tests.benchmarks import made

BOARD = rows.load_board(rows.MANY)
KNN = {
    "fedsimclr": (0.40, 0.41, 0.43),
    "fedsc": (0.35, 0.37, 0.36),
    "fedca": (0.41, 0.42, 0.42),
    "local": (0.3, 0.3, 0.3),
}
LATER = {"fedsimclr": (0.38, 0.39, 0.38), "fedsc": (0.37, 0.38, 0.36), "fedca": (0.36, 0.35, 0.36), "fedx": (0.5,) * 3}


def table(values: dict[str, tuple[float, ...]], partition: str) -> list[rows.Record]:
    return [
        made.row(method, seed, knn, partition=partition, linear=knn + 0.1, fewshot=knn - 0.1)
        for method, each in values.items() for seed, knn in enumerate(each)
    ]  # fmt: skip


def shown(values: dict[str, tuple[float, ...]], method: str) -> str:
    pairs = np.subtract(values[method], values["fedsimclr"])
    low, high = stats.ttest_1samp(pairs, 0).confidence_interval(0.95)
    return f"{pairs.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def test_each_method_of_both_stands_with_its_two_differences() -> None:
    text = many.beside(table(KNN, many.FEW), table(LATER, many.MANY), BOARD)
    lines = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert list(lines) == ["fedsc", "fedca"]  # of both, but the reference, best with many clients first
    for method, line in lines.items():
        expected = f"{shown(KNN, method)} -> {shown(LATER, method)}"
        assert [cell.strip() for cell in line.split("|")[2:5]] == [expected] * 3
    assert "two orders of the 3 ranked methods: -0.33 by kNN, -0.33 by linear, -0.33 by few-shot." in text
    # before: fedca, fedsimclr, fedsc; after: fedsimclr, fedsc, fedca: of three pairs two turn round


def test_a_row_of_another_name_stands_beside_what_it_stands_for() -> None:
    board = {**BOARD, "stands_for": {"fedca": "fedsc"}}
    text = many.beside(table(KNN, many.FEW), table(LATER, many.MANY), board)
    (row,) = [line for line in text.splitlines() if line.startswith("| `fedca`")]
    assert row.split("|")[2].strip() == f"{shown(KNN, 'fedsc')} -> {shown(LATER, 'fedca')}"


@pytest.mark.parametrize("few", [[], table(KNN, "iid")])
def test_without_the_reference_of_both_there_is_nothing_to_say(few: list[Any]) -> None:
    assert many.beside(few, table(LATER, many.MANY), BOARD) == "Many clients are not run yet."


@pytest.mark.parametrize("method", BOARD["methods"])
def test_a_cell_is_the_leaderboards_but_for_clients_rounds_and_what_its_server_computes(method: str) -> None:
    main = rows.load_board()
    named = BOARD["stands_for"].get(method, method)
    own, known = BOARD["methods"][method], main["methods"][named]
    changed = {key for key in own.keys() | known.keys() if own.get(key) != known.get(key)}
    allowed = {"evaluation.every", "method.epochs", "method.steps", "method.fit_steps", "train.local_steps"}
    assert changed - allowed == (set() if named == method else {"method.name", "participation.fraction"})
    assert own.get("method.name", method) == known.get("method.name", named)
    partition = BOARD["partitions"][many.MANY]
    rounds, steps = partition["train.rounds"], partition["train.local_steps"]
    asked = partition["clients.count"] * partition["participation.fraction"]
    assert rounds * steps * asked == 10 * 20 * 5  # steps of all clients in all rounds, as in the leaderboard
