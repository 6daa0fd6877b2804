"""L-DAWA: angles tensor by tensor, by hand and against misreadings."""

from __future__ import annotations

import numpy as np
import pytest

from rayfed_ssl.methods.ldawa import angular_divergence, layerwise_mean

G = {"a": np.array([1.0, 0]), "b": np.array([2.0])}
X = [{"a": np.array([1.0, 0]), "b": np.array([2.0])}, {"a": np.array([0.6, 0.8]), "b": np.array([-2.0])}]


def test_by_hand() -> None:
    assert [angular_divergence(x["a"], G["a"]) for x in X] == pytest.approx([1, 0.6])
    assert [angular_divergence(x["b"], G["b"]) for x in X] == [1, -1]
    new = layerwise_mean(X, G)
    np.testing.assert_allclose(new["a"], [0.68, 0.24], atol=1e-12)
    np.testing.assert_allclose(new["b"], [2.0], atol=1e-12)  # the opposite tensor is turned round


def test_misreadings_differ() -> None:
    only = [{"a": x["a"]} for x in X]
    start = {"a": G["a"]}
    np.testing.assert_allclose(layerwise_mean(only, start, averaged={"a"})["a"], [0.8, 0.4], atol=1e-12)  # FedAvg
    np.testing.assert_allclose(layerwise_mean(only, start, normalize=True)["a"], [0.85, 0.3], atol=1e-12)
    whole = [{"ab": np.concatenate([x["a"], x["b"]])} for x in X]
    together = layerwise_mean(whole, {"ab": np.concatenate([G["a"], G["b"]])})["ab"]  # one angle for both
    np.testing.assert_allclose(together, [0.296, -0.272, 1.68], atol=1e-12)


def test_clients_equal_to_the_start_change_nothing() -> None:
    draws = np.random.default_rng(0)
    start = {"w": draws.normal(size=(3, 4)), "zero": np.zeros(5), "count": np.array(7.0)}
    new = layerwise_mean([start] * 3, start)
    for name, value in start.items():
        np.testing.assert_allclose(new[name], value, rtol=1e-12)


def test_properties() -> None:
    draws = np.random.default_rng(1)
    start = {"w": draws.normal(size=(3, 4))}
    clients = [{"w": draws.normal(size=(3, 4))} for _ in range(3)]
    new = layerwise_mean(clients, start)["w"]
    np.testing.assert_allclose(layerwise_mean(clients, {"w": 7 * start["w"]})["w"], new)  # g only has a direction
    np.testing.assert_allclose(layerwise_mean([{"w": 2 * c["w"]} for c in clients], start)["w"], 2 * new)
    np.testing.assert_allclose(layerwise_mean(clients[::-1], start)["w"], new)


def test_a_start_of_zeros_has_no_direction() -> None:
    clients = [{"bias": np.array([1.0, 2])}, {"bias": np.array([3.0, -2])}]
    new = layerwise_mean(clients, {"bias": np.zeros(2)})
    np.testing.assert_allclose(new["bias"], [2, 0])
    assert angular_divergence(np.zeros(2), np.ones(2)) == 1


def test_statistics_and_single_numbers_are_plain_means_by_share() -> None:
    start = {"mean": np.array([1.0, 0]), "count": np.array(1.0)}
    clients = [
        {"mean": np.array([1.0, 0]), "count": np.array(2.0)},
        {"mean": np.array([0.0, 1]), "count": np.array(6.0)},
    ]
    new = layerwise_mean(clients, start, shares=np.array([0.75, 0.25]), averaged={"mean"})
    np.testing.assert_allclose(new["mean"], [0.75, 0.25])
    np.testing.assert_allclose(new["count"], 3.0)
    assert new["count"].shape == ()


def test_float32_stays_and_angles_that_cancel_cannot_be_normalised() -> None:
    start = {"a": np.array([1.0, 0], np.float32)}
    assert layerwise_mean([start], start)["a"].dtype == np.float32
    assert angular_divergence(np.float32([0.1, 0.7, 0.3]), np.float32([0.1, 0.7, 0.3])) <= 1
    with pytest.raises(ValueError, match="the angles of a sum to 0"):
        layerwise_mean([start, {"a": -start["a"]}], start, normalize=True)
