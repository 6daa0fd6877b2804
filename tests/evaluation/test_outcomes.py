"""Which test images a score had right, beside loops over images and scikit-learn's classifiers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from rayfed_ssl.base.schema import Block
from rayfed_ssl.evaluation import (
    PROTOCOLS,
    SELECT,
    EncoderValues,
    EvaluationConfig,
    Material,
    Outcomes,
    Protocol,
    Split,
    evaluate,
    of_client,
    outcomes_of,
)
from rayfed_ssl.evaluation.fewshot import draw_rows
from rayfed_ssl.evaluation.outcomes import Tally, compact
from tests.evaluation.materials import digits, of_features


def tallied(material: Material, **settings: object) -> tuple[dict[str, float], Outcomes]:
    values = evaluate(replace(material, tally=Tally(material.tests[""])), EvaluationConfig.model_validate(settings))
    outcomes = outcomes_of(values)
    assert outcomes is not None
    return values, outcomes


def voted(x: np.ndarray, y: np.ndarray, image: np.ndarray, k: int, temperature: float) -> int:
    """The class that one image's neighbours vote for."""
    cosines = [float(row @ image / np.linalg.norm(row) / np.linalg.norm(image)) for row in x]
    votes = [0.0] * 10
    for row in sorted(range(len(x)), key=lambda row: -cosines[row])[:k]:
        votes[y[row]] += np.exp(cosines[row] / temperature)
    return int(np.argmax(votes))


def test_knns_outcomes_are_those_of_a_loop_over_images() -> None:
    train_x, train_y, test_x, test_y = digits()
    few = slice(0, 80)
    values, outcomes = tallied(of_features(train_x, train_y, test_x[few], test_y[few]), protocols=["knn"])
    x, y = train_x.double().numpy(), train_y.numpy()
    expected = [
        voted(x, y, image, 120, 0.1) == label
        for image, label in zip(test_x[few].double().numpy(), test_y[few].tolist(), strict=True)
    ]
    assert 0 < sum(expected) < 80
    assert outcomes.right["knn"].tolist() == [int(right) for right in expected]
    assert outcomes.right["knn"].dtype == np.uint8
    assert outcomes.draws == {"knn": 1}
    assert values["knn"] == outcomes.share("knn") == np.mean(expected)


def test_fewshot_counts_over_its_draws() -> None:
    data = train_x, train_y, test_x, test_y = digits()
    values, outcomes = tallied(of_features(*data), protocols=["fewshot", "linear"], fewshot={"draws": 3})
    scaler, expected = StandardScaler().fit(train_x.double().numpy()), np.zeros(len(test_y), int)
    for draw in range(3):
        rows = draw_rows(train_y.numpy(), 5, draw)
        model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000)
        model.fit(scaler.transform(train_x[rows].double().numpy()), train_y[rows].numpy())
        expected += model.predict(scaler.transform(test_x.double().numpy())) == test_y.numpy()
    assert set(expected.tolist()) == {0, 1, 2, 3}
    assert np.abs(outcomes.right["fewshot"].astype(int) - expected).sum() <= 2  # of 1,791 answers, on a boundary
    assert outcomes.draws == {"fewshot": 3, "linear": 1}
    for score in ("fewshot", "linear"):
        assert outcomes.share(score) == pytest.approx(values[score], abs=1e-12)


def test_only_the_test_images_that_were_asked_for_are_counted() -> None:
    """Neither held-out images nor another data set's, which ``transfer`` puts in their place."""
    data = digits()
    material = of_features(*data)
    other = Split("other", np.zeros((9, 1, 1, 1), np.uint8), np.arange(9), 10, lambda pixels: torch.zeros(len(pixels)))
    material = replace(material, tests={**material.tests, SELECT: other}, tally=Tally(material.tests[""]))
    elsewhere = replace(material, tests={"": other})
    right = {"test": 0, "other": 0}

    def answer(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        right[split.name] += 1
        return split.labels.clone(), torch.zeros(len(split.labels), 10)

    values = material.classified("a", answer) | elsewhere.classified("b", answer)
    assert right == {"test": 1, "other": 2}
    assert values == {"a": 1.0, "select/a": 1.0, "b": 1.0}
    assert material.tally is not None
    found = material.tally.outcomes(values)
    assert {score: counts.tolist() for score, counts in found.right.items()} == {"a": [1] * len(data[3])}


@contextmanager
def added(**protocols: Protocol[Block]) -> Iterator[None]:
    """Protocols of another package."""
    for name, row in protocols.items():
        PROTOCOLS.add(name, row, "a test")
    try:
        yield
    finally:
        PROTOCOLS.remove("a test")


def test_protocols_of_others_have_outcomes_where_the_score_is_their_mean() -> None:
    """A protocol that calls ``classified`` need not know of outcomes; one that returns something else has none."""

    def ones(material: Material, config: Block) -> dict[str, float]:
        def answer(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.ones_like(split.labels), torch.zeros(len(split.labels), 10)

        return material.classified("ones", answer)

    def halved(material: Material, config: Block) -> dict[str, float]:
        return {"halved": ones(material, config)["ones"] / 2}

    def by_itself(material: Material, config: Block) -> dict[str, float]:
        return {"alone": 0.5}

    rows = {"ones": ones, "halved": halved, "alone": by_itself}
    truth = digits()[3]
    for name, measure in rows.items():
        with added(**{name: Protocol(Block, measure, lambda settings, name=name: (name,))}):  # type: ignore[misc]
            _, outcomes = tallied(of_features(*digits()), protocols=[name])
        assert set(outcomes.right) == ({"ones"} if name == "ones" else set())
        if name == "ones":
            assert outcomes.right["ones"].tolist() == [int(label == 1) for label in truth.tolist()]


def test_outcomes_travel_with_values_and_are_lost_where_values_change() -> None:
    outcomes = Outcomes({"knn": np.array([0, 1], np.uint8)}, {"knn": 1})
    values = EncoderValues({"knn": 0.5, "own_knn@3": 1.0, "own_knn@4": 0.0}, outcomes)
    sent = outcomes_of(pickle.loads(pickle.dumps(values)))
    assert sent is not None
    assert sent.right["knn"].tolist() == [0, 1]
    assert of_client(values, 3) == {"knn": 0.5, "own_knn@3": 1.0}
    assert outcomes_of(of_client(values, 3)) is outcomes
    assert outcomes_of({**values, "knn": 0.25}) is None
    assert outcomes_of(evaluate(of_features(*digits()), EvaluationConfig(protocols=("knn",)))) is None


def test_counts_take_a_byte_while_one_is_enough() -> None:
    for most, kind in ((255, np.uint8), (256, np.int32)):
        assert compact(np.array([most]), most).dtype == kind
        assert compact(np.array([most]), most).tolist() == [most]
