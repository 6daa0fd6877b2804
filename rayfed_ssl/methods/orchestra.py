"""Orchestra: images fall into global clusters, which the server finds among everybody's local ones (Lubana et al. 2022,
"Orchestra: unsupervised federated learning via globally consistent clustering", Algorithm 1).

One exchange a round: online weights, momentum target and G global centroids down; both networks and L local centroids
up. Both networks are averaged. A client's target follows its online network, step by step, before it assigns view 1 to
the global clusters; view 2 should fall into the same. Beside this the turn of a third view is predicted from its
projection, which keeps clusterings from degenerating. A memory of the target's projections is clustered at the end
of the round, in about equal parts. The server fits the global centroids to all local ones, beginning with the last
global ones. Before the first round clients only cluster. Clients are stateless: a round's memory begins with
projections of the client's images by the target it downloaded.

Differs: clients count by images, where the released code counts batches. The code also uploads the memory, single
images' projections, and averages it, which serves nothing: here it stays. Its memory begins a round with random rows.
Both views go through the online network in one forward pass. Shards smaller than the memory have a smaller one. The
code's views, of which the second is solarised and less often blurred, are ``augment: {preset: orchestra}``.

Shape legend: B batch, D projection, G global centroids, L local centroids, M memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.federated.client import EncoderClient, Loss
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.ledger import array_size
from rayfed_ssl.federated.messages import TRAINS, Reply
from rayfed_ssl.federated.method import Info, Method, only
from rayfed_ssl.federated.server import MethodServer, counting
from rayfed_ssl.federated.uploads import Entries
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.methods.parts.centroids import fit_centroids, local_centroids, spread
from rayfed_ssl.methods.parts.third_view import turns_loss, with_third_view
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Step, encoded_together, full_precision, random_rows, target_modules
from rayfed_ssl.objectives.byol import ema_
from rayfed_ssl.objectives.clustering import cluster_agreement
from rayfed_ssl.objectives.moco import enqueued
from rayfed_ssl.objectives.simclr import SimCLRConfig
from rayfed_ssl.settings.blocks import MethodConfig, refuse_unused
from rayfed_ssl.settings.run import RunSettings

Count = Annotated[int, Field(ge=1)]


class Config(MethodConfig):
    name: Literal["orchestra"] = "orchestra"
    weights: Literal["size", "uniform"] = "size"
    """How clients count in the means of both networks: by their number of images, or all the same."""
    global_clusters: Annotated[int, Field(ge=2)] = 128
    """G, how many global clusters the server fits."""
    local_clusters: Count = 16
    """L, how many clusters a client finds; fewer where its memory is smaller."""
    memory: Annotated[int, Field(ge=2)] = 128
    """M, how many projections a client clusters; as many as it has images, where these are fewer."""
    decay: Annotated[float, Field(ge=0, le=1)] = 0.996
    """What the momentum target keeps of itself at each step."""
    rotation: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the turns' cross-entropy."""
    fit_steps: Annotated[int, Field(ge=0)] = 500
    """Steps of the server's SGD on the global centroids."""
    fit_lr: Annotated[float, Field(gt=0)] = 0.01
    """Learning rate of that SGD."""

    @property
    def heads(self) -> frozenset[str]:
        return frozenset({"projected_rotation"})


class Client(EncoderClient[Config]):
    memory_rows: Tensor  # (M, D) unit rows, the oldest first

    @property
    def target(self) -> Network:
        return self.context.network(self.encoder, "target")

    def cluster(self, weights: Weights, target: Weights | None) -> dict[str, Any]:
        """Local centroids (L, D) of what the downloaded target makes of this client's images."""
        self.load(weights, target)
        self.remember()
        return {"centroids": self.centroids()}

    def train(self, weights: Weights, target: Weights | None, centroids: np.ndarray) -> dict[str, Any]:
        """Local epochs towards the global ``centroids`` (G, D); both networks and local centroids (L, D)."""
        self.load(weights, target)
        self.remember()
        self.fit(self.loss(torch.tensor(centroids, device=self.context.device)))
        return {"weights": self.weights, "target": pack(*target_modules(self.target)), "centroids": self.centroids()}

    def loss(self, centroids: Tensor) -> Loss:
        """The loss of a batch: agreement with the global ``centroids`` (G, D), and the turns' cross-entropy."""
        network, target, options = self.network, self.target, self.method
        pixels, draws, temperature = self.pixels(), self.generator("turned views"), temperature_of(self)

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            features, (z_a, z_b) = encoded_together(network, views)
            ema_(target, network, options.decay)
            with torch.no_grad():
                t_a = F.normalize(full_precision(target.project(views[0])), dim=1)
            self.memory_rows = enqueued(self.memory_rows, t_a)
            value = cluster_agreement(t_a, z_b, centroids, temperature)
            if options.rotation:
                value = value + options.rotation * turns_loss(self, pixels[rows], draws, draws)
            return Step(value, (z_a, z_b), features)

        return loss

    @torch.no_grad()
    def remember(self) -> None:
        """Fill the memory: the target's projections of one view each of at most M images, in training mode. Its
        BatchNorm statistics stay as they were.
        """
        pixels, draws = self.pixels(), self.generator("memory")
        rows = torch.randperm(len(pixels), generator=draws, device=self.context.device)[: self.method.memory]
        target, before = self.target.train(), pack(self.target)
        (view,) = self.views(pixels[rows], draws, 1)
        self.memory_rows = F.normalize(target.project(view).float(), dim=1)
        unpack(before, target)

    def centroids(self) -> np.ndarray:
        """Local centroids (L, D) of the memory."""
        found = local_centroids(self.memory_rows, self.method.local_clusters, self.generator("centroids"))
        return found.cpu().numpy()


class Service(EncoderClient[Config]):
    """The server's own work: the global centroids."""

    def fit_global(self, centroids: np.ndarray | None, found: Sequence[np.ndarray]) -> dict[str, Any]:
        """Global centroids (G, D) fitted to everybody's local ones (L, D); None: beginning with random directions."""
        options, x = self.method, torch.tensor(np.concatenate(found), device=self.context.device)
        if centroids is None:
            start = random_rows(options.global_clusters, x.shape[1], self.generator("centroids"))
        else:
            start = torch.tensor(centroids, device=self.context.device)
        fitted = fit_centroids(start, x, temperature_of(self), steps=options.fit_steps, lr=options.fit_lr)
        return {"centroids": fitted.cpu().numpy()}


def temperature_of(worker: EncoderClient[Config]) -> float:
    """T of all softmaxes over clusters: the objective's."""
    return worker.config.objective_as(SimCLRConfig).temperature


class Server(MethodServer[Config]):
    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()
        self.state |= {"target": None, "centroids": None}  # no target: a copy of the weights

    def counts(self, clients: Sequence[int]) -> dict[int, float] | None:
        return counting(self.method.weights, clients)

    def round(self, t: int, cohort: Cohort) -> None:
        networks = {"weights": self.weights, "target": self.state["target"]}
        if self.state["centroids"] is None:
            self.fit_global(cohort, cohort.gather("cluster", **networks))
        by, centroids = self.counts(cohort.clients), self.state["centroids"]
        mean = cohort.mean("train", by=by, fields=("weights", "target"), centroids=centroids, **networks)
        self.state |= mean.average
        self.fit_global(cohort, mean.replies)

    def fit_global(self, cohort: Cohort, replies: Sequence[Reply]) -> None:
        """Fit the global centroids to those that clients replied with."""
        found = [reply["centroids"] for reply in replies]
        fitted = cohort.serve("fit_global", centroids=self.state["centroids"], found=found)["centroids"]
        found_spread = spread(np.concatenate(found), np.asarray(fitted))
        self.metrics |= {"orchestra/clusters": found_spread.clusters, "orchestra/cosine": found_spread.cosine}
        self.state["centroids"] = fitted

    # -- costs ---------------------------------------------------------------------------------------------------------

    def workload(self, operation: str, client: int) -> Workload | None:
        """A view of each image of the memory; where the client trains, local epochs, with a third view of every image
        where turns are predicted.
        """
        remembered = min(self.method.memory, int(self.setup.federation.sizes[client]))
        local = array_size(min(self.method.local_clusters, remembered), self.config.projection_dim)
        memory = Workload.inferred(remembered, centroids=local)
        if operation == "cluster":
            return memory
        epochs = self.fitting(client, **self.setup.network_sizes(self.common_encoder, target=True))
        return memory + (with_third_view(epochs) if self.method.rotation else epochs)

    def operations(self, t: int, client: int, met: Collection[int]) -> tuple[str, ...]:
        return ("cluster", TRAINS) if t == 1 else (TRAINS,)

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """In the first round the target is a copy, and does not come down."""
        networks = self.setup.network_sizes(self.common_encoder, "down", target=t > 1)
        return {**networks, "centroids": array_size(self.method.global_clusters, self.config.projection_dim)}

    def server_images(self, t: int, clients: Sequence[int]) -> int | None:
        """0: global centroids are fitted to local ones, not to images."""
        return 0


def check(config: RunSettings) -> None:
    """Refuse the objective's other loss: of the objective there is only its temperature. Raises ValueError."""
    refuse_unused(
        config.objective, "objective", "directional", needs="another method: no term of orchestra has that loss"
    )


def unused(config: RunSettings) -> dict[str, str]:
    """The learning rate of a fit without steps."""
    return {} if config.method_as(Config).fit_steps else {"method.fit_lr": "method.fit_steps above 0"}


ORCHESTRA = Method(
    Config,
    Client,
    Server,
    Info("Orchestra (Lubana 2022)", "weights and momentum target, centroids"),
    objective="simclr",
    accepts=only("simclr"),
    service=Service,
    unused=unused,
    check=check,
    uploads={"centroids": Entries(network="target")},
)
