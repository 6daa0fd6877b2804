"""FedU and FedEMA: distances, thresholds and mixing, by hand and against misreadings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

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
from rayfed_ssl.models.encoders import build_encoder

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


def shapes_of(name: str, *, all_of_them: bool = False) -> Counter[tuple[int, ...]]:
    """The shapes of the weights that are measured, or of all convolutions."""
    with torch.device("meta"):
        encoder = build_encoder(name, ModelConfig(), 64, 3)
    shapes = {name: tuple(value.shape) for name, value in encoder.named_parameters() if value.ndim == 4}
    return Counter(shapes.values() if all_of_them else [shapes[name] for name in convolutions(encoder)])


def test_convnext_has_no_shortcuts_whatever_its_parts_are_called() -> None:
    """timm calls the convolutions between two stages ``downsample``; torchvision gives them numbers."""
    timms, torchvisions = shapes_of("timm/convnext_tiny"), shapes_of("torchvision/convnext_tiny")
    assert timms == torchvisions == shapes_of("torchvision/convnext_tiny", all_of_them=True)
    assert timms.total() == 1 + (3 + 3 + 9 + 3) + 3  # the stem, one of each block, one before each later stage


@pytest.mark.parametrize(
    ("name", "blocks", "each", "shortcuts"),
    [
        ("resnet18", 8, 2, 3),
        ("resnet50", 16, 3, 4),
        ("torchvision/resnet18", 8, 2, 3),
        ("torchvision/resnet50", 16, 3, 4),
        ("timm/resnet18", 8, 2, 3),
        ("timm/resnet50", 16, 3, 4),
        ("timm/resnetv2_50", 16, 3, 4),
    ],
)
def test_shortcuts_of_resnets_are_left_out(name: str, blocks: int, each: int, shortcuts: int) -> None:
    """He et al. 2016, table 1: the convolutions of a block, one in the stem, one where a stage changes the shape."""
    measured, found = shapes_of(name), shapes_of(name, all_of_them=True)
    assert measured.total() == 1 + blocks * each
    assert found.total() == 1 + blocks * each + shortcuts
    assert all(shape[2:] == (1, 1) for shape in found - measured)


def test_a_shortcut_may_be_a_single_convolution() -> None:
    block = nn.Module()
    block.ghost1, block.shortcut = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 1)
    assert convolutions(block) == ["ghost1.weight"]
    assert convolutions(nn.Sequential(block)) == ["0.ghost1.weight"]
