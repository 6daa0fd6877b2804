"""What longer runs change, from rows that are made up; and the board of longer runs against the main one."""

from __future__ import annotations

from typing import Any

import pytest
from boards import longer, markdown, rows

from tests.benchmarks import made

LONGER, BOARD = rows.load_board(rows.LONGER), rows.load_board()


def row(method: str, rounds: int, knn: float, seed: int = 0, **others: Any) -> rows.Record:
    """A complete row of the longer board's table; linear is a tenth above kNN, few-shot a tenth below."""
    keys = {"partition": "dirichlet", "split": "s", "linear": knn + 0.1, "fewshot": knn - 0.1}
    return made.row(method, seed, knn, rounds=rounds, **(keys | others))


SHORT = [row("fedsimclr", 10, 0.4), row("local", 10, 0.35), row("fedsc", 10, 0.3), row("fedca", 10, 0.36)]
LONG = [row("fedsimclr", 50, 0.45), row("local", 50, 0.46), row("fedsc", 50, 0.43), row("fedca", 50, 0.41)]


def test_each_method_stands_with_what_it_was_and_is() -> None:
    text = longer.change(SHORT, LONG, LONGER)
    assert "After 10 rounds -> after 50" in text
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    fedsc = next(line for line in lines if "`fedsc`" in line)
    assert [cell.strip() for cell in fedsc.strip("|").split("|")] == [
        "`fedsc`", "1", "0.300 -> 0.430", "0.400 -> 0.530", "0.200 -> 0.330",
        "-0.100 -> -0.020", "-0.100 -> -0.020", "-0.050 -> -0.030", "-0.050 -> -0.030",
    ]  # fmt: skip
    assert [line.split("`")[1] for line in lines] == ["fedsimclr", "fedsc", "fedca", "local"]


def test_the_order_is_that_of_ranked_methods() -> None:
    """Of three pairs one turns round: (2 - 1) / 3."""
    assert "two orders of the 3 ranked methods: +0.33 by kNN" in longer.change(SHORT, LONG, LONGER)


def test_means_are_over_the_seeds_of_both_alone() -> None:
    short = [*SHORT, row("fedsc", 10, 0.9, seed=1), row("fedsc", 10, 0.8, seed=2)]
    long = [*LONG, row("fedsc", 50, 0.7, seed=2, split="another"), row("fedsc", 50, 0.1, seed=3)]
    assert longer.change(short, long, LONGER) == longer.change(SHORT, LONG, LONGER)


def test_methods_of_other_seeds_are_ordered_by_their_differences() -> None:
    """The second seed is an easy one, which the reference and the last method alone have: each pair as far apart."""
    short = [*SHORT, row("fedsimclr", 10, 0.8, seed=1), row("fedsc", 10, 0.7, seed=1)]
    long = [*LONG, row("fedsimclr", 50, 0.8, seed=1), row("fedsc", 50, 0.78, seed=1)]
    assert "two orders of the 3 ranked methods: +0.33 by kNN" in longer.change(short, long, LONGER)


def test_methods_of_one_board_alone_are_left_out() -> None:
    text = longer.change([one for one in SHORT if one["method"] != "local"], LONG, LONGER)
    assert "`local`" not in text
    assert "0.300 -> 0.430 | 0.400 -> 0.530 | 0.200 -> 0.330 | -0.100 -> -0.020" in text
    assert longer.change(SHORT, [], LONGER) == f"Longer runs are {markdown.NOT_RUN}."


@pytest.mark.parametrize("method", LONGER["methods"])
def test_only_the_rounds_differ_from_the_leaderboards(method: str) -> None:
    """Each cell is the main board's but for five times the rounds and how often it is measured and saved."""
    one, two = (
        next(rows.cells(board, ["cifar10"], ["dirichlet"], [0], [method])).built(rows.NOWHERE).model_dump()
        for board in (BOARD, LONGER)
    )
    steps = [c["train"].pop("rounds") * c["train"].pop("local_steps") for c in (one, two)]
    assert steps[1] == 5 * steps[0]
    for found in (one, two):
        found["evaluation"].pop("every")
        found["checkpoint"].pop("every")
    assert one == two
