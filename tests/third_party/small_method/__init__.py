"""A third-party method, objective, head, encoder and partition, found by entry points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.data.partition_base import Deal, Indices, Partition
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.encoders import Family
from rayfed_ssl.models.heads import ModelConfig
from rayfed_ssl.models.network import HeadInputs, Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, encoded
from rayfed_ssl.settings.blocks import MethodConfig


class HalfwayConfig(MethodConfig):
    name: Literal["halfway"] = "halfway"
    step: float = 0.5
    """How far the server goes towards the mean."""


class Client(EncoderClient[HalfwayConfig]):
    def train(self, weights: Weights) -> dict[str, Any]:
        self.load(weights)
        self.fit()
        return {"weights": self.weights}


class Server(MethodServer[HalfwayConfig]):
    """FedAvg whose server goes only part of the way to the mean."""

    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()

    def round(self, t: int, cohort: Cohort) -> None:
        mean: Weights = cohort.mean("train", weights=self.weights)["weights"]
        vector = self.weights.vector + self.method.step * (mean.vector - self.weights.vector)
        self.weights = self.weights.with_vector(vector)


class CosineConfig(ObjectiveConfig):
    name: Literal["cosine"] = "cosine"
    mixed: int = 5
    """Dimensions in which views are compared."""


def build_mixer(inputs: HeadInputs) -> nn.Module:
    assert isinstance(inputs.objective, CosineConfig)
    return nn.Linear(inputs.config.projection_dim, inputs.objective.mixed)


@dataclass(frozen=True)
class Cosine(Objective):
    """Two views of an image point the same way; two images do not."""

    config: CosineConfig
    block: ClassVar[type[ObjectiveConfig]] = CosineConfig
    heads: ClassVar[frozenset[str]] = frozenset({"projector", "mixer"})

    def step(self, network: Network, batch: Batch) -> Step:
        features, projections = encoded(network, batch.views)
        a, b = (F.normalize(network.through("mixer", projection), dim=1) for projection in projections)
        return Step((a * b.roll(1, 0)).sum(1).mean() - (a * b).sum(1).mean(), projections, features)


class Striped(Partition):
    """Client j holds every N-th image from the j-th on."""

    name: Literal["striped"] = "striped"
    skipped: int = 0
    """So many images at the front are nobody's."""

    def shards(self, deal: Deal) -> list[Indices]:
        return [deal.chosen[self.skipped + client :: deal.clients] for client in range(deal.clients)]


class PixelsMean(Encoder):
    """A linear map of the image's mean over 4 x 4 patches."""

    def __init__(self, image_size: int, channels: int) -> None:
        super().__init__()
        self.dim = 16
        self.linear = nn.Linear(channels * (image_size // 4) ** 2, self.dim)
        self.norm = nn.BatchNorm1d(self.dim)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.norm(self.linear(F.avg_pool2d(images, 4).flatten(1)))
        return features


def _build(config: ModelConfig, image_size: int, channels: int) -> Encoder:
    return PixelsMean(image_size, channels)


PIXELS_MEAN = Family(_build, minimum=4)
HALFWAY = Method(HalfwayConfig, Client, Server, Info("somebody's", "weights"), objective="cosine", accepts=unlabelled)
