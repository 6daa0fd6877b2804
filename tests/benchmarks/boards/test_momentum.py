"""What a server's momentum adds, from rows that are made up; rows with it differ from those without by it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from boards import markdown, momentum, rows
from scipy import stats

from tests.benchmarks import made

BOARDS = {path: rows.load_board(path) for path in momentum.BOARDS}
MAIN, MANY = rows.load_board(), rows.load_board(rows.MANY)
GAINS = {"cifar10": (0.02, 0.03, 0.01), "fashion_mnist": (0.01, 0.00, 0.02)}  # of seeds 3, 4, 5


def pair(data: str, partition: str, method: str, without: str, rounds: int, less: float = 0.0) -> list[rows.Record]:
    """Rows of three seeds with momentum and without; linear gains twice what kNN gains, the others nothing."""
    found = []
    for seed, gain in zip((3, 4, 5), GAINS[data], strict=True):
        base = 0.3 + 0.01 * seed
        where: dict[str, Any] = {"data": data, "partition": partition, "rounds": rounds}
        where |= {"fewshot": 0.2, "select_knn": 0.4, "select_linear": 0.5}
        found.append(made.row(without, seed, base, linear=base, **where))
        found.append(made.row(method, seed, base + gain - less, linear=base + 2 * gain, **where))
    return found


def welch(scale: float) -> str:
    """The mean over data sets and its interval, from SciPy's parts."""
    each = [scale * np.array(GAINS[data]) for data in GAINS]
    parts = [one.var(ddof=1) / len(one) for one in each]
    free = sum(parts) ** 2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, each, strict=True))
    low, high = stats.t.interval(0.95, free, np.mean([one.mean() for one in each]), sum(parts) ** 0.5 / len(each))
    return f"{(low + high) / 2:+.3f} [{low:+.3f}, {high:+.3f}]"


def shown(text: str) -> list[list[str]]:
    return [
        [cell.strip(" *†") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"
    ]


def test_each_method_stands_against_itself_by_partition_and_in_the_mean() -> None:
    ten = [row for data in GAINS for split, less in (("iid", 0.01), ("dirichlet", -0.01), ("two_classes", 0.0))
           for row in pair(data, split, "momentum_05", "fedsimclr", 10, less)]  # fmt: skip
    more = [row for data in GAINS for row in pair(data, "dirichlet", "momentum_05", "fedsimclr", 25)]
    byol = [row for data in GAINS for row in pair(data, "dirichlet", "fedbyol_momentum_05", "fedbyol", 10)]
    few = [row for data in GAINS for row in pair(data, "many_clients", "momentum_09", "fedsimclr", 20, 0.02)]
    one = pair("cifar10", "many_clients", "momentum_09", "fedsimclr", 60)
    byol = [row for data in GAINS for row in pair(data, "dirichlet", "fedbyol_momentum_05", "fedbyol", 10)]
    boards = list(zip((ten, more, few, one, byol), BOARDS.values(), strict=True))
    cells = shown(text := momentum.table(boards))
    assert [cell[:5] for cell in cells] == [
        ["`fedsimclr`", "0.5", "all three", "10", "6"],
        ["`fedsimclr`", "0.5", "IID", "10", "6"],
        ["`fedsimclr`", "0.5", "Dirichlet 0.1", "10", "6"],
        ["`fedsimclr`", "0.5", "two classes per client", "10", "6"],
        ["`fedsimclr`", "0.5", "Dirichlet 0.1", "25", "6"],
        ["`fedsimclr`", "0.9", markdown.SPLITS["many_clients"], "20", "6"],
        ["`fedsimclr`", "0.9", f"{markdown.SPLITS['many_clients']}, CIFAR-10 alone", "60", "3"],
        ["`fedbyol`", "0.5", "Dirichlet 0.1", "10", "6"],
    ]
    by_knn = [float(cell[5].split()[0]) for cell in cells]
    assert by_knn == [0.015, 0.005, 0.025, 0.015, 0.015, -0.005, 0.02, 0.015]
    for line in (cells[0], cells[3], cells[4], cells[7]):
        assert line[5:7] == [welch(1), welch(2)]
        assert line[7:] == ["0.000 [0.000, 0.000]"] * 3
    # three protocols of the mean, 25 rounds, 50 clients twice and BYOL: the mean's parts are no tests of their own
    assert "Of 15 intervals" in text


def test_rows_that_are_not_run_are_said_to_be_so() -> None:
    assert momentum.table([([], board) for board in BOARDS.values()]) == "These rows are not run yet."


@pytest.mark.parametrize("path", momentum.BOARDS, ids=lambda path: path.stem)
def test_a_row_differs_from_the_leaderboards_by_the_servers_momentum_and_the_rounds_alone(path: Any) -> None:
    base = MANY | {"data": MAIN["data"]} if path in (rows.MOMENTUM_MANY, rows.MOMENTUM_MANY_LONGER) else MAIN
    for cell in rows.cells(BOARDS[path], list(BOARDS[path]["data"]), list(BOARDS[path]["partitions"]), [3]):
        without = momentum.without(BOARDS[path]).get(cell.method, cell.method)
        (known,) = rows.cells(base, [cell.data], [cell.partition], [3], [without])
        one, other = (each.built(rows.NOWHERE).model_dump() for each in (cell, known))
        server = one["server"].pop("optimizer")
        assert other["server"].pop("optimizer") != server or cell.method == without
        value = 0.9 if cell.method == "momentum_09" else 0.5
        assert cell.method == without or server == {"name": "momentum", "lr": 1.0, "momentum": value}
        longer = {rows.MOMENTUM_LONGER: (25, 10), rows.MOMENTUM_MANY_LONGER: (60, 20)}.get(path)
        assert longer is None or (one["train"].pop("rounds"), other["train"].pop("rounds")) == longer
        for each in (one, other):
            del each["evaluation"]["every"], each["checkpoint"]["every"]
        assert one == other
