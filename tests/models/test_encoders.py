"""Encoders against independently known parameter counts, torchvision, and layer-by-layer references."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked
from rayfed_ssl.models import ENCODERS, ModelConfig, build_encoder, encoder_dim
from rayfed_ssl.models.encoders import OPTIONS, encoder_patch
from rayfed_ssl.models.resnet import Projection
from rayfed_ssl.testing.tiny import tiny_run
from tests.tiny import OWN

THIN = ModelConfig(width=0.1)


@pytest.fixture(autouse=True)
def _addressed_randomness() -> Iterator[None]:
    with forked("tests", "models"):
        yield


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [4, 8, 16, 20, 32, 45, 64, 84])
def test_output_shape_or_a_clear_refusal(name: str, size: int) -> None:
    minimum = ENCODERS[name].minimum
    if size < minimum:
        with pytest.raises(UserError) as error:
            build_encoder(name, THIN, size)
        text = str(error.value)
        assert text.startswith(f"data.image_size: {size} ")
        assert name in text
        assert str(minimum) in text
        assert "\n" not in text
        return
    if (patch := encoder_patch(name, THIN)) is not None and size % patch:
        with pytest.raises(
            UserError, match=rf"^data\.image_size: found {size}; encoder '{name}' .* multiple of {patch} "
        ):
            build_encoder(name, THIN, size)
        return
    encoder = build_encoder(name, THIN, size)
    features = encoder(torch.randn(2, 3, size, size))
    assert features.shape == (2, encoder.dim)
    assert type(encoder.dim) is int
    features.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("name", ENCODERS)
def test_one_channel_is_read_as_the_sum_of_three_would_be(name: str) -> None:
    """A convolution of three channels on (x, x, x) is one of its summed filters on x."""
    colour, grey = build_encoder(name, THIN, 32), build_encoder(name, THIN, 32, channels=1)
    values = colour.state_dict()
    (first,) = [key for key, value in grey.state_dict().items() if value.shape != values[key].shape]
    grey.load_state_dict(values | {first: values[first].sum(1, keepdim=True)})
    images = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(grey.eval()(images), colour.eval()(images.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ENCODERS)
def test_minimum_is_the_smallest_size_that_works(name: str) -> None:
    family = ENCODERS[name]
    encoder = family.build(THIN, family.minimum)
    assert encoder(torch.randn(2, 3, family.minimum, family.minimum)).shape == (2, encoder.dim)


@pytest.mark.parametrize("name", ENCODERS)
def test_width_thins_and_scales_the_features(name: str) -> None:
    with torch.device("meta"):
        full, half = (build_encoder(name, ModelConfig(width=w), 32) for w in (1.0, 0.5))
        tiny = build_encoder(name, ModelConfig(width=1e-6), 32)
    assert half.dim * 2 == full.dim
    assert 0.2 < parameters(half) / parameters(full) < 0.3  # a layer between scaled widths shrinks with width squared
    assert parameters(tiny) > 0


# torchvision publishes 11,689,512, 21,797,672 and 25,557,032 parameters, of which the 1000-way classifier holds
# 513,000, 513,000 and 2,049,000; the CIFAR stem has 9 instead of 49 weights per filter pair: 3 * 64 * 40 = 7,680 fewer.
# VGG-9 with a 10-way classifier (5,130) is known from FedMA to have 3,491,530, small AlexNet (40,970) 23,272,266.
COUNTS = {
    "resnet18": 11_173_962 - 5_130,
    "resnet34": 21_797_672 - 513_000 - 7_680,
    "resnet50": 25_557_032 - 2_049_000 - 7_680,
    "resnet18_imagenet": 11_689_512 - 513_000,
    "resnet34_imagenet": 21_797_672 - 513_000,
    "resnet50_imagenet": 25_557_032 - 2_049_000,
    "vgg9": 3_491_530 - 5_130,
    "alexnet": 23_272_266 - 40_970,
    "small_cnn": 27 * 16 + 16 + 9 * (16 * 32 + 32 * 64 + 64 * 128) + 32 + 64 + 128,
    "small_cnn_bn": 27 * 16 + 16 + 9 * (16 * 32 + 32 * 64 + 64 * 128) + 32 + 64 + 128 + 2 * (16 + 32 + 64 + 128),
    # 6 convolutions a stage, one of them from the narrower stage; 9 blocks with 4 biases and a scale; the stem's bias
    "fixup_resnet20": 27 * 128 + 9 * (6 * 128**2 + 5 * 256**2 + 128 * 256 + 5 * 512**2 + 256 * 512) + 9 * 5 + 1,
    "cnn5": 9 * (3 * 64 + 64 * 192 + 192 * 384 + 384 * 256 + 256 * 128) + 64 + 192 + 384 + 256 + 128,
    "fedlinked_cnn": 9 * (3 * 64 + 64**2 + 64 * 128 + 128**2 + 128 * 256 + 256**2)
    + 2 * (64 + 128 + 256)
    + 256 * 4 * 4 * 256
    + 256,
    # timm publishes 5,717,416 for deit_tiny_patch16_224: less its classifier, positions, class token, and its patches,
    # of 16 pixels in place of 4
    "vit_tiny": 5_717_416 - 193_000 - 197 * 192 - 192 - 3 * 192 * (16**2 - 4**2),
}
DIMS = {
    "alexnet": 4096,
    "cnn5": 2048,
    "resnet50": 2048,
    "resnet50_imagenet": 2048,
    "fedlinked_cnn": 256,
    "vit_tiny": 192,
}


@pytest.mark.parametrize("name", ENCODERS)
def test_parameter_count_and_dimension(name: str) -> None:
    with torch.device("meta"):
        encoder = build_encoder(name, ModelConfig(), 32)
    assert parameters(encoder) == COUNTS[name]
    assert encoder.dim == DIMS.get(name, 128 if name.startswith("small") else 512)
    state = torch.get_rng_state()
    assert encoder_dim(name, ModelConfig(), 32) == encoder.dim
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.long
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet18_imagenet"])
def test_resnet_is_torchvisions(name: str) -> None:
    """Same parameter names, and the same output from the same weights, with or without the stem swapped."""
    theirs = getattr(torchvision.models, name.removesuffix("_imagenet"))(num_classes=10)
    theirs.fc = nn.Identity()
    if not name.endswith("_imagenet"):
        theirs.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        theirs.maxpool = nn.Identity()
    ours = build_encoder(name, ModelConfig(), 32)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_small_cnn_is_the_benchmarks_network() -> None:
    encoder = build_encoder("small_cnn", ModelConfig(), 32)
    convs = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.weight.shape[0], c.stride[0]) for c in convs] == [(16, 1), (32, 2), (64, 2), (128, 2)]
    images = torch.randn(3, 3, 32, 32)
    x = images
    for k, conv in enumerate(convs):
        x = F.relu(F.conv2d(x, conv.weight, conv.bias, stride=1 if k == 0 else 2, padding=1))
    torch.testing.assert_close(encoder(images), x.mean((2, 3)), rtol=0, atol=0)


@pytest.mark.parametrize("inputs", [4, 6, 7, 8, 13])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_shortcuts_projection_is_a_strided_convolution(inputs: int, stride: int) -> None:
    made = Projection(inputs, 2 * inputs, 1, stride, bias=False)
    images = torch.randn(16, inputs, 8, 8)
    given, other = (
        images.clone().requires_grad_(),
        images.clone().requires_grad_(),
    )  # not channels_last
    found, wanted = made(given), F.conv2d(other, made.weight, stride=stride)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    found.square().sum().backward()
    gradient = made.weight.grad
    made.weight.grad = None
    wanted.square().sum().backward()
    torch.testing.assert_close(given.grad, other.grad, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradient, made.weight.grad, rtol=1e-5, atol=1e-4)


def test_thin_resnets_train_in_the_format_that_clients_train_in() -> None:
    """Where torch's strided convolution of few channels writes past its memory, the process ends here."""
    network = build_encoder("resnet18", ModelConfig(width=0.1), 8).to(memory_format=torch.channels_last)
    for _ in range(30):
        images = torch.randn(16, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        network(images).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "name", ["small_cnn", "fixup_resnet20", "fedlinked_cnn", "vgg9", "alexnet", "cnn5", "vit_tiny"]
)
def test_without_batch_norm_a_sample_is_encoded_by_itself(name: str) -> None:
    encoder = build_encoder(name, THIN, 32).eval()
    assert not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in encoder.modules())
    assert not list(encoder.buffers())
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(encoder(x)[:1], encoder(x[:1]))


@pytest.mark.parametrize("name", ["small_cnn", "vgg9", "alexnet", "cnn5", "fedlinked_cnn"])
def test_initial_features_keep_the_signal(name: str) -> None:
    """Without normalisation PyTorch's default initialiser shrinks these features below 1e-2."""
    with forked(0, "init"):
        encoder = build_encoder(name, ModelConfig(width=0.25), 32).eval()
        features = encoder(torch.randn(16, 3, 32, 32))
    assert 0.05 < features.std(dim=0).mean() < 5


def test_fedlinked_follows_its_paper() -> None:
    encoder = build_encoder("fedlinked_cnn", ModelConfig(channels=4, representation=7, dropout=0.0), 16)
    assert encoder.dim == 7
    weights = [m for m in encoder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [w.weight.shape[0] for w in weights] == [4, 4, 8, 8, 16, 16, 7]
    images = torch.randn(2, 3, 16, 16)
    x = images
    for i in range(3):
        for conv in weights[2 * i : 2 * i + 2]:
            x = F.relu(F.conv2d(x, conv.weight, conv.bias, padding=1))
        x = F.max_pool2d(x, 2)
    expected = x.flatten(1) @ weights[6].weight.T + weights[6].bias
    torch.testing.assert_close(encoder(images), expected)
    assert (expected < 0).any()  # no activation: both signs
    rates = [m.p for m in build_encoder("fedlinked_cnn", ModelConfig(), 32).modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.36] * 3


def test_dropout_follows_the_seed_and_stops_in_eval() -> None:
    encoder = build_encoder("fedlinked_cnn", ModelConfig(width=0.1), 16)
    x = torch.randn(2, 3, 16, 16)
    drawn = []
    for purpose in ("a", "a", "b"):
        with forked(1, purpose):
            drawn.append(encoder(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(encoder.eval()(x), encoder(x))


def fixup_skip_path(network: nn.Module, images: Tensor, channels: list[int]) -> Tensor:
    """What is left when every residual branch is zero: the stem, then subsampling and zero channels."""
    x = F.relu(F.conv2d(images, network.conv1.weight, padding=1))
    for c in channels[1:]:
        x = x[:, :, ::2, ::2]
        x = torch.cat([x, torch.zeros(x.shape[0], c - x.shape[1], *x.shape[2:])], dim=1)
    return x.mean((2, 3))


@pytest.mark.parametrize(("width", "channels"), [(0.0625, [8, 16, 32]), (0.07, [9, 18, 36])])
def test_fixup_starts_as_its_skip_path(width: float, channels: list[int]) -> None:
    network = build_encoder("fixup_resnet20", ModelConfig(width=width), 16)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(network(x), fixup_skip_path(network, x, channels))
    with torch.no_grad():
        network.blocks[4].conv2.weight.normal_()
    assert not torch.allclose(network(x), fixup_skip_path(network, x, channels))


def test_fixup_initialisation() -> None:
    """He's deviation sqrt(2 / fan_out), times 9^(-1/2) in the first layer of each of the 9 branches."""
    with forked(0, "fixup"):
        network = build_encoder("fixup_resnet20", ModelConfig(width=0.5), 16)
    assert len(network.blocks) == 9
    for block in network.blocks:
        outputs = block.conv1.weight.shape[0]
        expected = (2 / (9 * outputs)) ** 0.5 / 3
        assert block.conv1.weight.std().item() == pytest.approx(expected, rel=0.05)
        assert not block.conv2.weight.any()
        assert block.scale.item() == 1
        assert not any(b.item() for b in (block.bias1a, block.bias1b, block.bias2a, block.bias2b))


@pytest.mark.parametrize("index", [2, 3])  # a block that keeps the shape, and one that halves it
def test_fixup_block_with_every_scalar_in_use(index: int) -> None:
    block = build_encoder("fixup_resnet20", ModelConfig(width=0.0625), 16).blocks[index]
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_()
    x = torch.randn(2, block.conv1.weight.shape[1], 8, 8)
    stride = 1 if index == 2 else 2
    branch = F.conv2d(x + block.bias1a, block.conv1.weight, stride=stride, padding=1) + block.bias1b
    branch = F.conv2d(F.relu(branch) + block.bias2a, block.conv2.weight, padding=1) * block.scale + block.bias2b
    skip = x if index == 2 else (x + block.bias1a)[:, :, ::2, ::2]
    if index == 3:
        skip = torch.cat([skip, torch.zeros_like(skip)], dim=1)
    torch.testing.assert_close(block(x), F.relu(branch + skip))


@pytest.mark.parametrize("name", ENCODERS)
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    states = []
    for seed in (1, 1, 2):
        with forked(seed, "init"):
            states.append(torch.cat([p.detach().flatten() for p in build_encoder(name, THIN, 32).parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_unknown_encoder_names_the_choices_and_the_closest() -> None:
    with pytest.raises(UserError, match=r"clients\.encoders: found 'resnet19'; .*; did you mean resnet18\?$"):
        build_encoder("resnet19", ModelConfig(), 32)
    with pytest.raises(UserError, match=r"'zzz'; must be one of small_cnn, .*, timm/NAME, torchvision/NAME$"):
        build_encoder("zzz", ModelConfig(), 32)


@pytest.mark.parametrize("key", OPTIONS)
def test_a_setting_that_no_encoder_of_the_run_has_is_refused(key: str) -> None:
    given = {f"model.{key}": 0.5 if key == "dropout" else 8, "clients.count": 2}
    (owner,) = [name for name, family in ENCODERS.items() if key in family.options]
    for student in ({}, {"method.student": "small_cnn"}):
        changes = {**OWN["flesd"], **given, **student, "clients.encoders": "small_cnn_bn"}
        with pytest.raises(UserError, match=rf"model\.{key}: found [\d.]+; allowed: null, .*\({owner}\)"):
            tiny_run("flesd", changes)
    for mixed in ({"clients.encoders": ["small_cnn", owner]}, {"method.student": owner}):
        config = tiny_run("flesd", {**OWN["flesd"], "method.student": "small_cnn", **given, **mixed})
        names = {config.clients.encoder(c) for c in range(2)} | {owner}
        built = {name: build_encoder(name, config.model, 16) for name in names}
        plain = build_encoder(owner, ModelConfig(width=config.model.width), 16)
        assert repr(built[owner]) != repr(plain)
        assert len(built) == 2
