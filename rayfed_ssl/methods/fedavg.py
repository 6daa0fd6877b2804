"""FedAvg over a local objective: weights down, weights up, mean by data size (McMahan et al. 2017).

One exchange a round. The method's name says which objective it trains with: ``fedsimclr`` (SimCLR), ``fedbyol`` (BYOL,
whose momentum target stays on the client, is reset each round or averaged, too: ``objective.target``), ``fedavg_sc``
(spectral contrast without sharing, the biased baseline of FedSC). Papers' codes disagree on what is averaged
(ALGORITHMS 0.1); here parameters and floating buffers are, with weights n_j, unless ``method.weights: uniform``.
``fedavg_supervised`` trains on the clients' labels, classifier included: what the others do without.

Differs: integer counters (``num_batches_tracked``) neither travel nor are averaged.
"""

from __future__ import annotations

from typing import Any, Literal

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.client import EncoderClient, averages_target
from rayfed_ssl.methods.base import Info, Method, MethodConfig, MethodServer


class Config(MethodConfig):
    """``weights``: how clients count in the mean, by their number of images or all the same (FLESD, FedSC)."""

    weights: Literal["size", "uniform"] = "size"


class FedSimCLR(Config):
    name: Literal["fedsimclr"] = "fedsimclr"


class FedBYOL(Config):
    name: Literal["fedbyol"] = "fedbyol"


class FedAvgSC(Config):
    name: Literal["fedavg_sc"] = "fedavg_sc"


class FedAvgSupervised(Config):
    name: Literal["fedavg_supervised"] = "fedavg_supervised"


class Client(EncoderClient):
    def train(self, weights: Weights, target: Weights | None = None) -> dict[str, Any]:
        self.load(weights, target)
        self.fit()
        return dict(self.averaged)


class Server(MethodServer):
    def start(self, cohort: Any) -> None:
        self.weights = self.setup.initial(self.config.clients.encoder(self.setup.clients[0]))

    def round(self, t: int, cohort: Any) -> None:
        by = self.counting(cohort.clients)
        if averages_target(self.config):
            model = {"weights": self.weights, "target": self.state.get("target")}
            self.state |= cohort.mean("train", by=by, fields=("weights", "target"), **model).average
        else:
            self.weights = cohort.mean("train", by=by, weights=self.weights)["weights"]


FEDSIMCLR = Method(
    FedSimCLR, Client, Server, Info("FedAvg with SimCLR (McMahan 2017; Chen 2020)", "weights"), objectives=("simclr",),
    averages=True,
)  # fmt: skip
FEDBYOL = Method(
    FedBYOL, Client, Server, Info("FedAvg with BYOL (Grill 2020)", "weights", stateful=True), objectives=("byol",),
    averages=True,
)  # fmt: skip
FEDAVG_SC = Method(
    FedAvgSC, Client, Server, Info("FedAvg with spectral contrast (HaoChen 2021; Jing 2024)", "weights"),
    objectives=("spectral",),
)  # fmt: skip
FEDAVG_SUPERVISED = Method(
    FedAvgSupervised, Client, Server, Info("FedAvg with labels (McMahan 2017)", "weights"), objectives=("supervised",)
)
