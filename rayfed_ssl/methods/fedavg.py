"""FedAvg over a local objective: weights down, weights up, mean by data size (McMahan et al. 2017).

One exchange a round. ``fedavg`` takes any objective that reads no labels; the other names say which objective they
train with. BYOL's momentum target stays on the client, is reset each round, or averaged, too (``objective.target``).

Papers' codes disagree on what is averaged. Here parameters and floating buffers are, with weights n_j, unless
``method.weights: uniform``.

Differs: integer counters (``num_batches_tracked``) neither travel nor are averaged. EasyFL's FedMoCo also sends the key
encoder, which nobody uses. In Fed-MAE's code a client keeps its AdamW's state from round to round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import Info, Method, only, unlabelled
from rayfed_ssl.federated.server import MethodServer, counting
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.settings.blocks import MethodConfig


class Config(MethodConfig):
    weights: Literal["size", "uniform"] = "size"
    """How clients count in the mean: by their number of images, or all the same (FLESD, FedSC)."""


AnyConfig = TypeVar("AnyConfig", bound=Config)


class FedAvg(Config):
    """FedAvg over any objective that reads no labels."""

    name: Literal["fedavg"] = "fedavg"


class FedSimCLR(Config):
    """FedAvg over SimCLR."""

    name: Literal["fedsimclr"] = "fedsimclr"


class FedBYOL(Config):
    """FedAvg over BYOL."""

    name: Literal["fedbyol"] = "fedbyol"


class FedMoCo(Config):
    """FedAvg over MoCo, whose key encoder starts each round as the downloaded network."""

    name: Literal["fedmoco"] = "fedmoco"


class FedSimSiam(Config):
    """FedAvg over SimSiam."""

    name: Literal["fedsimsiam"] = "fedsimsiam"


class FedAE(Config):
    """FedAvg of an autoencoder, a baseline of FedCA."""

    name: Literal["fedae"] = "fedae"


class FedMAE(Config):
    """FedAvg of a masked autoencoder."""

    name: Literal["fedmae"] = "fedmae"


class FedPR(Config):
    """FedAvg over rotation prediction, a baseline of FedCA."""

    name: Literal["fedpr"] = "fedpr"


class FedAvgSC(Config):
    """FedAvg over spectral contrast without sharing, the biased baseline of FedSC."""

    name: Literal["fedavg_sc"] = "fedavg_sc"


class FedAvgSupervised(Config):
    """FedAvg over the clients' labels, classifier included: what the others do without."""

    name: Literal["fedavg_supervised"] = "fedavg_supervised"


class Client(EncoderClient[AnyConfig]):
    """A client that trains the model it is sent, and replies with it."""

    def train(self, weights: Weights, target: Weights | None = None) -> dict[str, Any]:
        """Local epochs from the global ``weights``; ``target`` is the momentum target, where that is averaged, too."""
        self.load(weights, target)
        self.fit()
        return dict(self.averaged)


class Server(MethodServer[AnyConfig]):
    """The global model, which each round becomes the mean of its clients' models."""

    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()

    def counts(self, clients: Sequence[int]) -> dict[int, float] | None:
        return counting(self.method.weights, clients)

    def round(self, t: int, cohort: Cohort) -> None:
        by = self.counts(cohort.clients)
        if self.config.averages_target:
            target = self.state.get("target")
            mean = cohort.mean("train", by=by, fields=("weights", "target"), weights=self.weights, target=target)
            self.state |= mean.average
        else:
            self.weights = cohort.mean("train", by=by, weights=self.weights)["weights"]

    # -- costs ---------------------------------------------------------------------------------------------------------

    def workload(self, operation: str, client: int) -> Workload:
        return self.fitting(client, **self.setup.network_sizes(self.common_encoder, target=self.config.averages_target))

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """In the first round a target that is averaged is a copy, and does not come down."""
        averaged = self.config.averages_target and t > 1
        return self.setup.network_sizes(self.common_encoder, "down", target=averaged)


FEDAVG = Method(
    FedAvg,
    Client,
    Server,
    Info("FedAvg (McMahan 2017)", "weights"),
    objective="simclr",
    accepts=unlabelled,
    step="exchange",
    averages_targets=True,
)


def _over(
    config: type[Config],
    objective: str,
    paper: str,
    *,
    transmits: str = "weights",
    stateful: bool = False,
    averages_targets: bool = True,
) -> Method:
    """The row of FedAvg over the one objective that its name stands for."""
    return Method(
        config,
        Client,
        Server,
        Info(paper, transmits, stateful=stateful),
        objective=objective,
        accepts=only(objective),
        step="exchange",
        averages_targets=averages_targets,
    )


FEDSIMCLR = _over(FedSimCLR, "simclr", "FedAvg with SimCLR (McMahan 2017; Chen 2020)")
FEDBYOL = _over(FedBYOL, "byol", "FedAvg with BYOL (Grill 2020)", stateful=True)
FEDMOCO = _over(FedMoCo, "moco", "FedAvg with MoCo (He 2020; Zhuang 2022)")
FEDSIMSIAM = _over(FedSimSiam, "simsiam", "FedAvg with SimSiam (Chen 2021; Zhuang 2022)")
FEDAE = _over(FedAE, "autoencoder", "FedAvg of an autoencoder (baseline of FedCA)", transmits="weights, decoder's too")
FEDMAE = _over(FedMAE, "mae", "FedAvg of a masked autoencoder (He 2022; Yan 2023)", transmits="weights, decoder's too")
FEDPR = _over(FedPR, "rotation", "FedAvg with rotation prediction (baseline of FedCA)")
FEDAVG_SC = _over(
    FedAvgSC, "spectral", "FedAvg with spectral contrast (HaoChen 2021; Jing 2024)", averages_targets=False
)
FEDAVG_SUPERVISED = _over(FedAvgSupervised, "supervised", "FedAvg with labels (McMahan 2017)", averages_targets=False)
