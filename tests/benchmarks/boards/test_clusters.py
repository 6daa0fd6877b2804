"""Differences by data set and seed: rows made by hand, their means worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from boards import rows
from boards.clusters import between, clusters, over_board, over_sets
from scipy import stats

from tests.benchmarks import made

BOARD = {"data": {"shoes": "a.yaml", "birds": "b.yaml"}, "partitions": {"even": {}, "skewed": {}}}


def row(data: str, partition: str, method: str, seed: int, knn: float | None, **others: Any) -> rows.Record:
    return made.row(method, seed, knn, data=data, partition=partition, **others)


MADE = [
    row("birds", "even", "fedsimclr", 1, 0.25), row("birds", "even", "fedca", 1, 0.75),
    row("shoes", "even", "fedsimclr", 2, 0.50), row("shoes", "even", "fedca", 2, 0.75),
    row("shoes", "even", "fedsimclr", 0, 0.50), row("shoes", "even", "fedca", 0, 0.625),
    row("shoes", "skewed", "fedsimclr", 0, 0.25), row("shoes", "skewed", "fedca", 0, 0.625),
    # no pair: no value, not complete, another table, a seed of one of the two alone
    row("shoes", "skewed", "fedsimclr", 2, 0.25), row("shoes", "skewed", "fedca", 2, None),
    row("birds", "skewed", "fedsimclr", 1, 0.25), row("birds", "skewed", "fedca", 1, 0.5, status="diverged"),
    row("birds", "even", "fedsimclr", 5, 0.25), row("birds", "even", "fedca", 5, 0.5, table=rows.TUNED),
    row("shoes", "even", "fedsimclr", 3, 0.25), row("shoes", "skewed", "fedca", 3, 0.25),
    row("shoes", "even", "fedsc", 7, 0.25),
]  # fmt: skip


def test_a_cluster_is_the_mean_over_the_partitions_of_a_data_set_and_seed() -> None:
    # shoes, seed 0: (0.125 + 0.375) / 2; seed 2: 0.25 of one partition alone; birds, seed 1: 0.5 of one
    assert clusters(MADE, BOARD, "knn")["fedca"] == [0.25, 0.25, 0.5]
    assert clusters(MADE, BOARD, "knn", "shoes") == {"fedsimclr": [0.0] * 3, "fedca": [0.25, 0.25]}
    assert clusters(MADE, BOARD, "knn", "birds")["fedca"] == [0.5]
    assert clusters([], BOARD, "knn") == {}


def test_clusters_come_by_data_set_and_ascending_seed() -> None:
    later = [row("birds", "skewed", method, 0, knn) for method, knn in (("fedsimclr", 0.25), ("fedca", 0.375))]
    assert clusters([*MADE, *later], BOARD, "knn", "birds")["fedca"] == [0.125, 0.5]  # seed 0 of the second partition
    moved = [{**each, "knn": 0.875} if each["seed"] == 2 and each["method"] == "fedca" else each for each in MADE]
    # seed 2 has a value in both partitions now: (0.375 + 0.625) / 2
    assert clusters(moved, BOARD, "knn")["fedca"] == [0.25, 0.5, 0.5]
    assert clusters(moved, {**BOARD, "data": {"birds": "", "shoes": ""}}, "knn")["fedca"] == [0.5, 0.25, 0.5]


def test_any_method_can_be_the_reference_and_any_number_compared() -> None:
    turned = clusters(MADE, BOARD, "knn", reference="fedca")
    assert turned["fedsimclr"] == [-0.25, -0.25, -0.5]
    assert "fedsc" not in turned
    assert clusters(MADE, BOARD, "linear") == {}
    linear = [{**each, "linear": each["knn"] and 2 * each["knn"]} for each in MADE]
    assert clusters(linear, BOARD, "linear")["fedca"] == [0.5, 0.5, 1.0]
    assert clusters(MADE, BOARD, "knn", "shoes", reference="fedbyol") == {}


@pytest.mark.parametrize("sets", [[[0.1, 0.2, 0.4], [0.9, 0.5, 0.7]], [[0.1, 0.3], [0.2, 0.5, 0.1, 0.6]]])
def test_an_interval_over_two_data_sets_is_half_that_of_welchs_difference(sets: list[list[float]]) -> None:
    """The mean of two sets' means is half the difference of one and the other with its sign turned."""
    found = over_sets(sets)
    other = stats.ttest_ind(sets[0], [-each for each in sets[1]], equal_var=False)
    low, high = other.confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx(
        ((np.mean(sets[0]) + np.mean(sets[1])) / 2, low / 2, high / 2)
    )
    assert (found.count, found.free) == (sum(map(len, sets)), pytest.approx(other.df))


def test_an_interval_over_one_data_set_is_the_paired_t_interval() -> None:
    found = over_sets([[0.1, 0.4, 0.2]])
    low, high = stats.ttest_1samp([0.1, 0.4, 0.2], 0.0).confidence_interval(0.95)
    assert (found.low, found.high, found.free) == pytest.approx((low, high, 2))


def test_there_is_no_interval_where_a_data_set_has_one_cluster_or_only_ones_that_are_alike() -> None:
    lone = over_sets([[0.1, 0.3], [0.2, 0.5, 0.1, 0.6], [1.0]])
    assert (lone.mean, lone.low, lone.count) == (pytest.approx((0.2 + 0.35 + 1) / 3), None, 7)
    for second in (0.25, 0.5):  # the first set's two agree, by chance or not
        alike = over_sets([[0.5, 0.1 + 0.4], [0.25, second]])
        assert (alike.low, alike.high, alike.judged()) == (None, None, None)
        assert alike.mean == (0.5 + (0.25 + second) / 2) / 2
    same = over_sets([[0.0, 0.0], [0.0, 1e-17]])  # runs that are the same
    assert (same.low, same.mean, same.high, same.judged()) == (0.0, 0.0, 0.0, "level")


def test_data_sets_have_variances_of_their_own() -> None:
    """Simulated: one set's differences vary ten times as much; of 95 % intervals 19 in 20 and a few hold the truth."""
    draw = np.random.default_rng(0)
    drawn = draw.normal(size=(2000, 2, 3)) * np.array([1.0, 10.0])[:, None]
    found = [over_sets(sets.tolist()) for sets in drawn]
    held = [one.low <= 0 <= one.high for one in found if one.low is not None and one.high is not None]
    assert len(held) == len(drawn)
    assert 0.94 < np.mean(held) < 0.97


def test_how_far_data_sets_are_apart_is_no_part_of_an_interval() -> None:
    near, far = (over_sets([[0.1, 0.2, 0.3], [gap + 0.1, gap + 0.2, gap + 0.3]]) for gap in (0.0, 5.0))
    assert near.high is not None
    assert far.high is not None
    assert far.high - far.mean == pytest.approx(near.high - near.mean)
    assert far.mean == pytest.approx(near.mean + 2.5)


def test_over_a_board_each_data_set_counts_once() -> None:
    found = over_board(MADE, BOARD, "knn")
    assert set(found) == {"fedca"}
    assert (found["fedca"].mean, found["fedca"].count) == (0.375, 3)  # shoes 0.25 and 0.25, birds 0.5
    assert over_board(MADE, BOARD, "knn", reference="fedca")["fedsimclr"].mean == -0.375
    alone = over_board(MADE, {**BOARD, "data": {"birds": ""}}, "knn")["fedca"]
    assert (alone.mean, alone.low, alone.free) == (0.5, None, 0)


def test_partitions_are_compared_seed_by_seed() -> None:
    """Shoes, seed 0: 0.375 on the skewed partition, 0.125 on the even one; no other seed has both."""
    found = between(MADE, BOARD, "knn", "fedca", ("skewed", "even"), "fedsimclr")
    assert found is not None
    assert (found.mean, found.count, found.low) == (0.25, 1, None)
    assert between(MADE, BOARD, "knn", "fedsc", ("skewed", "even"), "fedsimclr") is None
    more = [row("shoes", split, method, 9, knn) for split, method, knn in (
        ("even", "fedsimclr", 0.25), ("even", "fedca", 0.5), ("skewed", "fedsimclr", 0.25), ("skewed", "fedca", 1.0),
    )]  # fmt: skip
    both = between([*MADE, *more], BOARD, "knn", "fedca", ("skewed", "even"), "fedsimclr")
    assert both is not None
    low, high = stats.ttest_1samp([0.25, 0.5], 0.0).confidence_interval(0.95)
    assert (both.low, both.high) == pytest.approx((low, high))
