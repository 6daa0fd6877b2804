"""kNN accuracy against a loop over images in float64 and the printed vote weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from rayfed_ssl.evaluation import knn
from rayfed_ssl.evaluation.standard import capped
from tests.evaluation.materials import digits, knn_accuracy, of_features


def loop_accuracy(
    train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray, k: int, temperature: float
) -> float:
    hits = 0
    for row, truth in zip(test_x, test_y, strict=True):
        cosines = [float(row @ other / np.linalg.norm(row) / np.linalg.norm(other)) for other in train_x]
        nearest = sorted(range(len(cosines)), key=lambda i: -cosines[i])[:k]
        tally: dict[int, float] = {}
        for i in nearest:
            tally[int(train_y[i])] = tally.get(int(train_y[i]), 0.0) + math.exp(cosines[i] / temperature)
        hits += max(tally, key=lambda label: tally[label]) == truth
    return hits / len(test_y)


def test_printed_vote_weights() -> None:
    one_against_two = torch.tensor([[0.90, 0.80, 0.80], [0.90, 0.85, 0.85]], dtype=torch.float64)
    tally = knn.votes(one_against_two, torch.tensor([[0, 1, 1], [0, 1, 1]]), 0.1, 2)
    assert tally.argmax(dim=1).tolist() == [0, 1]
    ratios = (tally[:, 1] / tally[:, 0]).tolist()
    assert ratios == pytest.approx([5961.92 / 8103.08, 9829.54 / 8103.08], rel=1e-5)


@pytest.mark.parametrize(("k", "temperature"), [(200, 0.1), (30, 0.1), (7, 0.5), (1, 0.1)])
def test_equals_the_loop_on_digits(k: int, temperature: float) -> None:
    train_x, train_y, test_x, test_y = digits()
    train_x, train_y, test_x, test_y = train_x[:400], train_y[:400], test_x[:150], test_y[:150]
    expected = loop_accuracy(
        train_x.double().numpy(), train_y.numpy(), test_x.double().numpy(), test_y.numpy(), min(k, 40), temperature
    )
    got = knn_accuracy(train_x, train_y, test_x, test_y, classes=10, k=k, temperature=temperature)
    assert got == pytest.approx(expected, abs=1e-12)


def test_k_is_clamped_to_a_tenth_of_the_data_and_at_least_one() -> None:
    assert [capped(200, n) for n in (50_000, 2_000, 1_999, 100, 9, 1)] == [200, 200, 199, 10, 1, 1]


def test_a_single_train_image_answers_everything() -> None:
    test = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    truth = torch.tensor([0, 1, 2, 2, 0, 2])
    assert knn_accuracy(test[:1], torch.tensor([2]), test, truth, classes=3) == 0.5


def test_scale_of_a_feature_row_changes_nothing_and_bits_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    train_x, train_y, test_x, test_y = digits()
    first = knn_accuracy(train_x, train_y, test_x, test_y, classes=10)
    assert first == knn_accuracy(train_x, train_y, test_x, test_y, classes=10)
    assert first == knn_accuracy(train_x * 4, train_y, test_x / 8, test_y, classes=10)
    monkeypatch.setattr(knn, "SIMILARITIES", 7 * len(train_x))  # blocks of 7 test rows, the last one shorter
    assert first == pytest.approx(knn_accuracy(train_x, train_y, test_x, test_y, classes=10), abs=2 / len(test_x))
    assert first > 0.9


def test_small_temperatures_do_not_overflow() -> None:
    train_x, train_y, test_x, test_y = digits()
    sharp = knn_accuracy(train_x, train_y, test_x, test_y, classes=10, temperature=1e-3)
    nearest = knn_accuracy(train_x, train_y, test_x, test_y, classes=10, k=1)
    assert abs(sharp - nearest) < 0.02


def test_collapsed_features_are_chance_not_a_crash() -> None:
    labels = torch.arange(100) % 4
    for value in (0.0, 3.0):
        x = torch.full((100, 5), value)
        assert knn_accuracy(x, labels, x, labels, classes=4) == 0.25


def test_of_images_that_are_equally_near_at_the_last_place_some_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features on an axis each: cosines are 1 or 0 exactly. Against counts over the train images, one by one."""
    rng = np.random.default_rng(0)
    axes, labels, k = rng.integers(0, 8, 300), torch.tensor(rng.integers(0, 4, 300)), 30
    x, test = torch.eye(8)[axes], torch.eye(8)
    tally = knn.knn_votes(x, labels, test, classes=4, k=k).double()
    weight = math.exp(-1 / 0.1)  # of a cosine of 0 beside one of 1
    for axis in range(8):
        near = [sum(1 for a, y in zip(axes, labels, strict=True) if a == axis and y == c) for c in range(4)]
        if sum(near) >= k:  # all that vote are equally near, and not all of these vote
            assert tally[axis].sum() == k
            assert all(0 <= votes <= most for votes, most in zip(tally[axis].tolist(), near, strict=True))
        else:  # all that are nearer vote, and some of the others
            others = (tally[axis] - torch.tensor(near)) / weight
            assert others.sum().item() == pytest.approx(k - sum(near), abs=0.1)
            assert (others > -0.1).all()
    assert sorted({np.sum(axes == axis) >= k for axis in range(8)}) == [False, True]  # both kinds are there
    monkeypatch.setattr(knn, "SIMILARITIES", 1)  # one test image at a time
    assert torch.equal(knn.knn_votes(x, labels, test, classes=4, k=k).double(), tally)


def test_of_classes_with_equal_votes_the_first_is_the_answer() -> None:
    """Two images vote, of classes 3 and 1, both at a cosine of sqrt(1/2); the other 18 are farther."""
    x, labels = torch.zeros(20, 3), torch.tensor([3, 1, *[0] * 18])
    x[0, 0] = x[1, 1] = 1.0
    x[2:, 2] = 1.0
    test = torch.tensor([[1.0, 1.0, 0.0]])
    assert knn.knn_votes(x, labels, test, classes=4).tolist() == [[0.0, 1.0, 0.0, 1.0]]
    assert [knn_accuracy(x, labels, test, torch.tensor([label]), classes=4) for label in (1, 3)] == [1.0, 0.0]


def test_shares_of_the_vote_rank_images_for_the_area_under_the_curve() -> None:
    """Against scikit-learn's classifier with the same neighbours and weights."""
    train_x, train_y, test_x, test_y = digits()

    def weight(distance: np.ndarray) -> np.ndarray:  # of unit vectors: cosine = 1 - distance^2 / 2
        return np.asarray(np.exp((1 - distance**2 / 2) / 0.1))

    x, test = (part / part.norm(dim=1, keepdim=True) for part in (train_x.double(), test_x.double()))
    theirs = KNeighborsClassifier(120, weights=weight).fit(x.numpy(), train_y.numpy())
    expected = roc_auc_score(test_y.numpy(), theirs.predict_proba(test.numpy()), multi_class="ovr", average="macro")
    values = knn.measure(of_features(*digits(), metrics=("accuracy", "auc")), knn.KnnConfig())
    assert values["knn_auc"] == pytest.approx(expected, abs=1e-4)
    assert values["knn"] == pytest.approx(theirs.score(test.numpy(), test_y.numpy()), abs=2 / len(test_y))


def test_shares_that_are_almost_one_rank_images_too() -> None:
    """Two neighbours vote, one of each class: class 1 gets a vote in 4.9e8, and of the second image one in 3.6e8."""
    labels = torch.tensor([0] + [1] * 19)
    train = torch.tensor([[1.0, 0.0]] + [[-1.0, 0.0]] * 19)
    angle = math.radians(10)
    test = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    material = of_features(train, labels, test, torch.tensor([0, 1]), classes=2, metrics=("accuracy", "auc"))
    assert knn.measure(material, knn.KnnConfig(k=2)) == {"knn": 0.5, "knn_auc": 1.0}
