"""Intervals that count test images: beside scipy's, loops over seeds and images, and what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from rayfed_ssl.records.seed_image_intervals import half_width, mean_squares

Matrix = NDArray[np.float64]


def drawn(rng: np.random.Generator, n: int, m: int, seed: float, image: float, rest: float) -> Matrix:
    """D (n, m) around 0, from the three standard deviations."""
    seeds, images = rng.normal(0, seed, (n, 1)), rng.normal(0, image, (1, m))
    return np.asarray(seeds + images + rng.normal(0, rest, (n, m)))


def test_of_one_seed_it_is_the_paired_t_over_images() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(300) < 0.8, rng.random(300) < 0.7
    theirs = scipy.stats.ttest_rel(a.astype(float), b.astype(float)).confidence_interval(0.95)
    pairs = a.astype(float) - b.astype(float)
    assert half_width(pairs[None]) == pytest.approx((theirs.high - theirs.low) / 2)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())  # McNemar's table
    assert only_a > only_b > 0
    share = (only_a - only_b) / 300
    z = 1.959964 * math.sqrt((only_a + only_b) / 300 - share**2) / math.sqrt(300)  # Agresti 2002, section 10.1.1
    assert half_width(pairs[None]) == pytest.approx(z, rel=0.006)


def test_mean_squares_are_those_of_loops() -> None:
    found = drawn(np.random.default_rng(1), 3, 7, 1.0, 2.0, 0.5)
    n, m = found.shape
    mean = sum(found[s, i] for s in range(n) for i in range(m)) / (n * m)
    seeds = [sum(found[s, i] for i in range(m)) / m for s in range(n)]
    images = [sum(found[s, i] for s in range(n)) / n for i in range(m)]
    of_seeds = m * sum((seed - mean) ** 2 for seed in seeds) / (n - 1)
    of_images = n * sum((image - mean) ** 2 for image in images) / (m - 1)
    squares = [(found[s, i] - seeds[s] - images[i] + mean) ** 2 for s in range(n) for i in range(m)]
    rest = sum(squares) / ((n - 1) * (m - 1))
    assert mean_squares(found) == pytest.approx((of_seeds, of_images, rest))
    variance = (of_seeds + of_images - rest) / (n * m)
    freedom = (variance * n * m) ** 2 / (of_seeds**2 / (n - 1) + of_images**2 / (m - 1) + rest**2 / ((n - 1) * (m - 1)))
    assert of_seeds + of_images - rest > max(of_seeds, of_images)
    widest = max(
        scipy.stats.t.ppf(0.975, freedom) * math.sqrt(variance),
        scipy.stats.t.ppf(0.975, n - 1) * math.sqrt(of_seeds / (n * m)),
        scipy.stats.t.ppf(0.975, m - 1) * math.sqrt(of_images / (n * m)),
    )
    assert half_width(found) == pytest.approx(widest)


def test_the_variance_of_the_mean_is_estimated_without_bias() -> None:
    rng, (n, m), (seed, image, rest) = np.random.default_rng(2), (3, 40), (0.2, 0.9, 1.5)
    found = [mean_squares(drawn(rng, n, m, seed, image, rest)) for _ in range(4000)]
    estimates = [(a + b - r) / (n * m) for a, b, r in found]
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert np.mean(estimates) == pytest.approx(seed**2 / n + image**2 / m + rest**2 / (n * m), abs=4 * error)


REPEATS = 1500


@pytest.mark.long
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize(
    ("seed", "image", "rest"), [(0.0, 1.0, 1.0), (0.05, 1.0, 1.0), (0.1, 1.0, 0.5), (0.5, 1.0, 1.0), (0.3, 0.0, 1.0)]
)
def test_it_holds_the_true_difference_as_often_as_it_says(n: int, seed: float, image: float, rest: float) -> None:
    """From differences that images alone move to those that seeds alone move: never less often than it says."""
    rng, m = np.random.default_rng(3), 150
    draws = [drawn(rng, n, m, seed, image, rest) for _ in range(REPEATS)]
    held = np.mean([abs(found.mean()) <= half_width(found) for found in draws])
    assert held >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / REPEATS)


@pytest.mark.long
def test_an_interval_over_seeds_alone_does_not() -> None:
    """What all seeds share, they cannot show: with ten seeds it holds the truth less than half as often."""
    rng, (n, m) = np.random.default_rng(4), (10, 150)
    draws = [drawn(rng, n, m, 0.01, 1.0, 0.5) for _ in range(REPEATS)]
    alone = [scipy.stats.ttest_1samp(found.mean(axis=1), 0).pvalue >= 0.05 for found in draws]
    both = [abs(found.mean()) <= half_width(found) for found in draws]
    assert np.mean(alone) < 0.5
    assert 0.935 <= np.mean(both) <= 0.975


@pytest.mark.long
def test_answers_right_or_wrong_keep_the_promise_too() -> None:
    """Two methods that are alike: images have a difficulty for each, and seeds have good and bad days."""
    rng, (n, m) = np.random.default_rng(5), (3, 120)

    def right() -> Matrix:
        logits = 1.0 + rng.normal(0, 1.5, (1, m)) + rng.normal(0, 0.15, (n, 1))
        return np.asarray(rng.random((n, m)) < 1 / (1 + np.exp(-logits)), float)

    draws = [right() - right() for _ in range(REPEATS)]
    held = np.mean([abs(found.mean()) <= half_width(found) for found in draws])
    assert held >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / REPEATS)


@pytest.mark.long
def test_it_is_never_narrower_than_over_seeds_or_images_alone() -> None:
    rng = np.random.default_rng(6)
    for n, m in ((2, 5), (3, 50), (8, 9)):
        for _ in range(50):
            found = drawn(rng, n, m, *rng.random(3))
            for means in (found.mean(axis=1), found.mean(axis=0)):
                alone = scipy.stats.ttest_1samp(means, 0).confidence_interval(0.95)
                assert half_width(found) >= (alone.high - alone.low) / 2 * (1 - 1e-12)
            assert half_width(found + 7) == pytest.approx(half_width(found))
            assert half_width(-found) == pytest.approx(half_width(found))


def test_images_that_are_all_alike_do_not_prove_that_no_image_differs() -> None:
    """The share of images that differ, of which m show none: 1 - 0.05^(1/m) at 95%, by the rule of three 3 / m."""
    for m in (20, 398, 10_000):
        exact = 1 - 0.05 ** (1 / m)
        for n in (1, 3):
            assert exact <= half_width(np.zeros((n, m))) <= 1.08 * exact
    by_seed = np.array([[0.1] * 50, [0.3] * 50])  # nothing but the seed moves these
    assert half_width(by_seed) == pytest.approx(12.7062 * np.std([0.1, 0.3], ddof=1) / math.sqrt(2), rel=1e-5)
