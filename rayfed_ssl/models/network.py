"""A client's network: encoder f, projector g, predictor p, and the heads of other objectives.

The objective and the method choose the heads. The encoder is built first, so a seed gives the same encoder with any
heads. ``HEADS`` is the table of heads, which other packages can extend.

Shapes: B batch, C channels, S image side, D projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.table import Table
from rayfed_ssl.models.base import Encoder, PatchEncoder
from rayfed_ssl.models.decoder import Decoder
from rayfed_ssl.models.encoders import build_encoder, encoder_patch
from rayfed_ssl.models.heads import ModelConfig, mlp
from rayfed_ssl.models.vit import PatchDecoder

ROTATIONS = 4  # 0, 90, 180, 270 degrees


@dataclass(frozen=True)
class HeadInputs:
    """What a head is built from."""

    dim: int  # dimension of the encoder's features
    config: ModelConfig
    image_size: int
    channels: int  # channels of the images
    classes: int | None  # classes of the data, or of the client's own task
    objective: Block | None  # the run's block ``objective:``, which has the keys of a third-party head
    patch: int | None = None  # the side of the encoder's patches, in pixels; None: it is no ``PatchEncoder``


Builder = Callable[[HeadInputs], nn.Module]
"""Builds a head. Its values come from torch's global generator, which the caller has seeded."""


def _projector(inputs: HeadInputs) -> nn.Module:
    return mlp(inputs.dim, inputs.config.projector)


def _calibration(inputs: HeadInputs) -> nn.Module:
    if inputs.config.calibration is None:
        raise UserError("model.calibration: found null; must be given where the head calibration is asked for")
    return nn.Linear(inputs.config.projector.dim, inputs.config.calibration)


def _predictor(inputs: HeadInputs) -> nn.Module:
    config = inputs.config
    predictor = config.resolved_predictor
    if predictor.dim != config.projection_dim:
        raise UserError(
            f"model.predictor.dim: {predictor.dim} given; it must equal the projection dimension "
            f"{config.projection_dim}"
        )
    return mlp(config.projection_dim, predictor)


def _prototypes(inputs: HeadInputs) -> nn.Module:
    config = inputs.config
    prototypes = nn.Linear(config.projection_dim, config.prototypes, bias=False)
    directions = torch.randn(config.prototypes, config.projection_dim)
    prototypes.weight = nn.Parameter(F.normalize(directions, dim=1))
    return prototypes


def _classifier(inputs: HeadInputs) -> nn.Module:
    if inputs.classes is None:
        raise ValueError("a classifier needs the number of classes")
    return nn.Sequential(nn.Dropout(inputs.config.head_dropout), nn.Linear(inputs.dim, inputs.classes))


def _rotation(inputs: HeadInputs) -> nn.Module:
    return nn.Linear(inputs.dim, ROTATIONS)


def _projected_rotation(inputs: HeadInputs) -> nn.Module:
    return nn.Linear(inputs.config.projection_dim, ROTATIONS)


def _decoder(inputs: HeadInputs) -> nn.Module:
    return Decoder(inputs.dim, inputs.config, inputs.image_size, inputs.channels)


def _patch_decoder(inputs: HeadInputs) -> nn.Module:
    if inputs.patch is None:
        raise ValueError("a decoder of patches needs an encoder that sees images in patches")
    return PatchDecoder(inputs.dim, inputs.config, inputs.patch, inputs.channels)


class Network(nn.Module):
    """Encoder f -> projector g (-> calibration) -> predictor p. Further heads are optional: prototypes of projections,
    a classifier, rotation heads of features or of projections, a decoder, a decoder of patches, and third-party heads.

    Each head is an attribute with its name in ``HEADS``. It is None if the network was built without it; the functions
    that need it raise RuntimeError then.
    """

    projector: nn.Module | None
    calibration: nn.Module | None
    prototypes: nn.Linear | None
    classifier: nn.Module | None

    def __init__(
        self, encoder_name: str, encoder: Encoder, config: ModelConfig, image_size: int, channels: int = 3
    ) -> None:
        super().__init__()
        self.encoder_name, self.config = encoder_name, config
        self.image_size, self.channels = image_size, channels
        self.encoder = encoder
        for name in HEADS:
            setattr(self, name, None)

    @property
    def dim(self) -> int:
        """The dimension of features h = f(x)."""
        return self.encoder.dim

    @property
    def projection_dim(self) -> int:
        """D, the dimension of z = g(f(x)), after the calibration layer if there is one."""
        return self.config.projection_dim

    def represent(self, images: Tensor) -> Tensor:
        """h = f(x): (B, C, S, S) -> (B, dim)."""
        return self.encoder(images)

    @property
    def patch_encoder(self) -> PatchEncoder:
        """The encoder as a ``PatchEncoder``. Raises RuntimeError if it is none."""
        if not isinstance(self.encoder, PatchEncoder):
            raise RuntimeError(f"encoder {self.encoder_name!r} cannot be shown some of an image's patches")
        return self.encoder

    def project_features(self, features: Tensor) -> Tensor:
        """g(h): (B, dim) -> (B, D), with the calibration layer if there is one."""
        z = self.through("projector", features)
        return z if self.calibration is None else self.through("calibration", z)

    def project(self, images: Tensor) -> Tensor:
        """z = g(f(x)): (B, C, S, S) -> (B, D)."""
        return self.project_features(self.represent(images))

    def predict(self, projections: Tensor) -> Tensor:
        """p(z): (B, D) -> (B, D)."""
        return self.through("predictor", projections)

    @property
    def prototype_rows(self) -> Tensor:
        """C (K, D), the prototypes of projections: a parameter. Raises RuntimeError if there are none."""
        if self.prototypes is None:
            raise RuntimeError("this network was built without prototypes")
        return self.prototypes.weight

    def classify_projected_rotation(self, images: Tensor) -> Tensor:
        """Logits of the four rotations, from projections: (B, C, S, S) -> (B, 4)."""
        return self.through("projected_rotation", self.project(images))

    def through(self, head: str, *inputs: Tensor) -> Tensor:
        """The output of a head for its inputs. Raises RuntimeError if the network was built without it."""
        module = getattr(self, head, None)
        if module is None:
            raise RuntimeError(f"this network was built without a {head}")
        outputs: Tensor = module(*inputs)
        return outputs


def _wrong(name: str, row: object) -> str:
    """What is wrong with a third-party head; empty if nothing is."""
    if not callable(row):
        return "which is not callable; must make a module from rayfed_ssl.models.network.HeadInputs"
    if not name.isidentifier() or name.startswith("_"):
        return "which is no name of an attribute; must be letters, digits and _"
    bare = Network("", Encoder(), ModelConfig(), 0)
    return "which every network has already; must be another name" if name in dir(bare) else ""


HEADS: Table[Builder] = Table(
    "head",
    "rayfed_ssl.heads",
    {
        "projector": _projector,
        "calibration": _calibration,
        "predictor": _predictor,
        "prototypes": _prototypes,
        "classifier": _classifier,
        "rotation": _rotation,
        "projected_rotation": _projected_rotation,
        "decoder": _decoder,
        "patch_decoder": _patch_decoder,
    },
    _wrong,
)


def in_order(heads: Iterable[str]) -> list[str]:
    """The heads in the order in which they are built, initialised and packed: first this package's heads, as in the
    table, then third-party heads by name, in whatever order they were loaded. Raises UserError for a head that is not
    in ``HEADS``.
    """
    wanted = frozenset(heads)
    for name in sorted(wanted - HEADS.keys()):
        raise UserError(HEADS.unknown("heads of the network", name))
    ours = [name for name in HEADS if name in wanted and HEADS.origin(name) is None]
    return [*ours, *sorted(wanted.difference(ours))]


def build_network(
    encoder: str,
    config: ModelConfig,
    image_size: int,
    *,
    heads: Iterable[str],
    classes: int | None = None,
    channels: int = 3,
    objective: Block | None = None,
) -> Network:
    """A client's network. Its values come from torch's global generator: call it within ``seeding.forked(...)``.

    Args:
        encoder: the encoder's name.
        heads: names in ``HEADS``. ``calibration`` is added to a projector if the config has it.
        classes: the number of the classifier's outputs, which only a classifier needs.
        channels: channels of the images.
        objective: the run's block ``objective:``, for heads that read it.
    Raises:
        UserError: a value of the config is not allowed, or there is no such head.
    """
    wanted = set(heads)
    if "projector" in wanted and config.calibration is not None:
        wanted.add("calibration")
    order = in_order(wanted)
    network = Network(encoder, build_encoder(encoder, config, image_size, channels), config, image_size, channels)
    patch = encoder_patch(encoder, config)
    inputs = HeadInputs(network.dim, config, image_size, channels, classes, objective, patch)
    for name in order:
        head = HEADS[name](inputs)
        if not isinstance(head, nn.Module):
            raise UserError(f"{HEADS.origin(name)}: head {name!r} is made as {type(head).__name__}; must be a module")
        setattr(network, name, head)
    return network
