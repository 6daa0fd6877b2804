"""The area under the ROC curve, its interval, and membership scores: numbers by hand, loops, scikit-learn."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from rayfed_ssl.leak.auc import area, estimate_auc, newcombe, null_deviation, placements, true_positives, variance
from rayfed_ssl.leak.members import LEAST
from rayfed_ssl.leak.scores import agreement, in_correlation, nearest, surrogate
from rayfed_ssl.records.leaked import ENOUGH
from tests.places import ROOT

MEMBERS, OTHERS = np.array([0.9, 0.8, 0.8, 0.4]), np.array([0.7, 0.8, 0.3])


def test_area_and_interval_by_hand() -> None:
    assert area(MEMBERS, OTHERS) == 0.75
    above, below = placements(MEMBERS, OTHERS)
    np.testing.assert_allclose(above, [1, 5 / 6, 5 / 6, 1 / 3], rtol=1e-12)
    np.testing.assert_allclose(below, [0.75, 0.5, 1], rtol=1e-12)
    assert variance(MEMBERS, OTHERS) == pytest.approx(0.0416666667, abs=1e-10)
    found = estimate_auc(MEMBERS, OTHERS)
    assert (found.low, found.high) == (pytest.approx(0.2620915, abs=1e-6), pytest.approx(0.9620337, abs=1e-6))
    assert area(OTHERS, MEMBERS) == pytest.approx(0.25, abs=1e-15)


def test_area_is_scikit_learns_and_placements_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(0.3, 1, 57).round(1), rng.normal(0, 1, 41).round(1)  # rounded: with ties
    truth = np.r_[np.ones(57), np.zeros(41)]
    assert area(members, others) == pytest.approx(roc_auc_score(truth, np.r_[members, others]), abs=1e-12)
    above, below = placements(members, others)
    pairs = (members[:, None] > others).astype(float) + (members[:, None] == others) / 2
    np.testing.assert_allclose(above, pairs.mean(1))
    np.testing.assert_allclose(below, pairs.mean(0))
    assert area(np.exp(members), np.exp(others)) == area(members, others)  # no increasing map changes it


def test_chance_where_there_is_nothing_to_know() -> None:
    assert area(np.ones(5), np.ones(7)) == 0.5
    assert area(MEMBERS, MEMBERS) == 0.5
    assert null_deviation(1000, 1000) == pytest.approx(0.0129, abs=5e-5)
    constant = estimate_auc(np.ones(5), np.ones(7))
    assert 0.15 < constant.low < 0.5 < constant.high < 0.85  # twelve scores that are all alike tell little
    assert constant.low + constant.high == pytest.approx(1)
    rng = np.random.default_rng(1)
    areas = [area(rng.normal(size=40), rng.normal(size=30)) for _ in range(2000)]
    assert np.std(areas) == pytest.approx(null_deviation(40, 30), rel=0.06)


def test_the_page_says_how_far_chance_goes_with_so_many_images() -> None:
    section = (ROOT / "docs/leak.md").read_text(encoding="utf-8").split("## How many images it needs")[1].split("##")[0]
    rows = re.findall(r"^\| (\d+)\b.*\| (0\.\d+) \| (0\.\d+) \|$", section, re.MULTILINE)
    assert [int(members) for members, _, _ in rows] == [LEAST, 50, ENOUGH, 200, 500, 1000]
    for members, spread, twice in rows:
        exact = math.sqrt((2 * int(members) + 1) / 12) / int(members)  # of Mann and Whitney's U
        assert null_deviation(int(members), int(members)) == pytest.approx(exact)
        assert (spread, twice) == (f"{exact:.3f}", f"{norm.ppf(0.975) * exact:.3f}")


def test_told_apart_entirely() -> None:
    found = estimate_auc(np.array([2.0, 3.0, 4.0]), np.array([0.0, 1.0]))
    assert (found.auc, found.high, found.tpr) == (1.0, 1.0, 1.0)
    assert found.low < 0.5  # of three and two images that says little
    turned = estimate_auc(np.array([0.0, 1.0]), np.array([2.0, 3.0, 4.0]))
    assert (turned.auc, turned.low, turned.high) == (0.0, 0.0, pytest.approx(1 - found.low))
    with pytest.raises(ValueError, match="at least 2"):
        estimate_auc(np.array([1.0]), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="finite"):
        estimate_auc(np.array([1.0, np.nan]), np.array([0.0, 1.0]))


@pytest.mark.parametrize(("m", "n", "a"), [(20, 20, 1.0), (135, 134, 1.0), (30, 8, 0.0), (12, 12, 0.5), (9, 40, 0.8)])
def test_the_ends_of_newcombes_interval_solve_its_equation(m: int, n: int, a: float) -> None:
    for end in newcombe(a, m, n):
        q1, q2, star = end / (2 - end), 2 * end**2 / (1 + end), (m + n) / 2 - 1  # Hanley and McNeil 1982
        spread = (end * (1 - end) + star * (q1 - end**2) + star * (q2 - end**2)) / (m * n)
        assert end in (0.0, 1.0) or abs(a - end) == pytest.approx(1.959964 * math.sqrt(spread), rel=1e-5)
    low, high = newcombe(a, m, n)
    assert low <= a <= high
    assert (low == a) <= (a == 0)
    assert (high == a) <= (a == 1)


def test_areas_near_one_are_covered_also_by_samples_that_are_told_apart_entirely() -> None:
    rng, true = np.random.default_rng(2), 0.993
    shift = math.sqrt(2) * norm.ppf(true)
    found = [estimate_auc(rng.normal(shift, 1, 20), rng.normal(0, 1, 20)) for _ in range(300)]
    assert sum(each.auc == 1 for each in found) > 60
    assert sum(each.low <= true <= each.high for each in found) > 0.93 * 300


def test_true_positives_at_a_share_of_false_alarms() -> None:
    others = np.arange(200.0)
    members = np.array([198.5, 197.5, 196.0, 500.0])
    assert true_positives(members, others, 0.01) == 0.75  # two may exceed the threshold, which is 197
    assert true_positives(members, others, 0.0) == 0.25
    few = np.arange(150.0)  # of which 1% is one and a half: one may exceed the threshold, which is 148
    assert true_positives(np.array([147.5, 148.5, 150.0, 0.0]), few, 0.01) == 0.5


def test_an_image_in_a_correlation_matrix_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
    whole, without = z.T @ z / 3, z[:2].T @ z[:2] / 3
    x = torch.tensor([[[0.6, 0.8]]], dtype=torch.float64)  # (V, n, D)
    assert float(in_correlation(whole - without, x, 3)) == pytest.approx(1.0, abs=1e-12)
    assert float(in_correlation(without - without, x, 3)) == 0.0
    half = torch.eye(2, dtype=torch.float64) / 2
    assert float(in_correlation(whole - half, x, 3)) == pytest.approx(0.5, abs=1e-12)
    other = torch.tensor([[[0.8, -0.6]]], dtype=torch.float64)
    assert float(in_correlation(whole - half, other, 3)) == pytest.approx(-0.5, abs=1e-12)


def test_scores_reach_the_area_expected_under_noise() -> None:
    """R without x, or with it, and noise E_ab ~ N(0, sigma^2), all else known: Phi(||z||^2 / (sqrt(2) n sigma))."""
    torch.manual_seed(0)
    n, sigma, dim, trials = 30, 0.05, 6, 1500
    z = torch.nn.functional.normalize(torch.randn(n, dim, dtype=torch.float64), dim=1)
    rest = z[1:].T @ z[1:] / n
    noise = sigma * torch.randn(2, trials, dim, dim, dtype=torch.float64)
    own = torch.outer(z[0], z[0]) / n
    with_x = torch.cat([in_correlation(own + e, z[:1][None], n) for e in noise[0]])
    without = torch.cat([in_correlation(e, z[:1][None], n) for e in noise[1]])
    expected = norm.cdf(1.0 / (math.sqrt(2) * n * sigma))
    assert area(with_x.numpy(), without.numpy()) == pytest.approx(expected, abs=0.02)
    assert rest.shape == own.shape


def test_agreement_leaves_an_image_and_itself_out() -> None:
    views = torch.tensor([[[1.0, 0.0]], [[0.8, 0.6]], [[0.0, 1.0]]])
    assert float(agreement(views)) == pytest.approx(0.4666667, abs=1e-6)
    assert float(agreement(views * torch.tensor([2.0, 3.0, 5.0])[:, None, None])) == pytest.approx(0.4666667, abs=1e-6)


def test_views_without_features_agree_with_none() -> None:
    """The cosine of a row of zeros is 0: of three pairs one is left."""
    views = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.8, 0.6], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert agreement(views).tolist() == pytest.approx([0.8 / 3, 0.0], abs=1e-7)


def test_nearest_entry_and_surrogate() -> None:
    entries, z = torch.tensor([[2.0, 0.0], [0.0, -1.0]]), torch.tensor([[3.0, 4.0], [0.0, -7.0]])
    np.testing.assert_allclose(nearest(entries, z), [0.6, 1.0], atol=1e-12)
    torch.manual_seed(1)
    x, w = torch.randn(80, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    np.testing.assert_allclose(surrogate(x, x @ w, 1e-12), w, atol=1e-8)
