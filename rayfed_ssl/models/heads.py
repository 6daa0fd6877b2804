"""Model configuration and the heads that stand on an encoder: projector g, predictor p and what they may look like.

Shapes: B batch, D embedding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt
from torch import nn

from rayfed_ssl.base.schema import Block


class HeadConfig(Block):
    """A multilayer perceptron: ``hidden`` layers with ReLU, then a linear layer to ``dim``."""

    dim: PositiveInt
    hidden: tuple[PositiveInt, ...] = ()
    batch_norm: Literal["none", "hidden", "all"] = "none"
    bias: bool = True


# The heads of the papers, usable by name in YAML: ``model: {projector: fedsc}``. Their input is the encoder's feature
# (512 of a ResNet-18, 2048 in FedCA).
HEADS: dict[str, HeadConfig] = {
    "flesd": HeadConfig(hidden=(512,), dim=128),
    "fedsc": HeadConfig(hidden=(1024,), dim=512),  # projector and, in its BYOL family, predictor
    "easyfl": HeadConfig(hidden=(4096,), dim=2048, batch_norm="hidden"),  # FedBYOL, FedU, FedEMA; predictor likewise
    "fedca": HeadConfig(hidden=(2048,), dim=128),  # the paper says "MLP to 128"; the hidden width is SimCLR's: dim of h
    "fedx": HeadConfig(hidden=(512,), dim=256),
    "fedx_predictor": HeadConfig(hidden=(256,), dim=256),
    "orchestra": HeadConfig(hidden=(1024,), dim=512, batch_norm="hidden"),
}


def _named_head(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in HEADS:
        raise ValueError(f"unknown head {value!r}; allowed: {', '.join(HEADS)}, or dim, hidden, batch_norm, bias")
    return HEADS[value]


Head = Annotated[HeadConfig, BeforeValidator(_named_head)]


class StartConfig(Block):
    """Values to begin with; ``model: {start: PATH}`` is short for ``{start: {path: PATH}}``."""

    path: Path  # FILE.safetensors, FILE.pth, or a finished run's folder
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None  # of what is there; a run writes it down


def _named_start(value: Any) -> Any:
    return {"path": value} if isinstance(value, str | Path) else value


Start = Annotated[StartConfig, BeforeValidator(_named_start)]


class ModelConfig(Block):
    """The ``model:`` block: what all clients' networks have in common, whatever their encoders.

    ``width`` multiplies the channels of every encoder. ``predictor: null`` means the projector's shape again. With
    ``calibration: n`` a linear layer after the projector maps every architecture to the same n dimensions, and the
    objective works there (FedFoA, section 3.5). ``dropout``, ``representation`` (r) and ``channels`` (c of the first
    block) belong to ``fedlinked_cnn``; null means the paper's value. ``head_dropout`` precedes the classifier.
    ``prototypes`` is K, how many prototypes of projections there are (SwAV).

    ``initial`` draws one set of values for all clients of an architecture (``common``) or one for each client
    (``own``); where it is not given, the method says which. ``start`` then replaces the encoder's by those of a file or
    a finished run.
    """

    width: float = Field(1.0, gt=0)
    projector: Head = HeadConfig(hidden=(128,), dim=64)
    predictor: Head | None = None
    calibration: PositiveInt | None = None
    dropout: float | None = Field(None, ge=0, lt=1)
    representation: PositiveInt | None = None
    channels: PositiveInt | None = None
    head_dropout: float = Field(0.0, ge=0, lt=1)
    initial: Literal["common", "own"] = "common"
    start: Start | None = None
    prototypes: PositiveInt = 512

    def scaled(self, channels: int) -> int:
        """``channels`` times ``width``, rounded, at least 4."""
        return max(4, round(channels * self.width))

    @property
    def projection_dim(self) -> int:
        """D: the dimension of the space the objective works in."""
        return self.calibration or self.projector.dim

    @property
    def resolved_predictor(self) -> HeadConfig:
        """The predictor D -> D; where none is given, hidden layers like the projector's and a plain last layer."""
        if self.predictor is not None:
            return self.predictor
        norm: Literal["none", "hidden"] = "none" if self.projector.batch_norm == "none" else "hidden"
        return self.projector.model_copy(update={"dim": self.projection_dim, "batch_norm": norm})


def mlp(in_dim: int, config: HeadConfig) -> nn.Sequential:
    """(B, in_dim) -> (B, config.dim). Without hidden layers it is one linear layer.

    ``batch_norm``: ``hidden`` normalises before each ReLU, ``all`` also the output, there without scale and shift
    (SimSiam, Chen and He 2021, section 4.3).
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
