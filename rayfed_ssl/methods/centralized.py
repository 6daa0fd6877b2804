"""Centralized: the same self-supervised training on the union of all shards.

This is no federated method but a reference that federated ones are measured against. One model is trained where
server work runs. Nothing crosses the wire, so no bytes are booked. A round is the run's ``local_epochs`` over the
union, or ``local_steps`` batches from it. Every image counts in every round, whatever ``participation.fraction`` says.
The optimiser is made anew each round, as in the federated methods, unless ``train.optimizer.keep``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import Info, Method, anything
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.run import RunSettings


class Config(MethodConfig):
    name: Literal["centralized"] = "centralized"


class Client(EncoderClient[Config]):
    """The one learner. A momentum target or memory it keeps from round to round travels with the weights."""

    @property
    def encoder(self) -> str:
        return self.config.clients.encoder(0)

    @property
    def indices(self) -> np.ndarray:
        """Every client's training images, as ascending indices into the training set, however they were dealt."""
        return np.sort(np.concatenate([shard["train"] for shard in self.context.federation.shards]))

    def pretrain(
        self, weights: Weights, target: Weights | None, memory: dict[str, np.ndarray] | None
    ) -> dict[str, Any]:
        """A round: local epochs from ``weights``; momentum target and memory are those of the last round."""
        if target is not None:
            self.state["target"] = target
        if memory is not None:
            self.state["memory"] = memory
        self.load(weights)
        self.fit()
        return {"weights": self.weights, "target": self.state.get("target"), "memory": self.state.get("memory")}


class Server(MethodServer[Config]):
    reaches_clients = False

    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()
        self.state |= {"target": None, "memory": None}

    def round(self, t: int, cohort: Cohort) -> None:
        kept: dict[str, Any] = {name: self.state[name] for name in ("target", "memory")}
        reply = cohort.serve("pretrain", weights=self.weights, **kept)
        self.state |= {name: reply[name] for name in ("weights", "target", "memory")}
        self.metrics = {f"train/{name}": cohort.metrics[reply.client][name] for name in ("loss", "lr", "images")}


def check(config: RunSettings) -> None:
    """Refuse plug-ins: there are no clients for them to exchange anything between. Raises ValueError."""
    if config.plugins:
        names = ", ".join(plugin.name for plugin in config.plugins)
        raise ValueError(f"plugins: found {names}; centralized has no clients to exchange with; allowed: none")


CENTRALIZED = Method(
    Config,
    Client,
    Server,
    Info("reference: the same objective on all images in one place", "nothing"),
    objective="simclr",
    accepts=anything,
    sends_weights=lambda config: (),
    service=Client,
    check=check,
)
