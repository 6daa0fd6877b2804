"""L-DAWA: each tensor of a client counts by its angle to the model the round started from (Rehman et al. 2023,
"L-DAWA: layer-wise divergence aware weight aggregation in federated self-supervised visual representation learning").

One exchange a round, as in FedAvg, over any objective. The server's step is ``1/n sum_k v_k x_k`` for every tensor,
``v_k = cos(x_k, g)``, g being the global model that was sent. It is neither divided by sum_k v_k nor weighted by images
(``normalize`` divides). In the first ``warmup`` rounds it is FedAvg's mean.

The server sees each client's own weights. It adds them up one client after the other, in client order, and holds one
float64 sum, not n models.

Differs: BatchNorm's running statistics are means with weights n_k; the authors' code scales them by their angles, too,
where its comment says they keep their values (``as_code``). A tensor that was all zeros has no direction: its clients
count fully, where the code divides by 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.weights import named
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.methods import fedavg
from rayfed_ssl.models.network import Network


class Config(fedavg.Config):
    name: Literal["ldawa"] = "ldawa"
    warmup: Annotated[int, Field(ge=0)] = 3
    """Rounds of FedAvg's mean at the start."""
    normalize: bool = False
    """Whether the sum is divided by the sum of the cosines' magnitudes."""
    as_code: bool = False
    """Whether running statistics count by their cosines, too, as in the authors' code."""


def angular_divergence(x: np.ndarray, start: np.ndarray) -> float:
    """``<x, g> / (||x|| ||g||)`` of one tensor and the one the client started from, at most 1.

    1 where either is all zeros: a bias that starts at 0 has no direction to diverge from.
    """
    a, g = np.asarray(x, np.float64).ravel(), np.asarray(start, np.float64).ravel()
    lengths = float(np.sqrt(np.dot(a, a)) * np.sqrt(np.dot(g, g)))
    return min(float(np.dot(a, g)) / lengths, 1.0) if lengths > 0 else 1.0


class LayerwiseSum:
    """``sum_k v_k x_k`` of every tensor, client by client.

    Tensors named in ``averaged`` (running statistics, say), and those without dimensions, are plain means instead, with
    the weights given to :meth:`add`.
    """

    def __init__(self, start: Mapping[str, np.ndarray], averaged: Collection[str] = ()) -> None:
        self.start = start
        self.plain = {name for name, old in start.items() if name in averaged or np.ndim(old) == 0}
        self.sums = {name: np.zeros(np.shape(old)) for name, old in start.items()}
        self.angles: dict[str, list[float]] = {name: [] for name in start if name not in self.plain}
        self.weight, self.clients = 0.0, 0

    def add(self, client: Mapping[str, np.ndarray], weight: float = 1.0) -> None:
        """Add a client; ``weight`` counts in the plain means."""
        for name, old in self.start.items():
            factor = weight
            if name not in self.plain:
                factor = angular_divergence(client[name], old)
                self.angles[name].append(factor)
            self.sums[name] += factor * np.asarray(client[name], np.float64)
        self.weight += weight
        self.clients += 1

    def mean(self, *, normalize: bool = False) -> dict[str, np.ndarray]:
        """``1/n sum_k v_k x_k``; with ``normalize`` divided by sum_k |v_k| instead, which keeps a tensor's length where
        clients agree but for sign. Where all v_k are 0 the sum is 0, too.
        """
        new = {}
        for name, total in self.sums.items():
            count = float(self.clients)
            if name in self.plain:
                count = self.weight
            elif normalize:
                count = sum(abs(angle) for angle in self.angles[name]) or 1.0
            new[name] = np.asarray(total / count, np.asarray(self.start[name]).dtype)
        return new


class Server(fedavg.Server[Config]):
    @cached_property
    def network(self) -> Network:
        """The common architecture, for the names and shapes of its tensors."""
        return InitialWeights(self.config, self.setup.federation).network(self.common_encoder)

    def notes(self) -> list[Note | str]:
        return [*self.never_begun(), *self.without_effect()]

    def without_effect(self) -> list[str]:
        """A line for each key without effect: where the network has no running statistics, or where these count by
        cosines, too. Parameters without dimensions have a plain mean in any case.
        """
        statistics, none = any(True for _ in self.network.buffers()), "the network has no running statistics"
        lines = [f"method.as_code has no effect: {none}"] if self.method.as_code and not statistics else []
        plain = (statistics and not self.method.as_code) or any(p.ndim == 0 for p in self.network.parameters())
        if self.method.weights == "uniform" and not self.method.warmup and not plain:
            why = "method.as_code=true, and method.warmup=0 leaves out FedAvg's mean" if statistics else none
            lines.append(f"method.weights has no effect: {why}")
        return lines

    def never_begun(self) -> list[Note]:
        """A line if the warm-up takes all rounds."""
        rounds, warmup = self.config.train.rounds, self.method.warmup
        if rounds > warmup:
            return []
        more = (
            f": found train.rounds={rounds} and method.warmup={warmup}; for ldawa's own, a method.warmup of at most "
            f"{rounds - 1}, or train.rounds of at least {warmup + 1}"
        )
        return [Note.shareable("every round takes FedAvg's mean", more)]

    def round(self, t: int, cohort: Cohort) -> None:
        if t <= self.method.warmup:
            super().round(t, cohort)
            return
        statistics = set() if self.method.as_code else {name for name, _ in self.network.named_buffers()}
        total = LayerwiseSum(named(self.weights, self.network), statistics)
        for reply in cohort.ask("train", weights=self.weights):
            share = 1.0 if self.method.weights == "uniform" else float(cohort.shares[reply.client])
            total.add(named(reply["weights"], self.network), share)
        if total.clients:  # without a reply the round fails at its end
            new = total.mean(normalize=self.method.normalize)
            self.weights = self.weights.with_vector(np.concatenate([value.ravel() for value in new.values()]))
            self.metrics["ldawa/cosine"] = float(np.mean([np.mean(angles) for angles in total.angles.values()]))


LDAWA = Method(
    Config,
    fedavg.Client,
    Server,
    Info("L-DAWA (Rehman 2023)", "weights"),
    objective="simclr",
    accepts=unlabelled,
)
