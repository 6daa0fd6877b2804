"""Few-shot accuracy against a plain re-implementation: softmax regression minimised by scipy, draws by a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.evaluation.fewshot import FewShotConfig, draw_rows, measure
from tests.evaluation.materials import digits, fewshot_accuracy, of_features


def softmax_regression(x: np.ndarray, y: np.ndarray, classes: int, C: float) -> np.ndarray:
    """Weights (D + 1, classes) minimising ||W||^2 / 2 + C * sum of cross-entropies, bias not penalised."""
    ones = np.hstack([x, np.ones((len(x), 1))])
    hot = np.eye(classes)[y]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(-1, classes)
        logits = ones @ w
        log_p = logits - logsumexp(logits, axis=1, keepdims=True)
        ridge = w * np.vstack([np.ones((x.shape[1], 1)), np.zeros((1, 1))])
        return (ridge**2).sum() / 2 - C * (hot * log_p).sum(), (ridge + C * ones.T @ (np.exp(log_p) - hot)).ravel()

    start = np.zeros(ones.shape[1] * classes)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-8})
    return np.asarray(found.x).reshape(-1, classes)


def plain(data: tuple[torch.Tensor, ...], labels_per_class: int, C: float) -> float:
    """Mean accuracy over four draws; features standardised by the moments of the train images."""
    x, y, test, truth = (part.double().numpy() for part in data)
    y = y.astype(int)
    mean, std = x.mean(axis=0), x.std(axis=0)
    std[std == 0] = 1.0
    accuracies = []
    for draw in range(4):
        order = numpy_generator("fewshot", draw).permutation(len(y))
        taken: list[int] = []
        counts = [0] * 10
        for row in order:
            if counts[y[row]] < labels_per_class:
                counts[y[row]] += 1
                taken.append(int(row))
        w = softmax_regression((x[taken] - mean) / std, y[taken], 10, C)
        logits = np.hstack([(test - mean) / std, np.ones((len(test), 1))]) @ w
        accuracies.append((logits.argmax(axis=1) == truth).mean())
    return float(np.mean(accuracies))


@pytest.mark.parametrize(("labels_per_class", "C"), [(5, 1.0), (2, 0.1)])
def test_equals_the_plain_implementation_on_digits(labels_per_class: int, C: float) -> None:
    data = digits()
    got = fewshot_accuracy(*data, labels_per_class=labels_per_class, draws=4, C=C)
    assert got == pytest.approx(plain(data, labels_per_class, C), abs=1.5 / len(data[3]))
    assert 0.5 < got < 0.95


def test_the_test_images_do_not_set_the_scale() -> None:
    """Test images of another brightness and contrast than the train images stay so."""
    train_x, train_y, test_x, test_y = digits()
    data = train_x, train_y, 0.5 * test_x + 4, test_y
    got = fewshot_accuracy(*data, draws=4)
    assert got == pytest.approx(plain(data, 5, 1.0), abs=0.02)
    assert got < fewshot_accuracy(train_x, train_y, test_x, test_y, draws=4) - 0.1  # the change shows


def test_a_draw_has_five_of_each_class_and_is_fixed() -> None:
    y = digits()[1].numpy()
    drawn = [draw_rows(y, 5, draw) for draw in range(20)]
    for rows in drawn:
        assert len(set(rows.tolist())) == 50
        assert np.bincount(y[rows]).tolist() == [5] * 10
    assert len({tuple(sorted(rows.tolist())) for rows in drawn}) == 20
    assert all(np.array_equal(rows, draw_rows(y, 5, draw)) for draw, rows in enumerate(drawn))


def test_a_scarce_class_gives_all_it_has() -> None:
    y = np.array([0] * 20 + [3] * 2)
    rows = draw_rows(y, 5, 0)
    assert np.bincount(y[rows]).tolist() == [5, 0, 0, 2]


def test_same_inputs_same_bits_and_pixels_as_bytes_or_floats() -> None:
    train_x, train_y, test_x, test_y = digits()
    first = fewshot_accuracy(train_x, train_y, test_x, test_y, draws=3)
    assert first == fewshot_accuracy(train_x, train_y, test_x, test_y, draws=3)
    assert first == fewshot_accuracy(train_x.to(torch.uint8), train_y, test_x.to(torch.uint8), test_y, draws=3)


def test_more_labels_do_better() -> None:
    data = digits()
    assert (
        fewshot_accuracy(*data, labels_per_class=1)
        < fewshot_accuracy(*data)
        < fewshot_accuracy(*data, labels_per_class=50)
    )


def test_one_class_is_refused_and_collapsed_features_are_chance() -> None:
    x = torch.full((40, 5), 3.0)
    with pytest.raises(UserError, match=r"evaluation\.protocols: fewshot found 1 class"):
        fewshot_accuracy(x, torch.zeros(40, dtype=torch.int64), x, torch.zeros(40, dtype=torch.int64))
    labels = torch.arange(40) % 4
    assert fewshot_accuracy(x, labels, x, labels, draws=2) == 0.25


def test_test_moments_play_no_part_and_metrics_are_means_over_draws() -> None:
    """Each test row is classified as it would be alone: other test images shift no feature."""
    train_x, train_y, test_x, test_y = digits()
    config = FewShotConfig(draws=3)
    whole = measure(of_features(train_x, train_y, test_x, test_y, metrics=("accuracy", "auc")), config)
    assert whole["fewshot"] == fewshot_accuracy(train_x, train_y, test_x, test_y, draws=3)  # alone
    odd, even = (
        measure(of_features(train_x, train_y, test_x[rows], test_y[rows]), config)["fewshot"] * len(test_x[rows])
        for rows in (slice(0, 10), slice(10, None))
    )
    assert whole["fewshot"] * len(test_x) == pytest.approx(odd + even)
    ten_brighter = test_x + torch.tensor([0.0] * 63 + [500.0])  # a pixel nearly always 0: its train deviation decides
    shifted = measure(of_features(train_x, train_y, ten_brighter, test_y), config)["fewshot"]
    assert shifted < whole["fewshot"] - 0.1

    areas = []
    x, test = train_x.double().numpy(), test_x.double().numpy()
    scaler = StandardScaler().fit(x)
    for draw in range(3):
        rows = draw_rows(train_y.numpy(), 5, draw)
        model = LogisticRegression(max_iter=1000).fit(scaler.transform(x[rows]), train_y.numpy()[rows])
        areas.append(roc_auc_score(test_y.numpy(), model.predict_proba(scaler.transform(test)), multi_class="ovr"))
    assert whole["fewshot_auc"] == pytest.approx(np.mean(areas), abs=1e-4)
