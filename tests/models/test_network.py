"""Heads by layer and parameter count, networks by what their parts compute, layouts, and export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked
from rayfed_ssl.base.weights import layout_of
from rayfed_ssl.models import HEAD_SHAPES, HEADS, HeadConfig, ModelConfig, build_network, describe, mlp, rebuild

THIN = ModelConfig(width=0.25, projector=HeadConfig(hidden=(12,), dim=6))
IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _addressed_randomness() -> Iterator[None]:
    with forked("tests", "models"):
        yield


def kinds(module: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in module]


@pytest.mark.parametrize(
    ("name", "in_dim", "count"),
    [
        ("fedsc", 512, 1_050_112),  # the predictor of FedSC's BYOL family
        ("flesd", 512, 512 * 512 + 512 + 512 * 128 + 128),
        ("easyfl", 512, 512 * 4096 + 4096 + 2 * 4096 + 4096 * 2048 + 2048),
        ("easyfl", 2048, 2048 * 4096 + 4096 + 2 * 4096 + 4096 * 2048 + 2048),
        ("fedca", 2048, 2048 * 2048 + 2048 + 2048 * 128 + 128),
        ("fedx", 512, 512 * 512 + 512 + 512 * 256 + 256),
        ("fedx_predictor", 256, 2 * (256 * 256 + 256)),
        ("orchestra", 512, 11_694_144 - 11_168_832),  # what Orchestra sends of a ResNet-18 with it, and without
        ("orchestra_byol", 512, 1_050_112 + 2 * 1024),
    ],
)
def test_the_papers_heads(name: str, in_dim: int, count: int) -> None:
    head = mlp(in_dim, ModelConfig.model_validate({"projector": name}).projector)
    assert sum(p.numel() for p in head.parameters()) == count
    assert head(torch.randn(3, in_dim)).shape == (3, HEAD_SHAPES[name].dim)


def test_layers_of_a_head() -> None:
    assert kinds(mlp(8, HeadConfig(dim=4))) == ["Linear"]
    assert kinds(mlp(8, HeadConfig(dim=4, hidden=(5, 6)))) == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    hidden = mlp(8, HeadConfig(dim=4, hidden=(5,), batch_norm="hidden"))
    assert kinds(hidden) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    everywhere = mlp(8, HeadConfig(dim=4, hidden=(5,), batch_norm="all", bias=False))
    assert kinds(everywhere) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert all(layer.bias is None for layer in everywhere if isinstance(layer, nn.Linear))
    out = everywhere(torch.randn(64, 8))
    torch.testing.assert_close(out.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(0, unbiased=False), torch.ones(4), atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    "block", [{"width": 0}, {"projector": "nobody"}, {"projector": {"dim": 0}}, {"dropout": 1.0}, {"heads": 3}]
)
def test_a_wrong_model_block_is_refused(block: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ModelConfig.model_validate(block)


def test_a_network_is_its_parts_in_order() -> None:
    config = THIN.model_copy(update={"calibration": 5})
    network = build_network("small_cnn", config, 16, heads={"projector", "predictor"})
    h = network.encoder(IMAGES)
    hidden = torch.relu(h @ network.projector[0].weight.T + network.projector[0].bias)
    g = hidden @ network.projector[2].weight.T + network.projector[2].bias
    z = g @ network.calibration.weight.T + network.calibration.bias
    assert g.shape == (4, 6)
    assert z.shape == (4, 5)
    assert (network.dim, network.projection_dim) == (32, 5)
    torch.testing.assert_close(network.represent(IMAGES), h)
    torch.testing.assert_close(network.project(IMAGES), z)
    torch.testing.assert_close(network.project_features(h), z)
    torch.testing.assert_close(network.predict(z), network.predictor(z))
    assert network.predict(z).shape == (4, 5)


def test_calibration_brings_every_architecture_to_one_space() -> None:
    config = ModelConfig(width=0.1, projector=HeadConfig(dim=9), calibration=6)
    for name in ("small_cnn", "resnet18", "vgg9", "alexnet"):
        network = build_network(name, config, 32, heads={"projector"})
        assert network.project(torch.randn(2, 3, 32, 32)).shape == (2, 6)
        assert network.projection_dim == 6


@pytest.mark.parametrize(("norm", "expected"), [("none", 0), ("hidden", 1), ("all", 1)])
def test_default_predictor_has_the_projectors_shape(norm: str, expected: int) -> None:
    config = ModelConfig.model_validate({"projector": {"dim": 6, "hidden": [12], "batch_norm": norm}})
    predictor = build_network("small_cnn", config, 16, heads={"predictor"}).predictor
    linear = [layer for layer in predictor if isinstance(layer, nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linear] == [(12, 6), (6, 12)]
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in predictor) == expected


def test_predictor_of_another_dimension_is_refused() -> None:
    config = THIN.model_copy(update={"predictor": HeadConfig(dim=7)})
    with pytest.raises(UserError, match=r"model\.predictor\.dim: 7 .* 6"):
        build_network("small_cnn", config, 16, heads={"projector", "predictor"})


def test_heads_asked_for_and_no_others() -> None:
    network = build_network("vit_tiny", THIN, 16, heads=HEADS.keys() - {"calibration"}, classes=5)
    h = network.represent(IMAGES)
    order = torch.arange(16).expand(4, -1)
    assert network.through("patch_decoder", h[:, None], order).shape == (4, 15, 48)
    assert network.through("classifier", h).shape == (4, 5)
    assert network.through("rotation", h).shape == network.classify_projected_rotation(IMAGES).shape == (4, 4)
    assert network.through("decoder", h).shape == IMAGES.shape
    bare = build_network("small_cnn", THIN, 16, heads=())
    assert {name.split(".")[0] for name, _ in bare.named_parameters()} == {"encoder"}
    for call in (bare.project, bare.predict, bare.classify_projected_rotation):
        with pytest.raises(RuntimeError, match="built without a"):
            call(IMAGES)
    for head in HEADS:
        with pytest.raises(RuntimeError, match=f"built without a {head}"):
            bare.through(head, h)
    with pytest.raises(ValueError, match="number of classes"):
        build_network("small_cnn", THIN, 16, heads={"classifier"})


def test_classifier_drops_features_at_the_configured_rate() -> None:
    config = ModelConfig(width=0.25, head_dropout=0.79)
    network = build_network("small_cnn", config, 16, heads={"classifier"}, classes=3)
    with torch.no_grad():
        network.classifier[1].weight.fill_(1.0)
        network.classifier[1].bias.zero_()
    with forked(0, "dropout"):
        kept = network.classifier[0](torch.ones(2000, 32)).bool().float().mean()
    assert kept.item() == pytest.approx(0.21, abs=0.01)
    h = network.eval().represent(IMAGES)
    torch.testing.assert_close(network.through("classifier", h), h.sum(1, keepdim=True).expand(4, 3))


@pytest.mark.parametrize("size", [16, 32, 48])
def test_decoder_reaches_the_image_size(size: int) -> None:
    network = build_network("small_cnn", THIN, size, heads={"decoder"})
    images = network.through("decoder", network.represent(torch.randn(2, 3, size, size)))
    assert images.shape == (2, 3, size, size)
    assert images.min() < 0 < images.max()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_autoencoder_gives_back_as_many_channels(channels: int) -> None:
    network = build_network("small_cnn", THIN, 16, heads={"decoder"}, channels=channels)
    images = torch.randn(2, channels, 16, 16)
    assert network.through("decoder", network.represent(images)).shape == images.shape
    assert describe(network)["channels"] == channels
    assert rebuild(describe(network))(images).shape == (2, network.dim)


def test_a_description_without_channels_is_of_three() -> None:
    description = describe(build_network("small_cnn", THIN, 16, heads=()))
    del description["channels"]
    assert rebuild(description)(IMAGES).shape == (4, description["dim"])


@pytest.mark.parametrize(("size", "whole", "first"), [(28, 32, 2), (9, 16, 3), (31, 32, 0), (16, 16, 0)])
def test_images_of_any_size_are_decoded(size: int, whole: int, first: int) -> None:
    """They are the middle of what the same decoder gives at the next multiple of eight."""
    decoder, wider = (build_network("small_cnn", THIN, side, heads={"decoder"}).decoder for side in (size, whole))
    assert decoder is not None
    assert wider is not None
    decoder.load_state_dict(wider.state_dict())
    features = torch.randn(2, wider.start[0].in_features)
    images = decoder(features)
    assert images.shape == (2, 3, size, size)
    torch.testing.assert_close(images, wider(features)[:, :, first : first + size, first : first + size])


def test_heads_do_not_change_the_encoder_of_a_seed() -> None:
    def build(heads: set[str]) -> dict[str, torch.Tensor]:
        with forked(7, "init"):
            return build_network("small_cnn_bn", THIN, 16, heads=heads, classes=2).encoder.state_dict()

    for name, tensor in build({"projector", "decoder"}).items():
        assert torch.equal(tensor, build({"classifier"})[name])


def test_order_of_parameters_does_not_depend_on_the_order_of_heads() -> None:
    one = build_network("small_cnn", THIN, 16, heads=["projector", "predictor", "rotation"])
    other = build_network("small_cnn", THIN, 16, heads=["rotation", "predictor", "projector"])
    assert [n for n, _ in one.named_parameters()] == [n for n, _ in other.named_parameters()]


def test_layout_is_equal_exactly_when_weights_are_interchangeable() -> None:
    def layout(encoder: str = "small_cnn", heads: tuple[str, ...] = ("projector",), **changes: object) -> str:
        return layout_of(build_network(encoder, THIN.model_copy(update=changes), 16, heads=heads))

    same = layout()
    assert same == layout()
    assert same == layout(head_dropout=0.5)  # dropout has no weights
    others = [
        layout("small_cnn_bn"),
        layout("fixup_resnet20"),
        layout(width=0.5),
        layout(calibration=3),
        layout(projector=HeadConfig(hidden=(13,), dim=6)),
        layout(heads=()),
        layout(heads=("projector", "predictor")),
    ]
    assert len({same, *others}) == len(others) + 1


@pytest.mark.parametrize("name", ["small_cnn", "small_cnn_bn", "resnet18", "fedlinked_cnn"])
def test_exported_encoder_loads_with_three_lines(name: str, tmp_path: Path) -> None:
    config = ModelConfig(width=0.1, representation=5 if name == "fedlinked_cnn" else None)
    network = build_network(name, config, 16, heads={"projector"})
    network.train().represent(IMAGES)  # moves the running statistics away from their start
    state = {k: v for k, v in network.encoder.state_dict().items() if not k.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "encoder.safetensors")
    (tmp_path / "encoder.json").write_text(json.dumps(describe(network)))

    encoder = rebuild(json.loads((tmp_path / "encoder.json").read_text()))
    encoder.load_state_dict(load_file(tmp_path / "encoder.safetensors"))
    features = encoder(IMAGES)

    assert torch.equal(features, network.eval().represent(IMAGES))
    assert features.shape[1] == describe(network)["dim"]


def test_rebuild_names_the_missing_key() -> None:
    with pytest.raises(UserError, match="'image_size' is missing"):
        rebuild({"encoder": "small_cnn", "model": {}})
