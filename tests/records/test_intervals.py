"""Intervals of accuracies beside scipy's, published examples and what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from rayfed_ssl.records.intervals import counts_images, of_difference, wilson


@pytest.mark.parametrize(("right", "images"), [(0, 10), (9, 10), (10, 10), (347, 359), (1, 10_000)])
def test_the_score_interval_is_scipys(right: int, images: int) -> None:
    theirs = binomtest(right, images).proportion_ci(method="wilson")
    assert wilson(right / images, images) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "images", "published"), [(0.9, 0.3, 10, (0.1705, 0.8090)), (1.0, 0.0, 10, (0.6075, 1.0))]
)
def test_differences_are_those_of_newcombe_1998_table_2(
    a: float, b: float, images: int, published: tuple[float, float]
) -> None:
    assert of_difference(a, b, images) == pytest.approx(published, abs=5e-5)
    assert of_difference(b, a, images) == pytest.approx((-published[1], -published[0]), abs=5e-5)


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).binomial(100, (0.85, 0.8), (2000, 2)) / 100
    held = [low <= 0.05 <= high for low, high in (of_difference(a, b, 100) for a, b in draws)]
    assert 0.93 <= np.mean(held) <= 0.975


def test_which_scores_are_shares_of_the_test_images() -> None:
    assert all(counts_images(name) for name in ("knn", "own_knn", "linear_fedsc", "semi_1", "task", "fewshot"))
    assert not any(counts_images(name) for name in ("knn_auc", "linear_balanced_accuracy", "cluster_nmi", "transfer"))
