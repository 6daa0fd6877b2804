"""Encoders of timm and torchvision: ``timm/resnet18``, ``torchvision/vit_b_16``.

Only the architectures are used. Values are initialised anew, and nothing is downloaded; ``model.start`` loads values.
The classifier is removed: an encoder maps images (B, C, S, S) to the classifier's input, features (B, dim).
``model.width`` must be 1. For more than three channels, the first convolution of a torchvision network keeps its
weights for the first three channels, and those for the others are drawn with the same standard deviation.

Below 96 px, two families get a stem for small images; all others keep the library's stem:

- ResNets (the class ``ResNet`` of timm and of torchvision): the first convolution has stride 1, a 7x7 convolution
  becomes 3x3, and there is no max-pool. This is the stem of He et al. 2016, section 4.2.
- Vision transformers with one patch size: the patch is the largest that divides the side into 8 to 16 patches. At 32 px
  ``timm/vit_tiny_patch16_224`` has patches of 4 px. From 96 px on, the patch is that of the name.

A network that is built for a fixed image size is built for S.
On a GPU, the gradient of the pooling in torchvision's AlexNet and VGGs is not deterministic.

Shapes: B batch, C channels, S image side.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.models.base import Encoder, probe

_models = LazyModule("torchvision.models")
SMALL = 96  # px; smaller images have stems of their own
PATCHES = range(8, 17)  # allowed numbers of patches along the side of a small image
PATCHED = ("beit", "cait", "deit", "eva", "vision_transformer", "vision_transformer_relpos")  # timm's modules of ViTs
HEADS = ("fc", "classifier", "head", "heads")  # attributes of torchvision's networks that hold the classifier
NO_CLASSIFIER_BESIDE = {"googlenet": {"aux_logits": False}, "inception_v3": {"aux_logits": False}}
INITIALISED = {"googlenet": {"init_weights": True}, "inception_v3": {"init_weights": True}}


@dataclass(frozen=True)
class Made:
    """A library's network without its classifier, the arguments that built it, and its stem in words."""

    network: nn.Module
    arguments: Mapping[str, object] = field(default_factory=dict)
    stem: str = "the library's"


class Library(NamedTuple):
    """What this module needs of a library."""

    names: Callable[[], tuple[str, ...]]  # the names of its image classifiers
    make: Callable[[str, int, int], Made]  # (name, S, C) -> the network


class LibraryEncoder(Encoder):
    """A library's network as an encoder. The names of its values are the library's, after ``body.``."""

    def __init__(self, made: Made, dim: int, library: str) -> None:
        super().__init__()
        self.body = made.network
        self.dim = dim
        self.made = {"library": library, "arguments": dict(made.arguments), "stem": made.stem}

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.body(images)
        return features


# -- names -------------------------------------------------------------------------------------------------------------


def is_library_name(name: str) -> bool:
    """Whether ``name`` has the form ``timm/..`` or ``torchvision/..``."""
    return name.split("/")[0] in LIBRARIES and "/" in name


def check_library_name(name: str, key: str) -> None:
    """Raise UserError if the library is not installed, or has no such image classifier."""
    library, _, model = name.partition("/")
    if library == "timm":
        _timm(key)
    known = LIBRARIES[library].names()
    if model not in known:
        near = difflib.get_close_matches(model.lower(), known, n=1, cutoff=0.6)
        hint = f"; did you mean {library}/{near[0]}?" if near else ""
        raise UserError(f"{key}: found {name!r}; {_version(library)} has no image classifier of that name{hint}")


def _version(library: str) -> str:
    return f"{library} {importlib.import_module(library).__version__}"


def _timm(key: str = "clients.encoders") -> ModuleType:
    """The module timm. It is imported only if a run names one of its models, because that takes seconds."""
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{key}: found 'timm/..', which needs a package that is not installed ({error.name}): "
            "pip install 'rayfed-ssl[timm]'"
        ) from None


@lru_cache(maxsize=1)
def _timm_names() -> tuple[str, ...]:
    return tuple(_timm().list_models())


@lru_cache(maxsize=1)
def _torchvision_names() -> tuple[str, ...]:
    return tuple(_models.list_models(module=sys.modules["torchvision.models"]))


# -- building ----------------------------------------------------------------------------------------------------------


def library_encoder(name: str, image_size: int, channels: int) -> LibraryEncoder:
    """The encoder ``timm/NAME`` or ``torchvision/NAME`` for images (B, channels, image_size, image_size).

    Its ``dim`` is found by passing two images of zeros through it.

    Raises:
        UserError: the network does not take images of this size, or does not return one feature vector per image.
    """
    library, _, model = name.partition("/")
    refused = f"data.image_size: found {image_size}; encoder {name!r} does not take it"
    try:
        made = LIBRARIES[library].make(model, image_size, channels)
        features = probe(made.network, image_size, channels)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(f"{refused} ({in_one_line(error, 160)}); allowed: another size or encoder") from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(f"clients.encoders: found {name!r}, which does not give one feature vector per image")
    return LibraryEncoder(made, features.shape[1], _version(library))


def patch_side(image_size: int) -> int:
    """The largest patch side that divides a small image's side into 8 to 16 patches. Raises ValueError if there is
    none.
    """
    fitting = [image_size // count for count in PATCHES if image_size % count == 0]
    if not fitting:
        raise ValueError("no patch size divides the side into 8 to 16 patches")
    return max(fitting)


def _make_timm(name: str, image_size: int, channels: int) -> Made:
    timm = _timm()
    arguments: dict[str, Any] = {}
    if timm.get_pretrained_cfg(name).fixed_input_size:
        arguments["img_size"] = image_size
    small, stem = image_size < SMALL, "the library's"
    if small and timm.models.is_model_in_modules(name, PATCHED):
        arguments["patch_size"] = patch_side(image_size)
        stem = f"patches of {arguments['patch_size']} px"
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **arguments)
    if small and isinstance(network, timm.models.ResNet):
        stem = without_stride(network)
    return Made(network, arguments, stem)


def _make_torchvision(name: str, image_size: int, channels: int) -> Made:
    options = NO_CLASSIFIER_BESIDE.get(name, {}) | INITIALISED.get(name, {})
    arguments: dict[str, Any] = {}
    stem = "the library's"
    if name.startswith("vit_"):
        patch = patch_side(image_size) if image_size < SMALL else None
        network, arguments = _torchvision_vit(name, image_size, patch)
        stem = stem if patch is None else f"patches of {patch} px"
    else:
        if name.startswith("maxvit"):
            arguments["input_size"] = [image_size, image_size]
        network = _models.get_model(name, weights=None, **options, **arguments)
    _drop_classifier(network)
    if channels != 3:
        _first_convolution(network, channels)
    if image_size < SMALL and isinstance(network, _models.ResNet):
        stem = without_stride(network)
    return Made(network, arguments, stem)


def _torchvision_vit(name: str, image_size: int, patch: int | None) -> tuple[nn.Module, dict[str, Any]]:
    """(network, arguments): the vision transformer ``name`` with another image size, and with another patch if one is
    given. torchvision's function for ``name`` fixes the patch, so the other sizes are read from a network that it
    builds on the meta device.
    """
    with torch.device("meta"):
        named = _models.get_model(name, weights=None)
    arguments = {"image_size": image_size, "patch_size": named.patch_size if patch is None else patch}
    network = _models.VisionTransformer(
        **arguments,
        num_layers=len(named.encoder.layers),
        num_heads=named.encoder.layers[0].num_heads,
        hidden_dim=named.hidden_dim,
        mlp_dim=named.mlp_dim,
    )
    return network, arguments


def without_stride(network: nn.Module) -> str:
    """Change a ResNet's stem in place to the one for small images, and return a description of it."""
    stem: nn.Module = network.get_submodule("conv1")
    first = stem if isinstance(stem, nn.Conv2d) else next(m for m in stem.modules() if isinstance(m, nn.Conv2d))
    first.stride = (1, 1)
    if first.kernel_size == (7, 7):
        replacement = nn.Conv2d(first.in_channels, first.out_channels, 3, 1, padding=1, bias=first.bias is not None)
        nn.init.kaiming_normal_(replacement.weight, mode="fan_out", nonlinearity="relu")  # as both libraries do
        network.conv1 = replacement
    network.maxpool = nn.Identity()
    return "3x3 convolution with stride 1, no max-pool"


def _drop_classifier(network: nn.Module) -> None:
    """Replace the last linear layer of the classifier (in SqueezeNet, the last convolution) by the identity."""
    head = next(name for name in HEADS if hasattr(network, name))
    layers = [(name, layer) for name, layer in network.named_modules() if f"{name}.".startswith(f"{head}.")]
    linear = [name for name, layer in layers if isinstance(layer, nn.Linear)]
    last_name = (linear or [name for name, layer in layers if isinstance(layer, nn.Conv2d)])[-1]
    parent, _, attribute = last_name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())


def _first_convolution(network: nn.Module, channels: int) -> None:
    """Replace the first convolution by one that reads ``channels`` channels. It keeps the initial weights of the
    channels that the old one had; those of further channels are drawn from a normal distribution with the standard
    deviation of the ones kept.
    """
    name, first = next((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
    window: dict[str, Any] = {key: getattr(first, key) for key in ("kernel_size", "stride", "padding")}
    replacement = nn.Conv2d(channels, first.out_channels, bias=first.bias is not None, **window)
    with torch.no_grad():
        kept = first.weight[:, :channels]
        replacement.weight[:, : kept.shape[1]].copy_(kept)
        if channels > kept.shape[1]:
            replacement.weight[:, kept.shape[1] :].normal_(std=float(kept.std()))
        if first.bias is not None and replacement.bias is not None:
            replacement.bias.copy_(first.bias)
    parent, _, attribute = name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, replacement)


LIBRARIES = {
    "timm": Library(_timm_names, _make_timm),
    "torchvision": Library(_torchvision_names, _make_torchvision),
}
