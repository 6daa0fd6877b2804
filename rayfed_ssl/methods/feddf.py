"""FedDF without labels: the server averages each architecture's models and distils the ensemble of all clients into
each average (Lin et al. 2020, "Ensemble distillation for robust model fusion in federated learning", Algorithms 1, 3).

One exchange a round: weights down, weights up, each architecture its own. The server starts from the mean of an
architecture's clients and trains it to project unlabelled public images as the clients do on average. These images
stay at the server. An architecture none of whose clients was asked starts from its last model.

Differs: outputs are projections, where the paper has class logits, so the distance is a squared one or a cosine;
``distance: kl`` is the paper's, with projections as logits. Images are clean, so the ensemble's outputs are computed
once. All steps are taken: the paper stops early and keeps the best by labelled images, which nobody has here. The
teachers are in eval mode, the student in training mode, BatchNorm's statistics included. Spaces of different
architectures are aligned by nothing but this.

Shape legend: T teachers, M public images, B batch, D projection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base import optimizers
from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.federated.aggregation import FixedPointSum, check_summable
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, require_public
from rayfed_ssl.federated.messages import Reply
from rayfed_ssl.federated.method import Info, Method, projecting
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.federated.server import MethodServer, counting
from rayfed_ssl.federated.steps import descend
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.distillation import consensus, ensemble_divergence
from rayfed_ssl.settings.blocks import MethodConfig, refuse_unused
from rayfed_ssl.settings.run import RunSettings


class Config(MethodConfig):
    name: Literal["feddf"] = "feddf"
    weights: Literal["size", "uniform"] = "size"
    """How clients count in their architecture's mean: by their number of images, or all the same."""
    distance: Literal["mse", "cosine", "kl"] = "mse"
    """Distance between the student's outputs and the ensemble's."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the softmaxes in the distance ``kl``."""
    steps: Annotated[int, Field(ge=1)] = 1000
    """Steps of the distillation, per architecture and round (the paper: 10,000)."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Public images per step."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of the distillation's Adam, with a cosine schedule over the steps."""
    clip_norm: Annotated[float, Field(gt=0)] = 5.0
    """Largest norm of a step's gradient."""

    @property
    def needs_public(self) -> bool:
        return True


def distance(student: Tensor, agreed: Tensor, kind: str, temperature: float = 1.0) -> Tensor:
    """How far the student's outputs (B, D) are from the ensemble's (B, D), a mean over the batch; ``agreed`` is
    constant. ``mse``: mean over dimensions, too; ``cosine``: 1 - cos; ``kl``: of softmaxes (Lin et al. 2020, eq. 3).
    """
    student, agreed = student.float(), agreed.detach()
    if kind == "mse":
        return F.mse_loss(student, agreed)
    if kind == "cosine":
        return 1 - F.cosine_similarity(student, agreed, dim=1).mean()
    return ensemble_divergence(student, agreed, temperature)


def average(replies: Sequence[Reply], counts: dict[int, float]) -> Weights:
    """The mean of the replies' weights, in which a client counts ``counts[client]``."""
    total, whole = FixedPointSum(), sum(counts[r.client] for r in replies)
    for reply in replies:
        total.add(counts[reply.client] / whole, {"weights": reply["weights"]})
    mean: Weights = total.mean()["weights"]
    return mean


class Client(EncoderClient[Config]):
    def train(self, weights: Weights) -> dict[str, Any]:
        """Local epochs from the global model of this client's architecture. Raises NonFinite for values that the server
        could not average.
        """
        self.load(weights)
        self.fit()
        reply = {"weights": self.weights}
        check_summable(reply)
        return reply


class Service(EncoderClient[Config]):
    """The server's own work: the ensemble's outputs for the public images, and the distillation towards them."""

    def embed(self, teachers: Sequence[tuple[str, Mapping[str, Weights]]]) -> dict[str, Any]:
        """The mean of the teachers' projections of all public images: (M, D)."""
        shape = len(teachers), len(self.context.federation.public_images), self.config.projection_dim
        outputs = torch.empty(shape, device=self.context.device)  # a list of them and their stack would be twice this
        for own, (encoder, sent) in zip(outputs, teachers, strict=True):
            own.copy_(self.outputs(encoder, sent["weights"]))
        return {"agreed": consensus(outputs).cpu().numpy()}

    def outputs(self, encoder: str, weights: Weights) -> Tensor:
        """One teacher's projections of clean images in eval mode: (M, D)."""
        network = self.loaded(encoder, weights)
        return self.context.outputs(network, self.public_pixels(), network.project)

    def distil(self, encoder: str, weights: Weights, agreed: np.ndarray) -> dict[str, Any]:
        """The student that ``weights`` become after all steps towards ``agreed`` (M, D)."""
        options, pixels = self.method, self.public_pixels()
        student, targets = self.loaded(encoder, weights).train(), torch.tensor(agreed, device=self.context.device)
        optimizer = optimizers.Adam([p for p in student.parameters() if p.requires_grad], options.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
        losses: list[Tensor] = []
        for rows in self.steps(len(pixels), encoder):
            with self.autocast():
                outputs = student.project(self.context.clean(pixels[rows]))
            loss = distance(outputs, targets[rows], options.distance, options.temperature)
            descend(optimizer, loss, options.clip_norm)
            schedule.step()
            losses.append(loss.detach())
        self.metrics |= {f"{encoder}_first_loss": float(losses[0]), f"{encoder}_last_loss": float(losses[-1])}
        return {"weights": pack(student)}

    def steps(self, count: int, encoder: str) -> Sequence[Tensor]:
        """Index batches (B,) of all steps, reshuffled as often as needed."""
        size, wanted = min(self.method.batch_size, count), self.method.steps
        epochs = -(-wanted // (count // size))
        return list(self.batches(count, epochs, size, f"distil {encoder}"))[:wanted]

    def loaded(self, encoder: str, weights: Weights) -> Network:
        network = self.context.network(encoder)
        unpack(weights, network)
        return network


class Server(MethodServer[Config]):
    @property
    def models(self) -> dict[str, Weights]:
        """Architecture -> its global model."""
        return self.state["models"]  # type: ignore[no-any-return]

    def start(self, cohort: Cohort) -> None:
        encoders = {self.encoder(c) for c in self.setup.clients}
        self.state["models"] = {encoder: self.setup.initial(encoder) for encoder in sorted(encoders)}

    def counts(self, clients: Sequence[int]) -> dict[int, float] | None:
        return counting(self.method.weights, clients)

    def round(self, t: int, cohort: Cohort) -> None:
        models = self.models
        replies = cohort.gather("train", each=lambda client: {"weights": models[self.encoder(client)]})
        teachers = [(self.encoder(r.client), r.fields) for r in replies]
        agreed = cohort.serve("embed", teachers=teachers)["agreed"]

        def own(encoder: str) -> dict[str, Any]:
            return {"encoder": encoder, "weights": self.start_of(encoder, replies)}

        # One number for all: what an architecture draws has its name in its address (`Service.steps`).
        distilled = cohort.serve_all("distil", models, own, call=lambda encoder: 0, agreed=agreed)
        self.state["models"] = {encoder: reply["weights"] for encoder, reply in distilled.items()}

    def start_of(self, encoder: str, replies: Sequence[Reply]) -> Weights:
        """The mean of the models of this architecture's clients; its last global model where none of them was asked."""
        members = [r for r in replies if self.encoder(r.client) == encoder]
        by = self.counts([reply.client for reply in members])
        counts = {r.client: float(self.setup.shares[r.client]) if by is None else by[r.client] for r in members}
        return average(members, counts) if members else self.models[encoder]

    def encoder(self, client: int) -> str:
        return self.config.clients.encoder(client)

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        """The one global model, or, where there are several, each client with its architecture's."""
        if len(self.models) == 1:
            return [EvaluatedEncoder(None, encoder, weights) for encoder, weights in self.models.items()]
        return [EvaluatedEncoder(c, self.encoder(c), self.models[self.encoder(c)]) for c in self.setup.clients]

    # -- costs ---------------------------------------------------------------------------------------------------------

    def workload(self, operation: str, client: int) -> Workload | None:
        return self.fitting(client, **self.setup.network_sizes(self.encoder(client)))

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        return self.setup.network_sizes(self.encoder(client), "down")

    def server_images(self, t: int, clients: Sequence[int]) -> int | None:
        """A pass over the public images for each teacher; then the steps of each architecture's distillation."""
        public, architectures = len(self.setup.federation.public_images), {self.encoder(c) for c in self.setup.clients}
        steps = len(architectures) * self.method.steps * min(self.method.batch_size, public)
        return public * len(clients) + steps if t else 0


def check(config: RunSettings) -> None:
    """Refuse own initial values, as every client begins with its architecture's, and a temperature that nothing has.
    Raises ValueError.
    """
    if config.method_as(Config).distance != "kl":
        refuse_unused(config.method, "method", "temperature", needs="method.distance=kl")
    if config.model.initial == "own":
        raise ValueError(
            "model.initial: found 'own'; clients of feddf begin with the server's weights; allowed: common"
        )


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse fewer than two public images. Raises UserError."""
    require_public(federation, 2, "feddf")


FEDDF = Method(
    Config,
    Client,
    Server,
    Info("FedDF (Lin 2020), without labels", "weights", stateful=True, heterogeneous=True, public_data=True),
    objective="byol",
    accepts=projecting,
    service=Service,
    check=check,
    check_federation=check_federation,
)
