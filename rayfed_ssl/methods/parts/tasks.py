"""A client with a classification task of its own (``data.tasks``), as in FedLinked, trunk averaging and local training.

It trains supervised epochs with early stopping, fine-tunes a head on a frozen trunk, and rolls back to its best
round. A client's images are split in four (thesis, Table 4.1). ``train`` is trained on. ``es`` decides early stopping
within an operation. ``rb`` chooses the round to roll back to. ``accuracy.task`` is measured on ``test``, or on the test
images of the task's classes (``evaluation.tasks_on``); nothing is chosen by it. Labels are 0 .. C - 1 within the task,
in the order of ``data.tasks``.

Shape legend: n images, C classes of the task, r representation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.evaluation import SELECT, EncoderValues, outcomes_of
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import ClientFootprint
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.steps import descend
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.run import RunSettings

Config = TypeVar("Config", bound="TaskConfig")
Epochs = Annotated[int, Field(ge=1)] | None


class TaskConfig(MethodConfig):
    """What the methods of this setting have in common."""

    batch_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Rows of a batch per image at hand; null: ``train.batch_size``."""
    initial_epochs: Epochs = None
    """Epochs before a client's first round; null: ``train.local_epochs``."""
    patience: Annotated[int, Field(ge=1)] = 5
    """Epochs without a lower loss on ``es`` before training stops."""
    rollback: bool = True
    """Whether a client returns to the round that was best on ``rb`` after the last one."""

    def batch_rows(self, batch_size: int, images: int) -> int:
        """The rows of a batch for a client with so many ``images``."""
        return batch_size if self.batch_ratio is None else round(self.batch_ratio * images)


class TaskClient(EncoderClient[Config]):
    """A client whose classifier has the classes of its own task. Without ``data.tasks``, or with an objective that does
    not read labels, it is a plain client.
    """

    @property
    def classes(self) -> int | None:
        return self.context.federation.task_classes(self.id) if self.objective.labelled else None

    @property
    def supervised(self) -> bool:
        """Whether this client learns a task of its own."""
        return self.classes is not None

    # -- images --------------------------------------------------------------------------------------------------------

    def split(self, name: str) -> Tensor:
        """(n, channels, H, W) uint8: the images of one of this client's four splits."""
        federation = self.context.federation
        return self.context.images(federation.dataset.train.pixels, federation.shards[self.id][name])

    def split_labels(self, name: str) -> Tensor:
        """(n,) labels of that split, 0 .. C - 1."""
        federation = self.context.federation
        return self.task_labels(federation.dataset.train.labels[federation.shards[self.id][name]])

    def tested(self) -> tuple[Tensor, Tensor]:
        """(n, channels, H, W) uint8 and (n,): the images on which ``accuracy.task`` is measured, and their labels."""
        federation = self.context.federation
        if self.config.evaluation.tasks_on == "own":
            return self.split("test"), self.split_labels("test")
        test, rows = federation.dataset.test, federation.task_test(self.id)
        return self.context.images(test.pixels, rows), self.task_labels(test.labels[rows])

    def labels(self) -> Tensor:
        return self.split_labels("train") if self.supervised else super().labels()

    def task_labels(self, labels: np.ndarray) -> Tensor:
        """Turn class numbers of the data set (n,) into 0 .. C - 1 of this client's task, and -1 for other classes."""
        tasks = self.context.federation.tasks
        assert tasks is not None
        number = np.full(self.context.federation.classes, -1, np.int64)
        number[list(tasks[self.id])] = np.arange(len(tasks[self.id]))
        return torch.from_numpy(np.where(labels < 0, -1, number[labels])).to(self.context.device)

    # -- training ------------------------------------------------------------------------------------------------------

    def pretrain(self) -> dict[str, Any]:
        """Train supervised epochs before the first round, from the values with which this client begins."""
        self.load_own()
        self.learn(self.method.initial_epochs)
        self.keep_own()
        return {}

    def learn(self, epochs: int | None, pixels: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Train supervised epochs on the whole network until ``es`` stops them; keep the epoch that was best on ``es``.

        Args:
            epochs: the most epochs; None: train.local_epochs.
            pixels, labels: (n, channels, H, W) uint8 and (n,); by default the ``train`` split.
        """
        network, known = self.network, self.labels() if labels is None else labels
        watch = EarlyStopping(lambda: self.cross_entropy("es"), lambda: self.weights, self.method.patience)
        self.fit(
            lambda views, rows: self.objective.step(network, Batch(views, known[rows])),
            pixels=pixels, epochs=epochs, stop=watch,
        )  # fmt: skip
        if watch.best is not None:
            unpack(watch.best, network)
        self.metrics |= {"es_loss": watch.lowest, "epochs": float(watch.epochs)}

    def fine_tune(self, epochs: int | None) -> None:
        """Train only the head. The trunk is frozen, in eval mode, and sees clean images, so its representations of the
        ``train`` split are computed once.
        """
        head, labels = self.network.classifier, self.labels()
        assert head is not None
        features = self.represented(self.network, self.pixels())  # (n, r)
        head.train()
        parameters: list[Tensor] = list(head.parameters())
        optimizer = self.optimizer(parameters)
        for rows in self.batches(len(features), epochs, purpose="order of the head"):
            loss = F.cross_entropy(head(features[rows]), labels[rows])
            descend(optimizer, loss, self.config.train.optimizer.clip_norm)

    def keep_own_and_best(self) -> None:
        """At the end of a round, keep this client's model, and record it as the best if no earlier one was better on
        ``rb``. If scores are equal the latest counts (thesis, Algorithm 3, line 22).
        """
        self.keep_own()
        score = self.accuracy(self.network, self.split("rb"), self.split_labels("rb"))
        self.metrics["rb_accuracy"] = score
        if self.method.rollback and score >= self.state.get("best_accuracy", -1.0):
            self.state |= {"best": self.state["model"], "best_accuracy": score, "best_round": self.round}

    def roll_back(self) -> dict[str, Any]:
        """After the last round, make the best round's model this client's own."""
        if "best" in self.state:
            self.state["model"] = self.state["best"]
            self.metrics["best_round"] = float(self.state["best_round"])
        return {}

    # -- inference -----------------------------------------------------------------------------------------------------

    def represented(self, network: Network, pixels: Tensor) -> Tensor:
        """(n, r) eval-mode representations of clean images."""
        return self.context.outputs(network, pixels, network.represent)

    @torch.no_grad()
    def logits(self, network: Network, pixels: Tensor) -> Tensor:
        """(n, C) eval-mode logits of clean images, (n, channels, H, W) uint8."""
        features = self.represented(network, pixels)
        assert network.classifier is not None
        logits: Tensor = network.classifier(features)
        return logits

    def accuracy(self, network: Network, pixels: Tensor, labels: Tensor) -> float:
        """The share of the images that are classified rightly."""
        return float((self.logits(network, pixels).argmax(1) == labels).double().mean())

    def cross_entropy(self, split: str) -> float:
        """The mean cross-entropy over the images of one of this client's four splits."""
        return float(F.cross_entropy(self.logits(self.network, self.split(split)), self.split_labels(split)))

    def evaluate(self, encoder: str, weights: Weights | None) -> dict[str, float]:
        """``task``, the accuracy on this client's test images; ``select/task``, that on its roll-back split; and the
        scores of the configured protocols.
        """
        own = self.state.get("model") if weights is None else weights
        values = super().evaluate(encoder, own)
        if not self.supervised:
            return values
        network = self.context.network(encoder, "evaluated", self.classes)
        unpack(self.context.initial(encoder, self.classes, self.id) if own is None else own, network)
        chosen_by = self.accuracy(network, self.split("rb"), self.split_labels("rb"))
        of_task = {"task": self.accuracy(network, *self.tested()), f"{SELECT}task": chosen_by}
        return EncoderValues({**of_task, **values}, outcomes_of(values))


class EarlyStopping:
    """Called after every epoch, it returns whether ``patience`` epochs have passed without a lower loss. ``best`` holds
    the weights at the lowest loss.
    """

    def __init__(self, loss: Callable[[], float], values: Callable[[], Weights], patience: int) -> None:
        self.loss, self.values, self.patience = loss, values, patience
        self.best: Weights | None = None
        self.lowest, self.epochs, self.since = float("inf"), 0, 0

    def __call__(self) -> bool:
        self.epochs += 1
        self.since += 1
        loss = self.loss()
        if loss < self.lowest:
            self.lowest, self.since, self.best = loss, 0, self.values()
        return self.since >= self.patience


class TaskServer(MethodServer[Config]):
    """The server's side of these methods: which clients are pre-trained, and the roll-back after the last round."""

    def start(self, cohort: Cohort) -> None:
        self.state["pretrained"] = []

    def after_last_round(self, cohort: Cohort) -> None:
        """Every client returns to its best round, whether or not it was asked in the last round or lost in it."""
        if self.method.rollback:
            cohort.conclude("roll_back", self.setup.clients)

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        federation = self.setup.federation
        return [
            EvaluatedEncoder(c, self.config.clients.encoder(c), classes=federation.task_classes(c))
            for c in self.setup.clients
        ]


def planned(config: RunSettings) -> str:
    """Why results depend on the planned number of rounds, so that a run cannot be extended; "" if they do not."""
    if config.method_as(TaskConfig).rollback:
        return "method.rollback: found true, which takes every client back to its best after the last of train.rounds"
    return ""


def footprint(config: RunSettings, images: int) -> ClientFootprint:
    """A client keeps its own model, and with ``rollback`` its best one."""
    return ClientFootprint(models=2 if config.method_as(TaskConfig).rollback else 1)


def check_tasks(config: RunSettings) -> None:
    """Refuse a run without tasks. Raises ValueError."""
    if config.data.tasks is None:
        raise ValueError(
            f"data.tasks: found none; {config.method.name} needs a list of class names for every client, its own task"
        )
