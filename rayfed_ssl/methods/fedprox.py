"""FedProx: FedAvg whose clients are held near the global model (Li et al. 2020, eq. 2).

"Federated optimization in heterogeneous networks", over any self-supervised objective. One exchange a round, as in
FedAvg. A client minimises ``L(theta) + mu/2 ||theta - theta_t||^2``, theta_t being the weights it downloaded. The
penalty is over parameters, not over BatchNorm's running statistics. mu = 0 is FedAvg, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.methods import fedavg
from rayfed_ssl.objectives.base import Step


class Config(fedavg.Config):
    name: Literal["fedprox"] = "fedprox"
    mu: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the proximal term: mu/2 ||theta - theta_global||^2 is added to the loss."""


def proximal(parameters: Sequence[Tensor], anchors: Sequence[Tensor], mu: float) -> Tensor:
    """mu/2 ||theta - theta_t||^2, a scalar; its gradient is mu (theta - theta_t)."""
    distances = [(p - anchor).square().sum() for p, anchor in zip(parameters, anchors, strict=True)]
    return mu / 2 * torch.stack(distances).sum()


class Client(fedavg.Client[Config]):
    def train(self, weights: Weights, target: Weights | None = None) -> dict[str, Any]:
        """Local epochs of L(theta) + mu/2 ||theta - theta_t||^2 (eq. 2), theta_t being the global ``weights``."""
        self.load(weights, target)
        local = self.objective_loss()
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        anchors = [p.detach().clone() for p in parameters]

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            step = local(views, rows)
            return step._replace(loss=step.loss + proximal(parameters, anchors, self.method.mu))

        self.fit(loss)
        return dict(self.averaged)


class Server(fedavg.Server[Config]):
    def notes(self) -> list[Note]:
        """The first step of a round begins at theta_t, where the penalty has no gradient."""
        if self.method.mu == 0 or any(self.fit_batches(client).steps > 1 for client in self.setup.clients):
            return []
        said = (
            "every client takes one local step a round, at which fedprox's penalty has no gradient: this run is "
            "FedAvg's"
        )
        more = ", number for number; a smaller train.batch_size or more train.local_epochs take more steps"
        return [Note.shareable(said, more)]


FEDPROX = Method(
    Config,
    Client,
    Server,
    Info("FedProx (Li 2020)", "weights"),
    objective="simclr",
    accepts=unlabelled,
    step="exchange",
    averages_targets=True,
)
