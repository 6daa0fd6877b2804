"""Intervals of balanced accuracies and areas: beside bootstraps, DeLong's equations in loops, and what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from rayfed_ssl.evaluation.metrics import auc_contributions, macro_auc
from rayfed_ssl.records.image_intervals import balanced_half_width, base, image_interval, image_mean, unseen
from rayfed_ssl.records.seed_image_intervals import half_width

Floats = NDArray[np.float64]
LABELS = np.repeat(np.arange(4), (150, 60, 30, 15))
REPEATS = 500
LEAST = 0.95 - 3 * math.sqrt(0.95 * 0.05 / REPEATS)  # of REPEATS intervals that hold 95%, how many do


def answers(rng: np.random.Generator, n: int, shares: Floats, labels: NDArray[np.int64] = LABELS) -> Floats:
    """(n, m) right or wrong, by class, by the image's difficulty and, of several seeds, by good and bad days."""
    logits = np.log(shares / (1 - shares))[labels] + rng.normal(0, 1.0, (1, len(labels)))
    logits = logits + (rng.normal(0, 0.1, (n, 1)) if n > 1 else 0.0)
    return np.asarray(rng.random((n, len(labels))) < 1 / (1 + np.exp(-logits)), float)


def of_classes(values: Floats, labels: NDArray[np.int64]) -> list[Floats]:
    return [values[labels == label] for label in sorted(set(labels.tolist()))]


# -- balanced accuracy -------------------------------------------------------------------------------------------------


def test_the_score_is_scikit_learns() -> None:
    predicted = np.random.default_rng(0).integers(0, 4, len(LABELS))
    right = (predicted == LABELS).astype(float)
    assert image_mean("knn_balanced_accuracy", right, LABELS) == pytest.approx(
        balanced_accuracy_score(LABELS, predicted), abs=1e-12
    )
    assert image_mean("knn", right, LABELS) == right.mean()
    assert (base("knn_balanced_accuracy"), base("knn"), base("knn_auc")) == ("knn", "knn", "knn_auc")


@pytest.mark.parametrize("alike", [False, True])
def test_of_one_seed_it_is_the_stratified_variance_of_a_loop(alike: bool) -> None:
    """With ``alike`` no image of the rarest class differs, and the variance pooled over classes is the larger."""
    rng = np.random.default_rng(1)
    apart = answers(rng, 1, np.array([0.8, 0.7, 0.6, 0.5])) - answers(rng, 1, np.array([0.7, 0.6, 0.5, 0.4]))
    apart[:, LABELS == 3] *= not alike
    parts = of_classes(apart[0], LABELS)
    pieces = [float(part.var(ddof=1)) / (16 * len(part)) for part in parts]
    freedom = sum(pieces) ** 2 / sum(piece**2 / (len(part) - 1) for piece, part in zip(pieces, parts, strict=True))
    own = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(sum(pieces))
    pooled = sum(float(((part - part.mean()) ** 2).sum()) for part in parts) / (len(LABELS) - 4)
    as_one = scipy.stats.t.ppf(0.975, len(LABELS) - 4) * math.sqrt(pooled * sum(1 / len(part) for part in parts)) / 4
    assert balanced_half_width(apart, LABELS) == pytest.approx(max(own, as_one), rel=1e-10)
    assert (own < 0.99 * as_one) if alike else (as_one < 0.99 * own)
    low, high = image_interval("knn_balanced_accuracy", apart, LABELS) or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(np.mean([part.mean() for part in parts]))


def test_its_width_is_that_of_a_stratified_bootstrap() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(3), (400, 200, 100))
    apart = answers(rng, 1, np.array([0.8, 0.7, 0.4]), labels) - answers(rng, 1, np.array([0.7, 0.7, 0.6]), labels)
    parts = of_classes(apart[0], labels)
    means = [np.mean([rng.choice(part, len(part)).mean() for part in parts]) for _ in range(4000)]
    assert balanced_half_width(apart, labels) == pytest.approx(1.96 * float(np.std(means)), rel=0.06)


def test_of_classes_of_one_size_it_is_the_accuracys_within_classes() -> None:
    """There both scores are the same number; only what classes differ by is left out of the variance."""
    rng, labels = np.random.default_rng(3), np.arange(400) % 4
    apart = answers(rng, 3, np.full(4, 0.8), labels) - answers(rng, 3, np.full(4, 0.7), labels)
    assert image_mean("knn_balanced_accuracy", apart[0], labels) == pytest.approx(apart[0].mean())
    assert balanced_half_width(apart, labels) == pytest.approx(half_width(apart), rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("gain", [0.0, 0.15])
def test_it_holds_the_true_difference_as_often_as_it_says(n: int, gain: float) -> None:
    """Classes of 150 to 15 images; with ``gain`` the rarest one is better by so much."""
    rng, shares = np.random.default_rng(4), np.array([0.85, 0.7, 0.6, 0.6])
    better = shares + np.array([0, 0, 0, gain])
    many = np.repeat(np.arange(4), 100_000)
    truth = image_mean("a_balanced_accuracy", (answers(rng, 1, better, many) - answers(rng, 1, shares, many))[0], many)
    held = 0
    for _ in range(REPEATS):
        apart = answers(rng, n, better) - answers(rng, n, shares)
        low, high = image_interval("knn_balanced_accuracy", apart, LABELS) or (0.0, 0.0)
        held += low <= truth <= high
    assert LEAST <= held / REPEATS <= (0.98 if n == 1 else 1.0)


def test_a_rare_class_whose_images_are_all_alike_does_not_make_it_narrow() -> None:
    """In half of the draws no image of the class of ten tells the encoders apart, and its own variance is 0."""
    rng, labels = np.random.default_rng(5), np.repeat(np.arange(3), (300, 300, 10))
    held = without = 0
    for _ in range(REPEATS):
        apart = rng.choice([-1.0, 0.0, 1.0], (1, 610), p=[0.035, 0.93, 0.035])
        low, high = image_interval("knn_balanced_accuracy", apart, labels) or (0.0, 0.0)
        held += low <= 0 <= high
        pieces = [part.var(ddof=1) / (9 * len(part)) for part in of_classes(apart[0], labels)]
        without += abs((low + high) / 2) <= 1.96 * math.sqrt(sum(pieces))
    assert held / REPEATS >= LEAST
    assert held > without


def test_classes_of_one_image_and_differences_that_are_all_alike() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    assert image_interval("a_balanced_accuracy", np.eye(3)[:1], np.arange(3)) is None
    found = balanced_half_width(np.array([[1.0, 0, 0, -1, 1, 0, 0]]), labels)
    assert found is not None
    assert found > 0
    for n in (1, 3):  # a share of 1 of the class of one image, and 2 / 2 of that of two
        assert balanced_half_width(np.zeros((n, 7)), labels) == pytest.approx((1 + 2 / 2) / 3)
    assert balanced_half_width(np.zeros((1, 400)), np.arange(400) % 4) == pytest.approx(3 / 400)


@pytest.mark.parametrize("sizes", [(500, 5), (1000, 1), (4, 2, 1), (2, 2, 2, 2), (7, 7, 7), (10_000, 3, 4)])
def test_what_unseen_images_may_change_is_a_linear_program(sizes: tuple[int, ...]) -> None:
    """The largest mean of shares in [0, 1] of which images of these classes show none with a probability of 5%."""
    found = scipy.optimize.linprog([-1 / len(sizes)] * len(sizes), A_ub=[sizes], b_ub=[3.0], bounds=(0, 1))
    assert unseen(np.array(sizes)) == pytest.approx(-found.fun)


@pytest.mark.parametrize(("sizes", "half"), [((500, 5), 3 / 5 / 2), ((1000, 1), (1 + 2 / 1000) / 2)])
@pytest.mark.parametrize("n", [1, 3])
def test_one_image_that_differs_does_not_make_the_interval_jump(sizes: tuple[int, int], half: float, n: int) -> None:
    """Of no, one and a few differing images of the large class, and of images that differ by ever less."""
    labels = np.repeat([0, 1], sizes)
    widths = []
    for differing in ([], [1e-12], [1e-6], [0.01], [1.0], [-1.0, 1.0], [1.0, 1.0, 1.0]):
        apart = np.zeros((n, len(labels)))
        apart[:, : len(differing)] = differing
        low, high = image_interval("knn_balanced_accuracy", apart, labels) or (0.0, 0.0)
        assert -1 <= low < high <= 1
        assert (low + high) / 2 == pytest.approx(sum(differing) / sizes[0] / 2)
        widths.append((high - low) / 2)
    assert widths == pytest.approx([half] * 7)


def test_an_interval_ends_where_differences_end() -> None:
    labels = np.repeat([0, 1], (50, 2))
    assert image_interval("knn_balanced_accuracy", np.ones((1, 52)), labels) == pytest.approx((1 - 0.51, 1.0))
    assert image_interval("knn_balanced_accuracy", -np.ones((1, 52)), labels) == pytest.approx((-1.0, 0.51 - 1))
    assert image_interval("knn", np.ones((1, 2)), labels[:2]) == (-0.5, 1.0)


@pytest.mark.parametrize("worse", [0.1, 0.3, 0.45])
def test_a_class_of_five_holds_the_true_difference_beside_one_of_five_hundred(worse: float) -> None:
    """One encoder is worse in the class of five alone, where often no image shows it; few of the others differ."""
    rng, labels, held = np.random.default_rng(10), np.repeat([0, 1], (500, 5)), 0
    for _ in range(REPEATS):
        apart = np.zeros((1, 505))
        apart[0, :500] = rng.choice([-1.0, 0.0, 1.0], 500, p=[0.002, 0.996, 0.002])
        apart[0, 500:] -= rng.random(5) < worse
        low, high = image_interval("knn_balanced_accuracy", apart, labels) or (0.0, 0.0)
        held += low <= -worse / 2 <= high
    assert held / REPEATS >= LEAST


def test_seeds_count_as_they_do_for_accuracies() -> None:
    apart = np.repeat([[0.1], [0.3]], 50, axis=1)
    expected = 12.7062 * np.std([0.1, 0.3], ddof=1) / math.sqrt(2)
    assert balanced_half_width(apart, np.arange(50) % 5) == pytest.approx(expected, rel=1e-5)


# -- areas -------------------------------------------------------------------------------------------------------------


Scored = tuple[torch.Tensor, torch.Tensor, NDArray[np.int64]]


def two_classes(rng: np.random.Generator, m: int, n: int) -> Scored:
    """Scores (M, 2) of two encoders that share an image's difficulty, rounded so that some are equal; truth."""
    truth = np.repeat([1, 0], (m, n))
    hard = rng.normal(0, 1, m + n)
    found = []
    for _ in range(2):
        chance = 1 / (1 + np.exp(-(truth + 0.7 * hard + rng.normal(0, 0.7, m + n))))
        rounded = np.round(chance, 2)
        found.append(torch.tensor(np.stack([1 - rounded, rounded], axis=1)))
    return found[0], found[1], truth


def components(scores: Floats, truth: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """V10 of the positive images and V01 of the others, pair by pair (DeLong et al. 1988, eq. 2 and 3)."""
    ours, others = scores[truth == 1], scores[truth == 0]
    psi = [[1.0 if x > y else 0.5 if x == y else 0.0 for y in others] for x in ours]
    return [sum(row) / len(others) for row in psi], [sum(column) / len(ours) for column in zip(*psi, strict=True)]


def test_of_two_classes_it_is_delongs_variance_of_two_correlated_areas() -> None:
    a, b, truth = two_classes(np.random.default_rng(6), 23, 48)
    of = torch.tensor(truth)
    apart = auc_contributions(a, of) - auc_contributions(b, of)
    expected = roc_auc_score(truth, a[:, 1].numpy()) - roc_auc_score(truth, b[:, 1].numpy())
    assert apart.mean() == pytest.approx(expected, abs=1e-12)
    (ours, others), (theirs, their_others) = (components(of_one[:, 1].numpy(), truth) for of_one in (a, b))
    s = np.cov(np.array(ours), np.array(theirs)) / 23 + np.cov(np.array(others), np.array(their_others)) / 48
    variance = s[0, 0] + s[1, 1] - 2 * s[0, 1]  # L S L' of DeLong, with L = (1, -1)
    assert apart.var(ddof=1) / 71 == pytest.approx(variance, rel=1e-9)
    low, high = image_interval("knn_auc", apart[None], of.numpy()) or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(scipy.stats.t.ppf(0.975, 70) * math.sqrt(variance), rel=1e-9)


def several_classes(rng: np.random.Generator, truth: NDArray[np.int64], apart: float) -> torch.Tensor:
    logits = rng.normal(0, 1, (len(truth), 3))
    logits[np.arange(len(truth)), truth] += apart
    return torch.softmax(torch.tensor(logits), dim=1)


def macro(scores: Floats, truth: NDArray[np.int64]) -> float:
    """The share of pairs of an image of the class and another in which the first has the higher score, by class."""
    return float(np.mean([(scores[truth == c, c][:, None] > scores[truth != c, c]).mean() for c in range(3)]))


def test_of_several_classes_the_mean_is_the_area_and_the_width_a_bootstraps() -> None:
    rng, truth = np.random.default_rng(7), np.repeat(np.arange(3), (200, 120, 80))
    scores, of = several_classes(rng, truth, 1.2), torch.tensor(truth)
    found = auc_contributions(scores, of)
    area = roc_auc_score(truth, scores.numpy(), multi_class="ovr", average="macro")
    assert found.mean() == pytest.approx(area, abs=1e-12)
    assert found.mean() == pytest.approx(macro_auc(of, scores, of), abs=1e-12)
    again = [macro(scores.numpy()[rows], truth[rows]) for rows in rng.integers(0, len(truth), (2000, len(truth)))]
    assert macro(scores.numpy(), truth) == pytest.approx(area, abs=1e-12)
    assert math.sqrt(found.var(ddof=1) / len(truth)) == pytest.approx(float(np.std(again)), rel=0.06)


@pytest.mark.long
def test_an_area_holds_the_true_difference_as_often_as_it_says() -> None:
    rng = np.random.default_rng(8)
    several = np.repeat(np.arange(3), (60, 40, 25))
    held = dict.fromkeys(("two", "three"), 0)
    for _ in range(FEW := 250):
        a, b, truth = two_classes(rng, 25, 60)
        c, d = (several_classes(rng, several, 1.0) for _ in range(2))
        for name, (one, other, of) in {"two": (a, b, truth), "three": (c, d, several)}.items():
            known = torch.tensor(of)
            apart = (auc_contributions(one, known) - auc_contributions(other, known))[None]
            low, high = image_interval("knn_auc", apart, of) or (1.0, 1.0)
            held[name] += low <= 0 <= high
    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / FEW)
    assert all(least <= count / FEW <= 0.99 for count in held.values())


def test_an_area_without_a_difference_says_nothing_of_other_images() -> None:
    scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])
    found = auc_contributions(scores, torch.tensor([0, 0, 1, 1]))
    assert found.tolist() == [1.0] * 4
    assert image_interval("knn_auc", (found - found)[None], np.array([0, 0, 1, 1])) is None
    assert np.isnan(auc_contributions(scores, torch.tensor([1, 1, 1, 1]))).all()  # no other class, and so no area
    alone = auc_contributions(scores, torch.tensor([0, 1, 1, 1]))  # one image of a class does not deviate
    assert alone.mean() == pytest.approx(1.0)
