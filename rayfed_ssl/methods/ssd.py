"""SSD: clients are drawn apart into subspaces of their own, and features follow projections (Fang et al. 2025, "Soft
separation and distillation: toward global uniformity in federated unsupervised learning").

One exchange a round, as in FedAvg: weights down, weights up. Each client is given, once, its own w = floor(D / clients)
dimensions of a random orthonormal basis, which follows from the run's seed. Two terms per view are added to the local
objective: projections are drawn towards their own image stretched along these dimensions (separation), and the softmax
of features should be that of projections (distillation). With both weights 0 it is FedAvg over the objective.

Differs: dimensions belong to a client. In the released code they belong to a position among those asked, so with
partial participation they change from round to round. Clients count by images, where the code counts batches.

Shape legend: B batch, D projection and feature, w dimensions of a subspace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient, Loss
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import WireSize, array_size
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, only
from rayfed_ssl.methods import fedavg
from rayfed_ssl.models.encoders import encoder_dim
from rayfed_ssl.objectives.align_uniform import AlignUniformConfig, align_uniform
from rayfed_ssl.objectives.base import Step, encoded
from rayfed_ssl.objectives.separation import orthonormal, projector_distillation, scaling, separation, subspaces
from rayfed_ssl.settings.run import RunSettings


class Config(fedavg.Config):
    name: Literal["ssd"] = "ssd"
    separation: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the separation."""
    scale: Annotated[float, Field(gt=0)] = 10.0
    """s, the stretch along the client's own dimensions."""
    distillation: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the distillation."""
    temperature: Annotated[float, Field(gt=0)] = 0.5
    """Temperature of the distillation."""


class Client(EncoderClient[Config]):
    def train(self, weights: Weights, subspace: np.ndarray | None) -> dict[str, Any]:
        """Local epochs; ``subspace`` (w,) are this client's dimensions, None where it knows them."""
        if subspace is not None:
            self.state["subspace"] = subspace
        self.load(weights)
        self.fit(self.loss())
        return {"weights": self.weights}

    def loss(self) -> Loss:
        """The loss of a batch: alignment and uniformity, separation, distillation. Terms of weight 0 are left out."""
        network, options, base = self.network, self.method, self.config.objective_as(AlignUniformConfig)
        a = self.stretch()

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            features, projections = encoded(network, views)
            value = align_uniform(projections[0], projections[1], base.uniformity, base.t)
            if options.separation:
                apart = torch.stack([separation(z, a) for z in projections]).mean()
                value = value + options.separation * apart
            if options.distillation:
                pairs = zip(features, projections, strict=True)
                passed = torch.stack([projector_distillation(h, z, options.temperature) for h, z in pairs]).mean()
                value = value + options.distillation * passed
            return Step(value, projections, features)

        return loss

    def stretch(self) -> Tensor:
        """A (D, D) float32 on the device: s along this client's dimensions of everybody's basis, 1 elsewhere."""
        q = orthonormal(self.config.projection_dim, generator(self.config.seed, "basis"))
        a = scaling(q, torch.tensor(self.state["subspace"]), self.method.scale)
        return a.float().to(self.context.device)


class Server(fedavg.Server[Config]):
    def start(self, cohort: Cohort) -> None:
        super().start(cohort)
        draws = generator(self.config.seed, "subspaces")
        self.state["subspaces"] = subspaces(self.config.projection_dim, self.config.clients.count, draws).numpy()
        self.state["met"] = []

    def round(self, t: int, cohort: Cohort) -> None:
        by, met, rows = self.counts(cohort.clients), self.state["met"], self.state["subspaces"]
        result = cohort.mean(
            "train",
            by=by,
            weights=self.weights,
            each=lambda client: {"subspace": None if client in met else rows[client]},
        )
        self.weights = result["weights"]
        self.state["met"] = sorted({*met, *(reply.client for reply in result.replies)})

    # -- costs ---------------------------------------------------------------------------------------------------------

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """Weights; a client that is asked for the first time gets its dimensions."""
        weights = self.setup.network_sizes(self.common_encoder, "down")
        return weights if client in met else {**weights, "subspace": dimensions(self.config)}


def dimensions(config: RunSettings) -> WireSize:
    """The size of a client's dimensions, (w,) int64."""
    return array_size(config.projection_dim // config.clients.count, dtype="int64")


def check(config: RunSettings) -> None:
    """Refuse more clients than dimensions. Raises ValueError."""
    if config.clients.count > config.projection_dim:
        raise ValueError(
            f"clients.count: found {config.clients.count}; ssd gives each client dimensions of its own, projections "
            f"have {config.projection_dim}; allowed: at most {config.projection_dim}"
        )


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse features that are not as wide as projections, where one should follow the other. Raises UserError."""
    if not config.method_as(Config).distillation:
        return
    encoder = config.clients.encoder(0)
    dim = encoder_dim(encoder, config.model, config.data.image_size, config.data.channels)
    if dim != config.projection_dim:
        raise UserError(
            f"model.projector.dim: found {config.projection_dim}; method.distillation compares projections with "
            f"features, and {encoder} has {dim} (model.projector.dim={dim}, or method.distillation=0)"
        )


def unused(config: RunSettings) -> dict[str, str]:
    """What one term alone reads, where its weight is 0."""
    method, keys = config.method_as(Config), dict[str, str]()
    if not method.separation:
        keys["method.scale"] = "method.separation above 0"
    if not method.distillation:
        keys["method.temperature"] = "method.distillation above 0"
    return keys


SSD = Method(
    Config,
    Client,
    Server,
    Info("SSD (Fang 2025)", "weights; once each client's dimensions", stateful=True),
    objective="align_uniform",
    accepts=only("align_uniform"),
    step="mean",
    unused=unused,
    check=check,
    check_federation=check_federation,
    footprint=lambda config, images: ClientFootprint(state=dimensions(config).total),
)
