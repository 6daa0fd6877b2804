"""FedX: contrast and relations within the client, and against the model it downloaded (Han et al. 2022).

One exchange a round, as in FedAvg: weights down, weights up, the predictor's included. The downloaded model stays
frozen beside the one in training and teaches it: no further traffic. The loss of a batch is the sum of four terms.
Local: NT-Xent of both views, and how alike the views relate to a batch of random images. Global: the same with the
predictions u = p(z) in place of z and the teacher's projections in place of view 2 and of the random images'. With
both global weights 0 the local loss is left; with ``local_relation: 0``, too, it is FedSimCLR.

Differs: clients count by their images among those asked. The released code takes shares of all clients, by position:
with partial participation they are other clients' and do not sum to 1. As in the code the relational target is not
detached, and the divergence is KL(m || s); the random images are another batch of the client's, one view each.

Shape legend: B batch, D projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.method import Info, Method, only
from rayfed_ssl.federated.workload import BOTH_WAYS, Workload
from rayfed_ssl.methods import fedavg
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Step, encoded_together
from rayfed_ssl.objectives.relational import relational
from rayfed_ssl.objectives.simclr import SimCLRConfig, nt_xent
from rayfed_ssl.settings.blocks import refuse_unused
from rayfed_ssl.settings.run import RunSettings

Weight = Annotated[float, Field(ge=0)]


class Config(fedavg.Config):
    name: Literal["fedx"] = "fedx"
    target_temperature: Annotated[float, Field(gt=0)] = 0.1
    """Temperature of the relations' target; NT-Xent and the relations themselves use ``objective.temperature``."""
    local_relation: Weight = 1.0
    """Weight of the relations between a client's own views."""
    global_contrast: Weight = 1.0
    """Weight of the contrast with the downloaded model."""
    global_relation: Weight = 1.0
    """Weight of the relations to the downloaded model."""

    @property
    def heads(self) -> frozenset[str]:
        return frozenset({"predictor"})


class Client(EncoderClient[Config]):
    def train(self, weights: Weights) -> dict[str, Any]:
        """Local epochs of the four terms, with the downloaded model as the teacher."""
        self.load(weights)
        teacher = self.context.network(self.encoder, "teacher")
        unpack(weights, teacher)
        teacher.eval()
        self.fit(self.loss(teacher))
        return {"weights": self.weights}

    def loss(self, teacher: Network) -> Callable[[tuple[Tensor, ...], Tensor], Step]:
        """The four terms of a batch; one whose weight is 0 is not computed."""
        options, network, another = self.method, self.network, self.random_views()
        temperature = self.config.objective_as(SimCLRConfig).temperature
        temperatures = temperature, options.target_temperature

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            features, (z_a, z_b) = encoded_together(network, views)
            value = nt_xent(z_a, z_b, temperature)
            related = options.local_relation or options.global_relation
            random = another(len(rows)) if related else None
            if random is not None and options.local_relation:
                value = value + options.local_relation * relational(z_a, z_b, network.project(random), *temperatures)
            if options.global_contrast or options.global_relation:
                u_a, u_b = network.predict(torch.cat([z_a, z_b])).chunk(2)
            if options.global_contrast:
                value = value + options.global_contrast * nt_xent(u_a, taught(teacher, views[1]), temperature)
            if random is not None and options.global_relation:
                relation = relational(u_a, u_b, taught(teacher, random), *temperatures)
                value = value + options.global_relation * relation
            return Step(value, (z_a, z_b), features)

        return loss

    def random_views(self) -> Callable[[int], Tensor]:
        """(B, C, H, W): one view each of B images of the shard, drawn anew at each call."""
        pixels, draws = self.pixels(), self.generator("random images")

        def another(count: int) -> Tensor:
            rows = torch.randperm(len(pixels), generator=draws, device=self.context.device)[:count]
            return self.views(pixels[rows], draws, 1)[0]

        return another


@torch.no_grad()
def taught(teacher: Network, images: Tensor) -> Tensor:
    """The frozen model's projections (B, D), in eval mode."""
    return teacher.project(images)


class Server(fedavg.Server[Config]):
    def workload(self, operation: str, client: int) -> Workload:
        """As FedAvg's, and as many random images again where the views' relations to them count."""
        cost = super().workload(operation, client)
        options, seen = self.method, cost.images
        random = seen if options.local_relation or options.global_relation else 0
        passes = BOTH_WAYS * seen if options.local_relation else 0
        passes += seen if options.global_contrast else 0
        passes += seen if options.global_relation else 0
        return cost + Workload(random, passes=passes)


def check(config: RunSettings) -> None:
    """Refuse the objective's other loss, which none of the four terms has. Raises ValueError."""
    refuse_unused(config.objective, "objective", "directional", needs="another method: no term of fedx has that loss")


def unused(config: RunSettings) -> dict[str, str]:
    """The temperature of the relations' target, without relations."""
    method = config.method_as(Config)
    if method.local_relation or method.global_relation:
        return {}
    return {"method.target_temperature": "method.local_relation or method.global_relation above 0"}


FEDX = Method(
    Config,
    Client,
    Server,
    Info("FedX (Han 2022)", "weights"),
    objective="simclr",
    accepts=only("simclr"),
    step="exchange",
    unused=unused,
    check=check,
)
