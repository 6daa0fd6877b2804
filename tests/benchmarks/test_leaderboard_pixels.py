"""What raw pixels are worth: against scikit-learn's nearest neighbours, and the methods below them."""

from __future__ import annotations

from typing import Any

import leaderboard_pixels as pixels
import numpy as np
import pytest
from boards import absolute
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.measured_rows import train_rows
from rayfed_ssl.testing.tiny import tiny_run
from tests.benchmarks import made

BOARD: dict[str, Any] = {
    "data": {"cifar10": ""}, "partitions": {"iid": {}, "dirichlet": {}}, "references": ["local"],
    "methods": {"fedsimclr": {}, "fedca": {}, "local": {}},
}  # fmt: skip


def test_pixels_are_measured_as_encoders_are() -> None:
    """kNN as scikit-learn's with cosine distances and the same weights; linear near its logistic regression."""
    config = tiny_run("fedsimclr", {"evaluation.protocols": ["knn", "linear", "fewshot"], "evaluation.knn.k": 5})
    federation = load_federation(config)
    found = pixels.measured(config, federation)
    rows, _ = train_rows(federation, config)
    train, test = federation.dataset.train, federation.dataset.test
    x, y = np.array(train.pixels[rows]).reshape(len(rows), -1) / 255, train.labels[rows]
    seen = np.array(test.pixels).reshape(len(test.pixels), -1) / 255
    neighbours = KNeighborsClassifier(
        5, metric="cosine", weights=lambda distance: np.exp((1 - distance) / config.evaluation.knn.temperature)
    )
    assert found["knn"] == pytest.approx(neighbours.fit(x, y).score(seen, test.labels), abs=1.01 / len(seen))
    scaled = [(each - x.mean(0)) / (x.std(0) + 1e-6) for each in (x, seen)]
    linear = LogisticRegression(max_iter=500).fit(scaled[0], y).score(scaled[1], test.labels)
    assert found["linear"] == pytest.approx(linear, abs=0.1)
    assert found.keys() == {"knn", "linear", "fewshot"}


def test_rows_get_the_lines_of_their_data_set_and_seed() -> None:
    lines = [{"data": "cifar10", "seed": 1, "knn": 0.25, "linear": 0.3, "fewshot": 0.9}]
    first, second = pixels.onto([made.row("fedca", 1, pixels_fewshot=0.2), made.row("fedca", 0)], lines)
    assert [first[f"pixels_{name}"] for name in ("knn", "linear", "fewshot")] == [0.25, 0.3, 0.2]
    assert (second["pixels_knn"], second["pixels_fewshot"]) == (None, None)


def test_methods_below_pixels_are_told_apart_or_below_in_the_mean() -> None:
    """FedCA's differences are -0.15 and -0.14, local's -0.05 and -0.04: t of one degree of freedom is 12.7."""
    accuracy = {"fedsimclr": 0.5, "fedca": 0.3, "local": 0.4}
    some = [
        made.row(name, seed, value + 0.01 * seed, partition=partition, linear=0.6, fewshot=0.1 + 0.001 * seed)
        for name, value in accuracy.items() for seed in (0, 1) for partition in BOARD["partitions"]
    ]  # fmt: skip
    board = BOARD | {"seeds": [0, 1]}
    lines = [{"data": "cifar10", "seed": seed, "knn": 0.45, "linear": 0.5} for seed in (0, 1)]
    assert absolute.below_pixels(some, board) == "Raw pixels: not run yet."
    told = absolute.below_pixels(pixels.onto([row | {"pixels_fewshot": 0.2} for row in some], lines), board)
    assert [line.split("|")[2:5] for line in told.splitlines()[2:]] == [
        [" 0.450 ", " 1 of 3: `fedca` ", " 1 of 3: `local` "],
        [" 0.500 ", " none ", " none "],
        [" 0.200 ", " 3 of 3: `fedsimclr`, `fedca`, `local` ", " none "],
    ]
