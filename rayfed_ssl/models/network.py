"""A client's network: encoder f, projector g, predictor p, and the heads other objectives need.

Which heads there are is the objective's choice; the encoder is built first, so one seed gives one encoder whatever
stands on it. Shapes: B batch, C channels, S image side, D projection.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.decoder import Decoder
from rayfed_ssl.models.encoders import build_encoder
from rayfed_ssl.models.heads import ModelConfig, mlp

HEAD_NAMES = frozenset(
    {"projector", "predictor", "prototypes", "classifier", "decoder", "rotation", "projected_rotation"}
)
ROTATIONS = 4  # 0, 90, 180, 270 degrees


class Network(nn.Module):
    """Encoder f -> projector g (-> calibration) -> predictor p, with optional prototypes of projections, classifier,
    rotation heads (of features, or of projections) and decoder.

    A head that was not asked for is None; the method that needs it says so.
    """

    def __init__(
        self, encoder_name: str, encoder: Encoder, config: ModelConfig, image_size: int, channels: int = 3
    ) -> None:
        super().__init__()
        self.encoder_name, self.config = encoder_name, config
        self.image_size, self.channels = image_size, channels
        self.encoder = encoder
        self.projector: nn.Module | None = None
        self.calibration: nn.Module | None = None
        self.predictor: nn.Module | None = None
        self.prototypes: nn.Linear | None = None
        self.classifier: nn.Module | None = None
        self.rotation: nn.Module | None = None
        self.projected_rotation: nn.Module | None = None
        self.decoder: nn.Module | None = None

    @property
    def dim(self) -> int:
        """The dimension of the features h = f(x)."""
        return self.encoder.dim

    @property
    def projection_dim(self) -> int:
        """D: the dimension of z = g(f(x)), after the calibration layer where there is one."""
        return self.config.projection_dim

    def represent(self, images: Tensor) -> Tensor:
        """h = f(x): (B, C, S, S) -> (B, dim)."""
        return self.encoder(images)

    def project_features(self, features: Tensor) -> Tensor:
        """g(h): (B, dim) -> (B, D), with the calibration layer where there is one."""
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
        """C (K, D): the prototypes of projections, a parameter."""
        if self.prototypes is None:
            raise RuntimeError("this network was built without prototypes")
        return self.prototypes.weight

    def classify(self, images: Tensor) -> Tensor:
        """Class logits: (B, C, S, S) -> (B, classes)."""
        return self.through("classifier", self.represent(images))

    def classify_rotation(self, images: Tensor) -> Tensor:
        """Logits of the four quarter turns: (B, C, S, S) -> (B, 4)."""
        return self.through("rotation", self.represent(images))

    def classify_projected_rotation(self, images: Tensor) -> Tensor:
        """Logits of the four quarter turns, from projections: (B, C, S, S) -> (B, 4)."""
        return self.through("projected_rotation", self.project(images))

    def reconstruct(self, images: Tensor) -> Tensor:
        """decoder(f(x)): (B, C, S, S) -> (B, C, S, S)."""
        return self.through("decoder", self.represent(images))

    def through(self, head: str, inputs: Tensor) -> Tensor:
        """What one of ``HEAD_NAMES``, or the calibration layer, makes of its inputs. Raises RuntimeError where it was
        not asked for.
        """
        module = getattr(self, head)
        if module is None:
            raise RuntimeError(f"this network was built without a {head}")
        outputs: Tensor = module(inputs)
        return outputs


def build_network(
    encoder: str,
    config: ModelConfig,
    image_size: int,
    *,
    heads: Iterable[str],
    classes: int | None = None,
    channels: int = 3,
) -> Network:
    """The network of a client with the named encoder and the heads asked for, a subset of ``HEAD_NAMES``.

    Weights come from torch's global generator: call it inside ``seeding.forked(...)``. ``classes`` is the classifier's
    output and is needed only with it; ``channels`` are the images'. Raises UserError for what the config can get wrong.
    """
    wanted = frozenset(heads)
    if unknown := wanted - HEAD_NAMES:
        raise ValueError(f"unknown heads {sorted(unknown)}; allowed: {sorted(HEAD_NAMES)}")
    network = Network(encoder, build_encoder(encoder, config, image_size, channels), config, image_size, channels)
    if "projector" in wanted:
        network.projector = mlp(network.dim, config.projector)
        if config.calibration is not None:
            network.calibration = nn.Linear(config.projector.dim, config.calibration)
    if "predictor" in wanted:
        predictor = config.resolved_predictor
        if predictor.dim != config.projection_dim:
            raise UserError(
                f"model.predictor.dim: {predictor.dim} given; it must equal the projection dimension "
                f"{config.projection_dim}"
            )
        network.predictor = mlp(config.projection_dim, predictor)
    if "prototypes" in wanted:
        network.prototypes = nn.Linear(config.projection_dim, config.prototypes, bias=False)
        directions = torch.randn(config.prototypes, config.projection_dim)
        network.prototypes.weight = nn.Parameter(F.normalize(directions, dim=1))
    if "classifier" in wanted:
        if classes is None:
            raise ValueError("a classifier needs the number of classes")
        network.classifier = nn.Sequential(nn.Dropout(config.head_dropout), nn.Linear(network.dim, classes))
    if "rotation" in wanted:
        network.rotation = nn.Linear(network.dim, ROTATIONS)
    if "projected_rotation" in wanted:
        network.projected_rotation = nn.Linear(config.projection_dim, ROTATIONS)
    if "decoder" in wanted:
        network.decoder = Decoder(network.dim, config, image_size, channels)
    return network
