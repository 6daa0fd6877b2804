"""FedU and FedEMA: distances, thresholds and mixing, by hand and against misreadings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rayfed_ssl.base.seeding import forked
from rayfed_ssl.base.weights import named, pack
from rayfed_ssl.methods.parts.divergence import (
    autoscaler,
    convolutions,
    kept_share,
    layer_divergence,
    mixed,
    model_divergence,
    takes_predictor,
)
from rayfed_ssl.models import ModelConfig, build_network

BEFORE = {"conv1": np.zeros((1, 2)), "conv2": np.zeros((2, 2))}
AFTER = {"conv1": np.array([[3.0, 4]]), "conv2": np.array([[12.0, 0], [0, 0]])}


def test_distances_by_hand() -> None:
    assert layer_divergence(BEFORE, AFTER) == 8.5  # norms 5 and 12
    assert model_divergence(BEFORE, AFTER) == 13
    assert model_divergence(BEFORE, AFTER) / 2 == 6.5  # FedSC's: another number
    assert layer_divergence(AFTER, AFTER) == 0
    for wrong in ({}, {"conv1": BEFORE["conv1"]}):
        with pytest.raises(ValueError, match="same tensors, at least one"):
            layer_divergence(wrong, AFTER)


def test_the_scaler_makes_the_first_share_tau() -> None:
    scaler = autoscaler(0.7, 0.5)
    assert scaler == pytest.approx(1.4)
    assert [kept_share(scaler, d) for d in (0.5, 0.4, 0.8)] == pytest.approx([0.7, 0.56, 1])
    assert autoscaler(0.7, 0.0) is None
    assert kept_share(1.4, 0.0) == 0


def test_the_share_is_of_the_clients_own_model() -> None:
    own, received = np.ones(3, np.float32), np.zeros(3, np.float32)
    for d, mu in ((0.5, 0.7), (0.4, 0.56), (0.8, 1.0)):
        found = mixed(own, received, kept_share(1.4, d))
        np.testing.assert_allclose(found, mu, rtol=1e-6)
        assert abs(found[0] - (1 - mu)) > 0.1  # not turned round
        assert found.dtype == np.float32
    draws = np.random.default_rng(0)
    own, received = draws.normal(size=(2, 9)).astype(np.float32)
    np.testing.assert_array_equal(mixed(own, received, 0.0), received)
    np.testing.assert_array_equal(mixed(own, received, 1.0), own)


def test_the_predictor_is_global_strictly_below_the_threshold() -> None:
    assert [takes_predictor(d, 0.4) for d in (0.39, 0.40, 0.41)] == [True, False, False]


def test_convolutions_are_those_on_the_main_path() -> None:
    with forked("tests", "divergence"):
        network = build_network("resnet18", ModelConfig(width=0.1), 16, heads=())
    names = convolutions(network.encoder)
    assert len(names) == 17  # the stem and 16 in blocks; not the 3 shortcuts, nor BatchNorm, nor linear layers
    kinds = {name: tuple(value.shape) for name, value in named(pack(network.encoder), network.encoder).items()}
    assert all(len(kinds[name]) == 4 for name in names)
    before = named(pack(network.encoder), network.encoder)
    with torch.no_grad():
        for name, parameter in network.encoder.named_parameters():
            parameter.add_(1.0 if name in names else 100.0)
    after = named(pack(network.encoder), network.encoder)
    moved = layer_divergence(*({name: values[name] for name in names} for values in (before, after)))
    assert moved == pytest.approx(np.mean([np.sqrt(before[name].size) for name in names]), rel=1e-4)
