"""Encoders of timm and torchvision: the library's own features, its names, and one line for what does not work."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked
from rayfed_ssl.base.weights import pack, unpack
from rayfed_ssl.models import (
    ModelConfig,
    build_encoder,
    build_network,
    check_encoder_name,
    check_options,
    describe,
    load_exported,
)
from rayfed_ssl.models.library import patch_side
from tests.tiny import tiny

CONFIG = ModelConfig()


@pytest.fixture(autouse=True)
def _addressed_randomness() -> Iterator[None]:
    with forked("tests", "library"):
        yield


def renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"body.{key}": value for key, value in state.items()}


def small(network: nn.Module, channels: int = 64) -> nn.Module:
    """He et al. 2016, section 4.2: a 3x3 stem of stride 1, no pooling after it."""
    network.conv1 = nn.Conv2d(3, channels, 3, 1, 1, bias=False)
    network.maxpool = nn.Identity()
    return network


@pytest.mark.parametrize("name", ["timm/resnet10t", "timm/test_resnet", "timm/resnet18", "torchvision/resnet18"])
@pytest.mark.parametrize("size", [32, 96])
def test_resnet_features_are_the_librarys(name: str, size: int) -> None:
    """Below 96 px with the small stem, from 96 px on with the library's; both have no classifier."""
    library, model = name.split("/")
    ours = build_encoder(name, CONFIG, size)
    if library == "timm":
        theirs = timm.create_model(model, pretrained=False, num_classes=0)
    else:
        theirs = torchvision.models.resnet18(weights=None)
        theirs.fc = nn.Identity()
    if size < 96 and isinstance(theirs.conv1, nn.Conv2d):
        small(theirs, theirs.conv1.out_channels)
    elif size < 96:
        theirs.conv1[0].stride = (1, 1)
        theirs.maxpool = nn.Identity()
    ours.load_state_dict(renamed(theirs.state_dict()))
    images = torch.randn(2, 3, size, size)
    features = ours.eval()(images)
    assert torch.equal(features, theirs.eval()(images))
    assert features.shape == (2, ours.dim)


def test_a_vision_transformer_cuts_small_images_into_small_patches() -> None:
    ours = build_encoder("timm/vit_tiny_patch16_224", CONFIG, 32)
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=0, img_size=32, patch_size=4)
    ours.load_state_dict(renamed(theirs.state_dict()))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))
    assert ours.body.pos_embed.shape == (1, 8 * 8 + 1, 192)  # 8 x 8 patches and the class token


@pytest.mark.long
def test_torchvisions_vision_transformer_has_its_sizes_and_our_patch() -> None:
    with torch.device("meta"):
        named = torchvision.models.vit_b_16(weights=None, image_size=32)
    ours = build_encoder("torchvision/vit_b_16", CONFIG, 32)
    block, reference = ours.body.encoder.layers, named.encoder.layers
    assert {k: v.shape for k, v in block.state_dict().items()} == {
        k: v.shape for k, v in reference.state_dict().items()
    }
    assert ours.body.encoder.pos_embedding.shape == (1, 65, 768)
    assert ours.dim == 768
    assert block[0].num_heads == reference[0].num_heads


@pytest.mark.parametrize(
    ("size", "patch"), [(8, 1), (16, 2), (28, 2), (32, 4), (45, 5), (48, 6), (64, 8), (84, 7), (88, 11)]
)
def test_patches_of_small_images(size: int, patch: int) -> None:
    assert patch_side(size) == patch
    assert 8 <= size // patch <= 16


def test_a_side_without_patches_is_refused() -> None:
    with pytest.raises(UserError, match=r"^data\.image_size: found 37; encoder 'timm/test_vit' .*8 to 16 patches"):
        build_encoder("timm/test_vit", CONFIG, 37)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("torchvision/mobilenet_v3_small", lambda m: m.classifier.__setitem__(3, nn.Identity())),
        ("torchvision/shufflenet_v2_x0_5", lambda m: setattr(m, "fc", nn.Identity())),
        ("torchvision/densenet121", lambda m: setattr(m, "classifier", nn.Identity())),
        ("torchvision/swin_t", lambda m: setattr(m, "head", nn.Identity())),
        ("torchvision/convnext_tiny", lambda m: m.classifier.__setitem__(2, nn.Identity())),
        ("torchvision/googlenet", lambda m: setattr(m, "fc", nn.Identity())),
        ("timm/test_efficientnet", None),
        ("timm/test_convnext", None),
    ],
)
def test_other_families_keep_their_stem(name: str, head: object) -> None:
    library, model = name.split("/")
    ours = build_encoder(name, CONFIG, 32)
    if library == "timm":
        theirs = timm.create_model(model, pretrained=False, num_classes=0)
    else:
        extra = {"aux_logits": False, "init_weights": True} if model == "googlenet" else {}
        theirs = torchvision.models.get_model(model, weights=None, **extra)
        head(theirs)
    ours.load_state_dict(renamed(theirs.state_dict()))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))
    assert describe_made(name)["stem"] == "the library's"


def describe_made(name: str) -> dict[str, object]:
    return describe(build_network(name, CONFIG, 32, heads=()))


def test_squeezenet_ends_with_its_feature_map() -> None:
    ours = build_encoder("torchvision/squeezenet1_1", CONFIG, 64)
    images = torch.randn(2, 3, 64, 64)
    assert ours.dim == 512
    torch.testing.assert_close(ours.eval()(images), ours.body.features(images).relu().mean((2, 3)))


@pytest.mark.parametrize("name", ["timm/test_resnet", "timm/test_vit", "torchvision/shufflenet_v2_x0_5"])
def test_values_are_a_function_of_the_seed_and_travel_flat(name: str) -> None:
    built = []
    for seed in (1, 1, 2):
        with forked(seed, "initial"):
            built.append(build_encoder(name, CONFIG, 32))
    one, same, other = (pack(encoder) for encoder in built)
    assert (one.vector == same.vector).all()
    assert (one.vector != other.vector).any()
    unpack(other, built[0])
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(built[0].eval()(images), built[2].eval()(images))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "channels"),
    [("timm/test_resnet", 1), ("timm/test_vit", 1), ("torchvision/resnet18", 3), ("torchvision/swin_t", 3)],
)
def test_an_exported_library_encoder_is_loaded_whole(name: str, channels: int, tmp_path: Path) -> None:
    """swin_t has an integer buffer that its constructor fills: it is not exported, and not missed."""
    network = build_network(name, CONFIG, 32, heads=("projector",), channels=channels)
    images = torch.randn(4, channels, 32, 32)
    network.train().represent(images)
    (tmp_path / "encoder").mkdir()
    values = {k: v.contiguous() for k, v in network.encoder.state_dict().items() if v.is_floating_point()}
    save_file(values, tmp_path / "encoder" / "global.safetensors")
    description = {**describe(network), "values": "global.safetensors"}
    (tmp_path / "encoder" / "global.json").write_text(json.dumps(description))
    loaded = load_exported(tmp_path)
    assert not loaded.training
    assert torch.equal(loaded(images), network.eval().represent(images))
    assert description["channels"] == channels
    assert description["dim"] == loaded.dim
    library = timm if name.startswith("timm/") else torchvision
    assert description["library"] == f"{name.split('/')[0]} {library.__version__}"


@pytest.mark.parametrize(
    ("name", "size", "stem", "arguments"),
    [
        ("timm/test_vit", 32, "patches of 4 px", {"img_size": 32, "patch_size": 4}),
        ("timm/test_vit", 96, "the library's", {"img_size": 96}),
        ("timm/test_resnet", 95, "3x3 convolution with stride 1, no max-pool", {}),
        ("timm/test_resnet", 96, "the library's", {}),
        ("torchvision/resnet18", 32, "3x3 convolution with stride 1, no max-pool", {}),
    ],
)
def test_the_description_says_how_it_was_built(name: str, size: int, stem: str, arguments: dict[str, int]) -> None:
    described = json.loads(json.dumps(describe(build_network(name, CONFIG, size, heads=()))))
    assert (described["stem"], described["arguments"]) == (stem, arguments)


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", "vgg11_bn", "vit_b_16"])
def test_further_channels_are_drawn_as_widely_as_those_that_are_kept(name: str) -> None:
    size = 96  # the library's own stem
    with forked(3, "initial"):
        colour = build_encoder(f"torchvision/{name}", CONFIG, size)
    with forked(3, "initial"):
        bands = build_encoder(f"torchvision/{name}", CONFIG, size, channels=13)
    three, many = (next(m for m in e.modules() if isinstance(m, nn.Conv2d)).weight for e in (colour, bands))
    assert torch.equal(many[:, :3], three)
    assert float(many[:, 3:].std()) == pytest.approx(float(three.std()), rel=0.1)
    assert not torch.equal(many[:, 3:6], three)
    image = torch.zeros(2, 13, size, size)
    image[:, :3] = torch.randn(2, 3, size, size)
    torch.testing.assert_close(bands.eval()(image), colour.eval()(image[:, :3]))


def test_one_channel_keeps_the_first_of_the_librarys_initial_values() -> None:
    with forked(3, "initial"):
        colour = build_encoder("torchvision/shufflenet_v2_x0_5", CONFIG, 32)
    with forked(3, "initial"):
        grey = build_encoder("torchvision/shufflenet_v2_x0_5", CONFIG, 32, channels=1)
    assert torch.equal(grey.body.conv1[0].weight, colour.body.conv1[0].weight[:, :1])
    image = torch.zeros(2, 3, 32, 32)
    image[:, 0] = torch.randn(2, 32, 32)
    torch.testing.assert_close(grey.eval()(image[:, :1]), colour.eval()(image))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("timm/resnt18", r"^clients\.encoders: found 'timm/resnt18'; timm \S+ has no .*; did you mean timm/\w+\?$"),
        ("timm/", r"^clients\.encoders: found 'timm/'; timm \S+ has no image classifier of that name$"),
        ("torchvision/ResNet18", r"has no image classifier of that name; did you mean torchvision/resnet18\?$"),
        ("torchvision/fcn_resnet50", r"torchvision \S+ has no image classifier of that name"),
        ("tim/resnet18", r"^clients\.encoders: found 'tim/resnet18'; must be one of .*, timm/NAME, torchvision/NAME"),
    ],
)  # fmt: skip
def test_unknown_names(name: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        check_encoder_name(name)
    assert "\n" not in str(error.value)


def test_without_timm_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"^method\.student: found 'timm/\.\.'.*not installed.*rayfed-ssl\[timm\]'$"):
        check_encoder_name("timm/resnet18", "method.student")


@pytest.mark.parametrize(
    ("name", "config", "size", "line"),
    [
        (
            "timm/test_resnet",
            {"width": 0.5},
            32,
            r"^model\.width: found 0\.5; encoder 'timm/test_resnet' .*allowed: 1$",
        ),
        ("torchvision/alexnet", {}, 32, r"^data\.image_size: found 32; encoder 'torchvision/alexnet' does not take it"),
        ("timm/test_vit", {}, 100, r"^data\.image_size: found 100; encoder 'timm/test_vit' does not take it"),
    ],
)
def test_what_a_library_encoder_cannot_do(name: str, config: dict[str, float], size: int, line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        build_encoder(name, ModelConfig.model_validate(config), size)
    assert "\n" not in str(error.value)


def test_a_library_encoder_has_no_settings_of_ours() -> None:
    with pytest.raises(ValueError, match=r"^model\.dropout: found 0\.5; allowed: null, .*fedlinked_cnn"):
        check_options(["timm/test_resnet"], ModelConfig(dropout=0.5))
    check_options(["timm/test_resnet", "fedlinked_cnn"], ModelConfig(dropout=0.5))


@pytest.mark.parametrize("method", ["fedmkd", "flesd"])
def test_a_servers_student_may_be_the_one_that_has_a_key(method: str) -> None:
    alike = {"clients__encoders": "small_cnn", "model__dropout": 0.5}
    with pytest.raises(UserError, match=r"model\.dropout: found 0\.5; allowed: null, or an encoder that has it"):
        tiny(method, **alike, method__student="small_cnn")
    assert tiny(method, **alike, method__student="fedlinked_cnn").model.dropout == 0.5
