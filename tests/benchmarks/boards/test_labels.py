"""What 1% of the labels tells: intervals against SciPy's, of tables that have it whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from boards import labels
from scipy import stats

from tests.benchmarks import made

BOARD: dict[str, Any] = {"data": {"cifar10": ""}, "partitions": {"iid": {}}, "references": ["local"]}
SEMI = {"fedsimclr": (0.3, 0.2, 0.1), "fedca": (0.5, 0.42, 0.31), "fedsc": (0.35, 0.1, 0.2), "local": (0.9, 0.9, 0.9)}
KNN = {"fedsimclr": (0.3, 0.3, 0.3), "fedca": (0.2, 0.21, 0.22), "fedsc": (0.2, 0.2, 0.25), "local": (0.1, 0.1, 0.1)}


def rows(**others: Any) -> list[dict[str, Any]]:
    return [
        made.row(name, seed, KNN[name][seed], data="cifar10", partition="iid", **({"semi_1": value} | others))
        for name, values in SEMI.items() for seed, value in enumerate(values)
    ]  # fmt: skip


def bounds(values: dict[str, tuple[float, ...]], method: str) -> tuple[float, float]:
    pairs = np.subtract(values[method], values["fedsimclr"])
    found = stats.ttest_1samp(pairs, 0).confidence_interval(0.95)
    return float(found.low), float(found.high)


def test_widths_and_what_is_told_apart_are_of_ranked_methods() -> None:
    lines = {line.split("|")[1].strip(): line for line in labels.resolved(rows(), BOARD).splitlines() if "|" in line}
    for words, values in (("1% labels", SEMI), ("kNN", KNN)):
        found = [bounds(values, method) for method in ("fedca", "fedsc")]
        half = np.median([(high - low) / 2 for low, high in found])
        apart = sum(low > 0 or high < 0 for low, high in found)
        assert [cell.strip() for cell in lines[words].split("|")[2:4]] == [f"{half:.3f}", f"{apart} of 2"]
    assert "1 of 2" in lines["1% labels"]
    assert "2 of 2" in lines["kNN"]


@pytest.mark.parametrize(
    "some", [[], rows(semi_1=None), [*rows(), made.row("fedx", 0, 0.2, data="cifar10", partition="iid")]]
)
def test_a_table_that_lacks_a_run_is_left_out(some: list[dict[str, Any]]) -> None:
    assert labels.resolved(some, BOARD) == "No table has 1% of the labels for every run: not run yet."
