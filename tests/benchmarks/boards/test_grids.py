"""What can be known without labels of one method's settings: which runs count, what is lost by whose choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from boards import grids
from scipy import stats

RANKS, KNN, LINEAR = [10.0, 30.0, 20.0], [0.30, 0.34, 0.40], [0.50, 0.48, 0.44]


def line(method: str, at: int, **changes: Any) -> dict[str, Any]:
    """Run ``at`` of a method's grid: its effective rank, at either time, and the uniformity that goes against it."""
    features = {
        "early_effective_rank": RANKS[at], "effective_rank": RANKS[at], "early_uniformity": -RANKS[at],
        "uniformity": KNN[at],
    }  # fmt: skip
    made = {"data": "cifar10", "method": method, "settings": f"{method}-{at}", "score": KNN[at], "features": features}
    return made | {"scores": {"knn": KNN[at], "linear": LINEAR[at]}} | changes


def test_a_grids_runs_count_once_where_they_ended_and_their_features_are_known() -> None:
    whole = [line("fedprox", at) for at in range(3)]
    again = line("fedprox", 1, key="another")
    diverged, old = line("fedca", 0, score=None), {k: v for k, v in line("fedca", 1).items() if k != "features"}
    unknown = line("fedca", 2, features={**line("fedca", 2)["features"], "early_uniformity": None})
    found = grids.grids([*whole, again, diverged, old, unknown, *(line("fedsc", at) for at in range(2))])
    assert {of: len(runs) for of, runs in found.items()} == {("cifar10", "fedprox"): 3}


@pytest.mark.parametrize(
    ("by", "knn", "linear"),
    [
        ("effective_rank", 0.06, 0.02),  # run 1 has the highest rank
        ("early_uniformity", 0.06, 0.02),  # and the lowest uniformity
        ("uniformity", 0.10, 0.00),  # run 0 has the lowest
        ("knn", 0.00, 0.06),
        ("linear", 0.10, 0.00),
        (None, 0.40 - np.mean(KNN), 0.50 - np.mean(LINEAR)),
    ],
)
def test_lost_is_the_best_less_what_was_chosen(by: str | None, knn: float, linear: float) -> None:
    grid = [line("fedprox", at) for at in range(3)]
    assert grids.lost(grid, "knn", by) == pytest.approx(knn)
    assert grids.lost(grid, "linear", by) == pytest.approx(linear)


def test_the_table_says_what_the_grids_show() -> None:
    methods = ("fedprox", "fedca", "fedsc")
    lines = [line(method, at) for method in methods for at in range(3)]
    lines[5]["scores"] = {"knn": 0.50, "linear": 0.44}  # the grid of fedca, in which choosing by rank loses more
    made = grids.table(lines)
    cells = {row.split(" | ")[0].strip("| "): row.strip("|").split(" | ") for row in made.splitlines() if " | " in row}
    tau = stats.kendalltau(RANKS, KNN).statistic
    assert cells["effective rank at the end"][1].startswith(f"{tau:+.2f} [")
    assert cells["effective rank at the end"][3].startswith("0.093 (0.160)")
    assert cells["held-out kNN, by labels"][1:4] == ["-", "-", "0.000 (0.000)"]
    alone, other = 0.40 - np.mean(KNN), 0.50 - np.mean([*KNN[:2], 0.50])
    assert cells["a setting at random"][3] == f"{(2 * alone + other) / 3:.3f} ({other:.3f})"
    assert "9 runs in 3 grids: `fedca`, `fedprox`, `fedsc`." in made
    assert "not run yet" in grids.table(lines[:6])
