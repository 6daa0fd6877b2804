"""FedMD without labels: clients of any architecture agree on what they make of public images (Li and Wang 2019,
"FedMD: heterogenous federated learning via model distillation", Algorithm 1).

One exchange a round: the consensus down, outputs up; no weights cross. A client first trains on the public images, once
(``public_epochs``). Each round it digests the last consensus, revisits its own images with the local objective, and
replies with the projections (M, D) of M clean public images, another subset each round. The server takes their mean,
every client counting the same, the receiver included. Public images are published once; a subset follows from the seed.

Differs: outputs are projections, where the paper has class logits, and the objective needs no labels. Nothing aligns
the clients' spaces before they are averaged; whether that helps, a run has to show. A round starts with the digest, so
the first one has none, and what goes up in the last one is not used. Digesting is in eval mode: public images leave no
trace in BatchNorm's statistics.

Shape legend: M public images of a round, D projection.
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
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.federated.client import PUBLIC_IMAGES, EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, require_public
from rayfed_ssl.federated.ledger import array_size
from rayfed_ssl.federated.messages import TRAINS
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, projecting
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.federated.server import MethodServer, counting, pretrain
from rayfed_ssl.federated.steps import descend
from rayfed_ssl.federated.uploads import PublicOutputs
from rayfed_ssl.federated.workload import Workload, local_batches
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.objectives.distillation import digest
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.run import RunSettings

SOME = np.empty(0, np.float32)  # stands for a consensus where nothing has run


class Config(MethodConfig):
    name: Literal["fedmd"] = "fedmd"
    subset: Annotated[int, Field(ge=1)] | None = None
    """M, how many public images a round uses; null: all (the paper: 5,000)."""
    distance: Literal["l1", "mse"] = "l1"
    """Distance between a client's outputs and the consensus."""
    public_epochs: Annotated[int, Field(ge=0)] = 1
    """Epochs on the public images before a client's first round."""
    digest_epochs: Annotated[int, Field(ge=1)] = 1
    """Passes over the consensus in a round."""
    digest_batch: Annotated[int, Field(ge=1)] = 256
    """Public images per step of the digest."""
    digest_lr: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of the digest's Adam."""

    @property
    def needs_public(self) -> bool:
        return True


def subset(config: RunSettings, round: int, images: int) -> np.ndarray:
    """The public images of a round: (M,) positions, drawn without replacement, ascending."""
    size = min(config.method_as(Config).subset or images, images)
    draws = numpy_generator(config.seed, round, "subset")
    return np.sort(draws.permutation(images)[:size])


class Client(EncoderClient[Config]):
    def pretrain(self) -> dict[str, Any]:
        """The local objective on the public images, from the values this client begins with."""
        self.load_own()
        self.fit(pixels=self.published_pixels(), epochs=self.method.public_epochs)
        self.keep_own()
        return {}

    def train(self, consensus: np.ndarray | None, consensus_round: int) -> dict[str, Any]:
        """Digest the ``consensus`` (M, D), revisit the own images, reply with this round's outputs (M, D).

        Args:
            consensus: None where there is none yet.
            consensus_round: the round it is of, which says of which public images.
        """
        self.load_own()
        public = self.published_pixels()
        if consensus is not None:
            rows = self.rows(consensus_round, len(public))
            self.digest(public[rows], torch.tensor(consensus, device=self.context.device))
        self.fit()
        self.keep_own()
        chosen = public[self.rows(self.round, len(public))]
        return {"outputs": torch.cat(list(self.projections(chosen))).cpu().numpy()}

    def digest(self, pixels: Tensor, consensus: Tensor) -> None:
        """Epochs of Adam towards the consensus (M, D) on clean images (M, C, H, W); BatchNorm in eval mode."""
        options, network = self.method, self.network
        network.eval()
        optimizer = optimizers.Adam([p for p in network.parameters() if p.requires_grad], options.digest_lr)
        losses: list[Tensor] = []
        for rows in self.batches(len(pixels), options.digest_epochs, options.digest_batch, "digest"):
            with self.autocast():
                outputs = network.project(self.context.clean(pixels[rows]))
            target = consensus[rows]
            loss = digest(outputs, target) if options.distance == "l1" else F.mse_loss(outputs.float(), target)
            descend(optimizer, loss)
            losses.append(loss.detach())
        self.metrics["digest"] = float(torch.stack(losses).mean())

    def rows(self, round: int, images: int) -> Tensor:
        """The public images of a round, out of so many: (M,) positions on the device."""
        return torch.from_numpy(subset(self.config, round, images)).to(self.context.device)


class Server(MethodServer[Config]):
    def start(self, cohort: Cohort) -> None:
        self.state |= {"consensus": None, "agreed": 0, "pretrained": []}  # agreed: the consensus's round
        cohort.publish(PUBLIC_IMAGES, self.setup.federation.public_images.pixels)

    def counts(self, clients: Sequence[int]) -> dict[int, float] | None:
        return counting("uniform", clients)

    def round(self, t: int, cohort: Cohort) -> None:
        if self.method.public_epochs:
            pretrain(self, cohort)
        by = self.counts(cohort.clients)
        last = {"consensus": self.state["consensus"], "consensus_round": self.state["agreed"]}
        mean = cohort.mean("train", by=by, fields=("outputs",), **last)
        self.state |= {"consensus": mean["outputs"], "agreed": t}

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        return self.own_encoders()

    # -- costs ---------------------------------------------------------------------------------------------------------

    def workload(self, operation: str, client: int) -> Workload | None:
        """Before a client's first round, epochs on the public images. In a round, passes over the subset of the last
        consensus, where there is one, local epochs, and one pass over the round's own subset.
        """
        method, public = self.method, len(self.setup.federation.public_images)
        if operation == "pretrain":
            images = local_batches(self.config, public, method.public_epochs).images
            return Workload.trained(images, build_objective(self.config.objective).views)
        chosen, dim = self.output_shape
        work = self.fitting(client) + Workload.inferred(chosen, outputs=array_size(chosen, dim))
        if self.state.get("consensus") is not None:
            batches = local_batches(self.config, chosen, method.digest_epochs, method.digest_batch)
            work += Workload.trained(batches.images)
        return work

    def operations(self, t: int, client: int, met: Collection[int]) -> tuple[str, ...]:
        fresh = self.method.public_epochs and client not in met
        return ("pretrain", TRAINS) if fresh else (TRAINS,)

    def rehearse(self, t: int) -> None:
        """There is a consensus from the second round on."""
        self.state["consensus"] = None if t == 1 else SOME

    def publishes(self) -> Mapping[str, object]:
        return {PUBLIC_IMAGES: self.setup.federation.public_images.pixels}

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """From the second round on the consensus."""
        return {"consensus": array_size(*self.output_shape)} if t > 1 else {}

    @property
    def output_shape(self) -> tuple[int, int]:
        """(M, D), of a client's outputs, and of the consensus."""
        public = len(self.setup.federation.public_images)
        return min(self.method.subset or public, public), self.config.projection_dim


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse a public set smaller than the subset, or of fewer than two images. Raises UserError."""
    wanted = config.method_as(Config).subset or 0
    if wanted > 2:
        require_public(federation, wanted, f"method.subset={wanted}", "a smaller subset")
    require_public(federation, 2, "fedmd")


FEDMD = Method(
    Config,
    Client,
    Server,
    Info(
        "FedMD (Li and Wang 2019), without labels",
        "projections of public images; once these images",
        stateful=True,
        heterogeneous=True,
        public_data=True,
    ),
    objective="byol",
    accepts=projecting,
    sends_weights=lambda config: (),
    check_federation=check_federation,
    footprint=lambda config, images: ClientFootprint(models=1),
    uploads={"outputs": PublicOutputs(positions=subset)},
)
