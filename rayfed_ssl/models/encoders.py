"""The table of encoders and the plain convolutional ones among them.

Every encoder maps (B, C, S, S) to (B, dim), where S is ``data.image_size`` and C is ``data.channels``. The encoders of
the table scale all their channels by ``model.width``. Encoders of timm and torchvision are chosen by other names (see
``library``).

Shapes: B batch, C channels, S image side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from numbers import Integral
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from rayfed_ssl.base.choice import NameOf
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked
from rayfed_ssl.base.table import Table
from rayfed_ssl.base.text import printable
from rayfed_ssl.models.base import Encoder, PatchEncoder, device_of, probe
from rayfed_ssl.models.fixup import fixup_resnet20
from rayfed_ssl.models.heads import ModelConfig
from rayfed_ssl.models.library import LIBRARIES, check_library_name, is_library_name, library_encoder
from rayfed_ssl.models.resnet import resnet
from rayfed_ssl.models.vit import vit_patch, vit_tiny

OPTIONS = ("dropout", "representation", "channels", "patch")  # keys of the model block that only some encoders have


class Family(NamedTuple):
    """A row of the table of encoders."""

    build: Callable[[ModelConfig, int, int], Encoder]  # (the block ``model:``, S, C) -> the encoder
    minimum: int  # the smallest S that it takes
    options: tuple[str, ...] = ()  # those of ``OPTIONS`` that it has
    patch: Callable[[ModelConfig], int] | None = None  # P of a ``PatchEncoder``, which divides S and is smaller


class Stack(Encoder):
    """A plain feed-forward encoder: convolutional ``features``, then a ``tail`` that ends in (B, dim)."""

    def __init__(self, features: list[nn.Module], tail: list[nn.Module], dim: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.tail = nn.Sequential(*tail)
        self.dim = dim
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.tail(self.features(images))
        return features


class GlobalAverage(nn.Module):
    """(B, C, H, W) -> (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def _conv(inputs: int, outputs: int, stride: int = 1, *, batch_norm: bool = False) -> list[nn.Module]:
    """A 3x3 convolution, then batch normalisation if ``batch_norm``, then a ReLU."""
    norm: list[nn.Module] = [nn.BatchNorm2d(outputs)] if batch_norm else []
    return [nn.Conv2d(inputs, outputs, 3, stride, padding=1), *norm, nn.ReLU(inplace=True)]


def _pooled_flat(side: int, target: int) -> list[nn.Module]:
    """Average-pool (B, C, side, side) to (target, target) and flatten.

    The window has a fixed size, because the gradient of adaptive pooling is not deterministic on a GPU.
    """
    stride = side // target
    window = side - (target - 1) * stride
    pool: list[nn.Module] = [nn.AvgPool2d(window, stride)] if side != target else []
    return [*pool, nn.Flatten()]


def small_cnn(config: ModelConfig, image_size: int, channels: int = 3, *, batch_norm: bool) -> Stack:
    """Four 3x3 convolutions (16, 32, 64, 128 channels; strides 1, 2, 2, 2) and a global average: 128-d, for CPUs."""
    widths = [channels, *(config.scaled(c) for c in (16, 32, 64, 128))]
    features: list[nn.Module] = []
    for i, stride in enumerate((1, 2, 2, 2)):
        features += _conv(widths[i], widths[i + 1], stride, batch_norm=batch_norm)
    return Stack(features, [GlobalAverage()], widths[-1])


def vgg9(config: ModelConfig, image_size: int, channels: int = 3) -> Stack:
    """VGG-9 for small images without its classifier: six convolutions (32 to 256 channels), three max-pools, two
    fully connected layers; 512-d. Differs: images above 32 px are average-pooled to the 4x4 map that 32 px give.
    """
    a, b, c, d = (config.scaled(n) for n in (32, 64, 128, 256))
    dim = config.scaled(512)
    pool = nn.MaxPool2d(2)
    features = [
        *_conv(channels, a),
        *_conv(a, b),
        pool,
        *_conv(b, c),
        *_conv(c, c),
        pool,
        *_conv(c, d),
        *_conv(d, d),
        pool,
    ]
    tail = [*_pooled_flat(image_size // 8, 4), nn.Linear(16 * d, dim), nn.ReLU(inplace=True)]
    return Stack(features, [*tail, nn.Linear(dim, dim), nn.ReLU(inplace=True)], dim)


def alexnet(config: ModelConfig, image_size: int, channels: int = 3) -> Stack:
    """AlexNet (Krizhevsky et al. 2012, channels of 2014) for small images without its classifier; 4096-d.

    Differs: 3x3 convolutions throughout, stride 2 in the first, 2x2 max-pools, no dropout; images above 32 px are
    average-pooled to the 2x2 map that 32 px give.
    """
    a, b, c, d = (config.scaled(n) for n in (64, 192, 384, 256))
    dim = config.scaled(4096)
    pool = nn.MaxPool2d(2)
    features = [*_conv(channels, a, 2), pool, *_conv(a, b), pool, *_conv(b, c), *_conv(c, d), *_conv(d, d), pool]
    side = (image_size + 1) // 2 // 2 // 2 // 2
    tail = [*_pooled_flat(side, 2), nn.Linear(4 * d, dim), nn.ReLU(inplace=True)]
    return Stack(features, [*tail, nn.Linear(dim, dim), nn.ReLU(inplace=True)], dim)


def cnn5(config: ModelConfig, image_size: int, channels: int = 3) -> Stack:
    """FedCA's "5-layer CNN (AlexNet style)" with a 2048-d feature h (Zhang et al. 2020).

    The paper gives no channels: here AlexNet's 64, 192, 384, 256 and a last layer of 128, whose 4x4 map is h.
    """
    a, b, c, d, e = (config.scaled(n) for n in (64, 192, 384, 256, 128))
    pool = nn.MaxPool2d(2)
    features = [*_conv(channels, a), pool, *_conv(a, b), pool, *_conv(b, c), *_conv(c, d), *_conv(d, e), pool]
    return Stack(features, _pooled_flat(image_size // 8, 4), 16 * e)


def fedlinked_cnn(config: ModelConfig, image_size: int, channels: int = 3) -> Stack:
    """FedLinked's network: three blocks conv-ReLU-conv-ReLU-max-pool-dropout with c, 2c, 4c filters, then Linear(r).

    c = 64, r = 256, p = 0.36 are the paper's for CIFAR-10 (Table 4.4). ``model.width`` scales the filters, and r too
    unless ``model.representation`` sets it. No activation follows Linear(r).
    """
    dropout = 0.36 if config.dropout is None else config.dropout
    inputs, features = channels, []
    for i in range(3):
        outputs = config.scaled((config.channels or 64) * 2**i)
        features += [*_conv(inputs, outputs), *_conv(outputs, outputs), nn.MaxPool2d(2), nn.Dropout(dropout)]
        inputs = outputs
    dim = config.representation or config.scaled(256)
    return Stack(features, [nn.Flatten(), nn.Linear(inputs * (image_size // 8) ** 2, dim)], dim)


_resnet18 = partial(resnet, block="basic", depths=(2, 2, 2, 2))
_resnet34 = partial(resnet, block="basic", depths=(3, 4, 6, 3))
_resnet50 = partial(resnet, block="bottleneck", depths=(3, 4, 6, 3))

_ROWS = {
    "small_cnn": Family(partial(small_cnn, batch_norm=False), minimum=8),
    "small_cnn_bn": Family(partial(small_cnn, batch_norm=True), minimum=8),
    "resnet18": Family(partial(_resnet18, stem="cifar"), minimum=8),
    "resnet34": Family(partial(_resnet34, stem="cifar"), minimum=8),
    "resnet50": Family(partial(_resnet50, stem="cifar"), minimum=8),
    "resnet18_imagenet": Family(partial(_resnet18, stem="imagenet"), minimum=32),
    "resnet34_imagenet": Family(partial(_resnet34, stem="imagenet"), minimum=32),
    "resnet50_imagenet": Family(partial(_resnet50, stem="imagenet"), minimum=32),
    "fixup_resnet20": Family(fixup_resnet20, minimum=4),
    "vgg9": Family(vgg9, minimum=32),
    "alexnet": Family(alexnet, minimum=32),
    "cnn5": Family(cnn5, minimum=32),
    "fedlinked_cnn": Family(fedlinked_cnn, minimum=8, options=("dropout", "representation", "channels")),
    "vit_tiny": Family(vit_tiny, minimum=8, options=("patch",), patch=vit_patch),
}
ENCODERS: Table[Family] = Table(
    "encoder", "rayfed_ssl.encoders", _ROWS,
    lambda name, row: "" if isinstance(row, Family) else "which is no rayfed_ssl.models.Family",
)  # fmt: skip


def build_encoder(name: str, config: ModelConfig, image_size: int, channels: int = 3) -> Encoder:
    """The encoder ``name`` for images (B, channels, image_size, image_size).

    Raises:
        UserError: the name is unknown, or the encoder does not take this image size or width. Also if a third-party
            encoder cannot be built, for whatever reason, or does not map such images to features (B, dim).
    """
    check_encoder(name, config, image_size)
    origin = ENCODERS.origin(name)
    try:
        encoder = _family(name).build(config, image_size, channels)
    except UserError:
        raise
    except Exception as error:
        if origin is None:
            raise
        shape = f"{channels} x {image_size} x {image_size}"
        raise UserError(
            f"clients.encoders: {name!r} ({origin}) cannot be built for {shape} ({_reason(error)}); mend it there"
        ) from error
    if origin is not None and (wrong := _wrong(encoder, channels, image_size, encoder_patch(name, config))):
        raise UserError(f"clients.encoders: {name!r} ({origin}) gives {wrong}")
    return encoder


def encoder_dim(name: str, config: ModelConfig, image_size: int, channels: int = 3) -> int:
    """The dimension of an encoder's features. The encoder is built on the meta device, without values. If that fails,
    as for a third-party encoder that computes with its values, it is built with values from a generator of its own.

    Raises:
        UserError: see :func:`build_encoder`.
    """
    try:
        with torch.device("meta"):
            return build_encoder(name, config, image_size, channels).dim
    except UserError:
        with forked("encoder_dim"):
            return build_encoder(name, config, image_size, channels).dim


def _wrong(made: object, channels: int, image_size: int, patch: int | None) -> str:
    """What is wrong with a third-party encoder; empty if nothing is. ``patch`` is the side that its row says."""
    if not isinstance(made, nn.Module):
        return f"{type(made).__name__}; must be a rayfed_ssl.models.base.Encoder"
    dim = getattr(made, "dim", None)
    if isinstance(dim, bool) or not isinstance(dim, Integral) or int(dim) < 1:
        return f"an encoder with dim={printable(repr(dim), 40)}; must be the number of its features, from 1 on"
    if patch is not None and not (isinstance(made, PatchEncoder) and made.patch == patch):
        return f"{type(made).__name__}; must be a rayfed_ssl.models.PatchEncoder with patch={patch}, as its row says"
    if device_of(made).type == "meta":
        return ""  # it was built without values, only to learn its dim
    shape = (2, channels, image_size, image_size)
    try:
        features = probe(made, image_size, channels)
    except Exception as error:
        return f"no features of images {shape} ({_reason(error)}); mend it there"
    found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    return "" if found == (2, int(dim)) else f"{found} for images {shape}; must be {(2, int(dim))}, by its dim"


def _reason(error: Exception) -> str:
    """The error's class and message in one line."""
    return printable(" ".join(f"{type(error).__name__}: {error}".split()))


EncoderName = Annotated[str, NameOf(lambda: ENCODERS, " or ".join(f"{library}/NAME" for library in LIBRARIES))]
"""A text that :func:`check_encoder_name` accepts."""


def check_encoder_name(name: str, key: str = "clients.encoders") -> None:
    """Raise UserError for an unknown name, or one whose library is not installed. The line suggests a similar name."""
    if is_library_name(name):
        check_library_name(name, key)
    elif name not in ENCODERS:
        line, hint, guess = ENCODERS.unknown(key, name).partition("; did you mean")
        raise UserError(f"{line}, {', '.join(f'{library}/NAME' for library in LIBRARIES)}{hint}{guess}")


def check_encoder(name: str, config: ModelConfig, image_size: int) -> None:
    """Raise the UserError that building this encoder would raise, without building it. Whether the encoder of a library
    takes the image size shows only when it is built.
    """
    check_encoder_name(name)
    family = _family(name)
    if is_library_name(name) and config.width != 1:
        raise UserError(f"model.width: found {config.width:g}; encoder {name!r} has one width, allowed: 1")
    if image_size < family.minimum:
        raise UserError(
            f"data.image_size: {image_size} is too small for encoder {name!r}; allowed: {family.minimum} or more"
        )
    if family.patch is not None and (image_size % (side := family.patch(config)) or image_size == side):
        raise UserError(
            f"data.image_size: found {image_size}; encoder {name!r} cuts images into patches of {side} px; allowed: a "
            f"multiple of {side} from {2 * side} on"
        )


def check_options(names: Iterable[str], config: ModelConfig) -> None:
    """Raise ValueError for a key of ``OPTIONS`` that is given, although none of the encoders ``names`` has it. It is
    enough that one of them has it.
    """
    has = {key for name in names for key in _family(name).options}
    for key in OPTIONS:
        if (value := getattr(config, key)) is not None and key not in has:
            owners = " or ".join(name for name, family in ENCODERS.items() if key in family.options)
            raise ValueError(f"model.{key}: found {value}; allowed: null, or an encoder that has it ({owners})")


def encoder_patch(name: str, config: ModelConfig) -> int | None:
    """The side of an encoder's patches, in pixels; None if it is no ``PatchEncoder``."""
    patch = _family(name).patch
    return None if patch is None else patch(config)


def check_patches(names: Iterable[str], config: ModelConfig, objective: str) -> None:
    """Raise ValueError if the objective shows encoders a part of an image's patches, and one of ``names`` is no
    ``PatchEncoder``.
    """
    for name in names:
        if encoder_patch(name, config) is None:
            able = ", ".join(known for known, family in ENCODERS.items() if family.patch is not None)
            raise ValueError(
                f"clients.encoders: found '{name}'; the objective {objective} shows the encoder some of an image's "
                f"patches; allowed: {able}"
            )


def _family(name: str) -> Family:
    """The row of an encoder. A library's encoder gets a row without options; the smallest image that it takes shows
    only when it is built.
    """
    if is_library_name(name):
        return Family(lambda config, image_size, channels: library_encoder(name, image_size, channels), minimum=1)
    return ENCODERS[name]
