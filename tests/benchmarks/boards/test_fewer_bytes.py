"""What fewer bytes cost, from rows that are made up; the steps of the board's rows, and the bytes of their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import fewer_bytes as fewer
from boards import rows

from rayfed_ssl.base.quantizing import quantized_bytes
from rayfed_ssl.federated.local_optimizer import round_learning_rate
from tests.benchmarks import made

BOARD, ROUNDS, RECIPE = (rows.load_board(path) for path in (rows.BYTES, rows.ROUNDS, rows.RECIPE))


def row(method: str, seed: int, knn: float, megabytes: float, **others: Any) -> rows.Record:
    """A complete row; linear is a tenth above kNN, few-shot a tenth below."""
    size = {"partition": "dirichlet", "linear": knn + 0.1, "fewshot": knn - 0.1, "bytes_total": int(1e6 * megabytes)}
    size["minutes"] = 2.0 + seed
    return made.row(method, seed, knn, **(size | others))


MADE = [
    row("up8_down8", 0, 0.39, 12.0), row("up8_down8", 1, 0.42, 14.0),
    row("fedsimclr", 0, 0.40, 50.0), row("fedsimclr", 1, 0.42, 54.0),
    row("float16", 0, 0.40, 26.0),
]  # fmt: skip


def test_rows_stand_by_their_bytes_beside_the_method_as_it_is() -> None:
    text = fewer.less(MADE, BOARD)
    assert "5 runs, made at abc. 2.0 to 3.0 minutes a run, beside other work." in text
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    assert cells[0][:5] == ["`fedsimclr`", "2", "52.0", "-", "0.410 ± 0.014"]
    assert cells[1][:5] == ["`float16`", "1", "26.0", "2.0", "0.400"]
    assert cells[1][7:] == ["0.000", "0.000", "0.000"]
    assert cells[2][:4] == ["`up8_down8`", "2", "13.0", "4.0"]
    assert cells[2][7] == "-0.005 [-0.069, +0.059]"  # of -0.01 and 0: t(0.975, 1) = 12.706, times 0.005
    assert cells[3][0].startswith("`up4_down8`, `up2_down8`, `up4_down4`, `rounds_5`")
    assert len({len(line) for line in cells}) == 1


def test_without_the_method_as_it_is_nothing_is_compared() -> None:
    assert fewer.less([one for one in MADE if one["method"] != "fedsimclr"], BOARD) == "These rows are not run yet."


def test_a_method_that_sends_nothing_is_no_number_of_times_less() -> None:
    text = fewer.less([*MADE, row("local", 0, 0.38, 0.0)], ROUNDS)
    assert "| `local` | 1 | 0.0 | - | 0.380 |" in text


@pytest.mark.parametrize(
    ("board", "method", "steps"),
    [
        (board, name, steps)
        for board, steps in ((BOARD, 200), (ROUNDS, 500), (RECIPE, 500))
        for name in board["methods"]
    ],
)
def test_all_take_as_many_local_steps(board: Mapping[str, Any], method: str, steps: int) -> None:
    (cell,) = (c for c in rows.cells(board, ["cifar10"], ["dirichlet"], [0]) if c.method == method)
    train = cell.built(Path("images")).train
    assert train.local_steps is not None
    assert train.rounds * train.local_steps == steps


def test_what_is_taken_together_was_measured_by_itself() -> None:
    coded, fewer_rounds = BOARD["methods"]["up2_down8"], ROUNDS["methods"]["rounds_5"] | {"evaluation.every": 5}
    momentum = rows.load_board(rows.MOMENTUM)["methods"]["momentum_05"]
    assert RECIPE["methods"] == {
        "fedsimclr": {},
        "rounds_5_coded": fewer_rounds | coded,
        "rounds_5_coded_momentum": fewer_rounds | coded | momentum,
        "coded_momentum": coded | momentum,
    }


def test_rounds_are_compared_at_one_learning_rate() -> None:
    configs = [cell.built(Path("images")) for cell in rows.cells(ROUNDS, ["cifar10"], ["dirichlet"], [0])]
    rates = {round_learning_rate(c.train.optimizer, t, c.train.rounds) for c in configs for t in (1, c.train.rounds)}
    (whole,) = (c for c in rows.cells(BOARD, ["cifar10"], ["dirichlet"], [0]) if c.method == rows.REFERENCE)
    train = whole.built(Path("images")).train
    falling = [round_learning_rate(train.optimizer, t, train.rounds) for t in range(1, train.rounds + 1)]
    assert list(rates) == pytest.approx([np.mean(falling)])


@pytest.mark.parametrize("method", [name for name in BOARD["methods"] if name.startswith("up")])
def test_a_name_says_the_bits(method: str) -> None:
    (cell,) = (c for c in rows.cells(BOARD, ["cifar10"], ["dirichlet"], [0]) if c.method == method)
    transport = cell.built(Path("images")).transport
    up, down = (int(part.removeprefix(way)) for part, way in zip(method.split("_"), ("up", "down"), strict=True))
    assert [transport.up.size(10_000), transport.down.size(10_000)] == [
        quantized_bytes(10_000, b, 512) for b in (up, down)
    ]
