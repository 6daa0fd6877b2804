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

LASTING = ("target", "memory", "optimizer")  # momentum target, memory, and the optimiser's moments where these are kept


class Config(MethodConfig):
    name: Literal["centralized"] = "centralized"


class Client(EncoderClient[Config]):
    """The one learner. What lasts of it beside the weights, ``LASTING`` of its state, travels with them."""

    @property
    def indices(self) -> np.ndarray:
        """Every client's training images, as ascending indices into the training set, however they were dealt."""
        return np.sort(np.concatenate([shard["train"] for shard in self.context.federation.shards]))

    def pretrain(self, weights: Weights, **lasting: Any) -> dict[str, Any]:
        """A round: local epochs from ``weights``; ``lasting`` is what was kept of the last round, None where nothing
        was.
        """
        self.state |= {name: value for name, value in lasting.items() if value is not None}
        self.load(weights)
        self.fit()
        return {"weights": self.weights, **{name: self.state.get(name) for name in LASTING}}


class Server(MethodServer[Config]):
    reaches_clients = False

    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()
        self.state |= dict.fromkeys(LASTING)

    def round(self, t: int, cohort: Cohort) -> None:
        lasting: dict[str, Any] = {name: self.state.get(name) for name in LASTING}  # older checkpoints lack the last
        reply = cohort.serve("pretrain", weights=self.weights, **lasting)
        self.state |= {name: reply[name] for name in ("weights", *LASTING)}
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
