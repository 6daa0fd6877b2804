"""The block ``model:``, and the shapes of heads on an encoder: projector g and predictor p.

Shapes: B batch, D embedding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator
from torch import nn

from rayfed_ssl.base.choice import Short
from rayfed_ssl.base.schema import Block


class HeadConfig(Block):
    """A multilayer perceptron: ``hidden`` layers with ReLU, then a linear layer to ``dim``."""

    dim: PositiveInt
    """Width of the output."""
    hidden: tuple[PositiveInt, ...] = ()
    """Width of each hidden layer."""
    batch_norm: Literal["none", "hidden", "all"] = "none"
    """Where there is BatchNorm: ``hidden``, before each ReLU; ``all``, also on the output, without scale and shift
    there. If a run does not say, its objective does: ``all`` for ``simsiam``.
    """
    bias: bool = True
    """Whether linear layers have a bias."""


# The heads of the papers, which YAML may name: ``model: {projector: fedsc}``. Their input is the encoder's feature
# (512-d for a ResNet-18, 2048-d in FedCA).
HEAD_SHAPES: dict[str, HeadConfig] = {
    "flesd": HeadConfig(hidden=(512,), dim=128),
    "fedsc": HeadConfig(hidden=(1024,), dim=512),  # projector and, in its BYOL family, predictor
    "easyfl": HeadConfig(hidden=(4096,), dim=2048, batch_norm="hidden"),  # both heads of FedBYOL, FedU and FedEMA
    "fedca": HeadConfig(hidden=(2048,), dim=128),  # the paper says "MLP to 128"; as in SimCLR, hidden is as wide as h
    "fedx": HeadConfig(hidden=(512,), dim=256),
    "fedx_predictor": HeadConfig(hidden=(256,), dim=256),
    "orchestra": HeadConfig(hidden=(512,), dim=512, batch_norm="all", bias=False),
    "orchestra_byol": HeadConfig(hidden=(1024,), dim=512, batch_norm="hidden"),  # both heads of its authors' BYOL
}


def _named_head(value: Any) -> Any:
    """The head that ``value`` names, if it is a text; else ``value``."""
    if not isinstance(value, str):
        return value
    if value not in HEAD_SHAPES:
        raise ValueError(f"unknown head {value!r}; allowed: {', '.join(HEAD_SHAPES)}, or dim, hidden, batch_norm, bias")
    return HEAD_SHAPES[value]


Head = Annotated[HeadConfig, BeforeValidator(_named_head), Short(lambda: HEAD_SHAPES)]


class PatchDecoderConfig(Block):
    """The transformer that reconstructs masked patches (``mae``). The defaults are to ``vit_tiny`` what He et al. 2022
    take for their encoder: half as wide, a third as deep, heads of 32.
    """

    dim: Annotated[PositiveInt, Field(multiple_of=4)] = 96
    """Width of its tokens, a multiple of 4."""
    layers: PositiveInt = 4
    """Number of its blocks."""
    heads: PositiveInt = 3
    """Attention heads of each block; they share the width evenly."""

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.dim % self.heads:
            raise ValueError(f"heads: found {self.heads}; must divide dim={self.dim}")
        return self


class StartConfig(Block):
    """Values that replace the encoder's initial ones; null: none. A path alone is short for ``{path: PATH}``."""

    path: Path
    """``FILE.safetensors``, ``FILE.pth``, or a finished run's folder."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Digest that the file or encoder must have; a run writes it down; null: any."""


def _named_start(value: Any) -> Any:
    """The block with ``value`` as its path, if it is a path or a text; else ``value``."""
    return {"path": value} if isinstance(value, str | Path) else value


Start = Annotated[StartConfig, BeforeValidator(_named_start), Short()]


class ModelConfig(Block):
    """What all clients' networks have in common, whatever their encoders."""

    width: float = Field(1.0, gt=0)
    """Multiplies the channels of every encoder."""
    projector: Head = HeadConfig(hidden=(128,), dim=64)
    """g, from features to projections, layer by layer or by the name of a paper's."""
    predictor: Head | None = None
    """p, from projections to predictions; null: the projector's shape again."""
    calibration: PositiveInt | None = None
    """A linear layer after the projector maps every architecture to so many dimensions, and the objective works there
    (FedFoA, section 3.5); null: none.
    """
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of ``fedlinked_cnn``; null: the paper's value."""
    representation: PositiveInt | None = None
    """Width of ``fedlinked_cnn``'s features, r; null: the paper's value."""
    channels: PositiveInt | None = None
    """Channels of ``fedlinked_cnn``'s first block, c; null: the paper's value."""
    head_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the classifier."""
    initial: Literal["common", "own"] = "common"
    """One draw of values for all clients of an architecture, or one for each client; where it is not given, the method
    says which: ``own`` where clients' models are independently designed.
    """
    start: Start | None = None
    prototypes: PositiveInt = 512
    """K, how many prototypes there are (SwAV, DINO)."""
    patch: Annotated[int, Field(ge=2)] | None = None
    """Side of ``vit_tiny``'s patches, in pixels; null: 4."""
    patch_decoder: PatchDecoderConfig = PatchDecoderConfig()
    """The decoder of masked patches (``mae``)."""

    def scaled(self, channels: int) -> int:
        """``channels`` times ``width``, rounded, but at least 4."""
        return max(4, round(channels * self.width))

    @property
    def projection_dim(self) -> int:
        """D, the dimension of the space in which the objective works."""
        return self.calibration or self.projector.dim

    @property
    def resolved_predictor(self) -> HeadConfig:
        """The predictor, from D to D dimensions. If none is given, it has hidden layers like the projector's, and a
        last layer without BatchNorm.
        """
        if self.predictor is not None:
            return self.predictor
        norm: Literal["none", "hidden"] = "none" if self.projector.batch_norm == "none" else "hidden"
        return self.projector.model_copy(update={"dim": self.projection_dim, "batch_norm": norm})


def mlp(in_dim: int, config: HeadConfig) -> nn.Sequential:
    """A multilayer perceptron (B, in_dim) -> (B, config.dim). Without hidden layers it is one linear layer.

    With ``batch_norm="hidden"`` there is BatchNorm before each ReLU; with ``all`` there is also one of the output,
    without scale and shift (SimSiam, Chen and He 2021, section 4.3).
    """
    layers: list[nn.Module] = []
    for width in config.hidden:
        layers.append(nn.Linear(in_dim, width, bias=config.bias))
        if config.batch_norm != "none":
            layers.append(nn.BatchNorm1d(width))
        layers.append(nn.ReLU(inplace=True))
        in_dim = width
    layers.append(nn.Linear(in_dim, config.dim, bias=config.bias))
    if config.batch_norm == "all":
        layers.append(nn.BatchNorm1d(config.dim, affine=False))
    return nn.Sequential(*layers)
