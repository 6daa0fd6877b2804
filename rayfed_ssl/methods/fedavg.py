"""FedAvg over a local objective: weights down, weights up, mean by data size (McMahan et al. 2017).

One exchange a round. The method's name says which objective it trains with. ``fedsimclr`` trains with SimCLR.
``fedbyol`` trains with BYOL, whose momentum target stays on the client, is reset each round or is averaged too
(``objective.target``). ``fedavg_sc`` trains with spectral contrast and shares nothing else: FedSC's biased baseline.
``fedavg_supervised`` trains on the clients' labels and averages the classifier too.

Parameters and floating buffers are averaged. Integer counters (``num_batches_tracked``) do not travel.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import Info, Method, only
from rayfed_ssl.federated.server import MethodServer, counting
from rayfed_ssl.settings.blocks import MethodConfig


class Config(MethodConfig):
    """``weights``: how clients count in the mean, by their number of images or all the same (FLESD, FedSC)."""

    weights: Literal["size", "uniform"] = "size"


Own = TypeVar("Own", bound=Config)


class FedSimCLR(Config):
    name: Literal["fedsimclr"] = "fedsimclr"


class FedBYOL(Config):
    name: Literal["fedbyol"] = "fedbyol"


class FedAvgSC(Config):
    name: Literal["fedavg_sc"] = "fedavg_sc"


class FedAvgSupervised(Config):
    name: Literal["fedavg_supervised"] = "fedavg_supervised"


class Client(EncoderClient[Own]):
    def train(self, weights: Weights, target: Weights | None = None) -> dict[str, Any]:
        self.load(weights, target)
        self.fit()
        return dict(self.averaged)


class Server(MethodServer[Config]):
    def start(self, cohort: Cohort) -> None:
        self.weights = self.setup.initial(self.config.clients.encoder(self.setup.clients[0]))

    def round(self, t: int, cohort: Cohort) -> None:
        by = counting(self.method.weights, cohort.clients)
        if self.config.averages_target:
            target = self.state.get("target")
            mean = cohort.mean("train", by=by, fields=("weights", "target"), weights=self.weights, target=target)
            self.state |= mean.average
        else:
            self.weights = cohort.mean("train", by=by, weights=self.weights)["weights"]


FEDSIMCLR = Method(
    FedSimCLR,
    Client,
    Server,
    Info("FedAvg with SimCLR (McMahan 2017; Chen 2020)", "weights"),
    objective="simclr",
    accepts=only("simclr"),
    averages=True,
)
FEDBYOL = Method(
    FedBYOL,
    Client,
    Server,
    Info("FedAvg with BYOL (Grill 2020)", "weights", stateful=True),
    objective="byol",
    accepts=only("byol"),
    averages=True,
)
FEDAVG_SC = Method(
    FedAvgSC,
    Client,
    Server,
    Info("FedAvg with spectral contrast (HaoChen 2021; Jing 2024)", "weights"),
    objective="spectral",
    accepts=only("spectral"),
)
FEDAVG_SUPERVISED = Method(
    FedAvgSupervised,
    Client,
    Server,
    Info("FedAvg with labels (McMahan 2017)", "weights"),
    objective="supervised",
    accepts=only("supervised"),
)
