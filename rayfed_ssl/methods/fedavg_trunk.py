"""FedAvg on the trunk: clients with tasks of their own average everything but their heads (FedLinked's Algorithm 1).

A round has four steps: supervised local epochs on the whole network, trunks up, their mean down, heads fine-tuned on
the new trunk. The trunk is frozen during fine-tuning. Trunks must be alike. A client keeps its head. With
``labelled_public: true`` every client also trains on the public images of its own task's classes, with their labels.
Early stopping, roll-back and the epochs before the first round are FedLinked's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import Info, Method, only
from rayfed_ssl.federated.server import counting, pretrain
from rayfed_ssl.methods.parts.tasks import Epochs, TaskClient, TaskConfig, TaskServer, check_tasks, footprint, planned


class Config(TaskConfig):
    name: Literal["fedavg_trunk"] = "fedavg_trunk"
    weights: Literal["uniform", "size"] = "uniform"
    """How clients count in the mean: all the same, or by their number of images."""
    labelled_public: bool = False
    """Whether clients also train on the labelled public images."""
    fine_tune_epochs: Epochs = None
    """Epochs of the head on the frozen trunk; null: ``train.local_epochs``."""


class Client(TaskClient[Config]):
    def train(self) -> dict[str, Any]:
        """Supervised epochs on the whole network; replies with the trunk."""
        self.load_own()
        self.learn(None, *self.images())
        self.keep_own()
        return {"trunk": pack(self.network.encoder)}

    def adopt(self, trunk: Weights) -> dict[str, Any]:
        """The averaged trunk under this client's own head, which is then fine-tuned."""
        self.load_own()
        unpack(trunk, self.network.encoder)
        self.fine_tune(self.method.fine_tune_epochs)
        self.keep_own_and_best()
        return {}

    def images(self) -> tuple[Tensor, Tensor]:
        """(n, channels, H, W) uint8 and labels (n,): the ``train`` split, with the public images if so configured."""
        pixels, labels = self.pixels(), self.labels()
        if not self.method.labelled_public:
            return pixels, labels
        known = self.task_labels(self.context.federation.public_images.labels)
        mine = known >= 0
        return torch.cat([pixels, self.public_pixels()[mine]]), torch.cat([labels, known[mine]])


class Server(TaskServer[Config]):
    def counts(self, clients: Sequence[int]) -> dict[int, float] | None:
        return counting(self.method.weights, clients)

    def round(self, t: int, cohort: Cohort) -> None:
        pretrain(self, cohort)
        by = self.counts(cohort.clients)
        trunk = cohort.mean("train", by=by, fields=("trunk",))["trunk"]
        cohort.tell("adopt", trunk=trunk)


FEDAVG_TRUNK = Method(
    Config,
    Client,
    Server,
    Info("FedAvg of trunks, heads kept (FedLinked's baseline)", "trunk weights", stateful=True),
    objective="supervised",
    accepts=only("supervised"),
    check=check_tasks,
    footprint=footprint,
    planned=planned,
)
