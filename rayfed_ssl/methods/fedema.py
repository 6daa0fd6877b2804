"""FedEMA: clients keep more of their own model the more they have diverged (Zhuang et al. 2022, "Divergence-aware
federated self-supervised learning", eq. 1-4).

One exchange a round, of encoder, projector and predictor, as in FedBYOL. A client starts from
``mu_k own + (1 - mu_k) global`` of encoder and predictor, its own being those of its last round, with
``mu_k = min(lambda_k d_k, 1)`` and d_k its divergence. The autoscaler sets ``lambda_k = tau / d_k`` once, at the
client's first divergence, so that mu_k is tau then. The momentum target stays the client's own. In its first round a
client takes everything. The server's mean is FedAvg's, weights n_j. mu_k = 0 is FedBYOL, bit for bit.

Differs: the paper's divergence is between the client's last encoder and the new global one; its code (EasyFL) takes how
far the client's own last training moved its convolutions, mean over layers, which is the default
(``divergence: easyfl``). Running statistics are the global ones; the predictor's are the client's own where
mu_k > 1/2, as in EasyFL.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rayfed_ssl.base.weights import Weights, named
from rayfed_ssl.federated.method import Info, Method
from rayfed_ssl.methods import fedavg
from rayfed_ssl.methods.parts import divergence
from rayfed_ssl.methods.parts.divergence import (
    DivergentClient,
    autoscaler,
    check_federation,
    footprint,
    kept_share,
    mixed,
    predicting,
)
from rayfed_ssl.settings.blocks import refuse_unused
from rayfed_ssl.settings.run import RunSettings


class Config(divergence.Config):
    name: Literal["fedema"] = "fedema"
    autoscale: bool = True
    """Whether lambda_k follows from a client's first divergence."""
    tau: Annotated[float, Field(ge=0, le=1)] = 0.7
    """mu_k at the first divergence, with ``autoscale``."""
    scaler: Annotated[float, Field(ge=0)] = 1.0
    """lambda of all clients, without ``autoscale``."""
    selective: bool = False
    """Whether a client that sat out a round takes everything, target included (EasyFL's option of that name)."""


class Client(DivergentClient[Config]):
    def train(self, weights: Weights) -> dict[str, Any]:
        """Local epochs from ``mu_k own + (1 - mu_k) global`` (eq. 1 and 2)."""
        if self.method.selective and self.state.get("trained", self.round) < self.round - 1:
            self.state.pop("target", None)
        elif (d := self.divergence(weights)) is not None:
            mu = self.share(d)
            self.metrics |= {"divergence": d, "kept_share": mu}
            weights = self.mixture(weights, mu)
        self.load(weights)
        self.state["trained"] = self.round
        return self.train_and_keep()

    def share(self, d: float) -> float:
        """mu_k at divergence d_k; sets lambda_k where the autoscaler has not yet."""
        if not self.method.autoscale:
            return kept_share(self.method.scaler, d)
        if "scaler" not in self.state and (first := autoscaler(self.method.tau, d)) is not None:
            self.state["scaler"] = first
        return kept_share(self.state.get("scaler", 0.0), d)

    def mixture(self, received: Weights, mu: float) -> Weights:
        """mu own + (1 - mu) received, over parameters."""
        own, count = self.state["model"], received.parameters
        result = received.with_vector(received.vector.copy())
        result.vector[:count] = mixed(own.vector[:count], received.vector[:count], mu)
        if mu > 0.5:
            mine, values = named(own, self.network), named(result, self.network)
            for name, _ in self.network.named_buffers():
                if name.startswith("predictor.") and name in values:
                    values[name][...] = mine[name]
        return result


class Server(fedavg.Server[Config]):
    def notes(self) -> list[str]:
        """Nobody sits a round out where each asks all clients and nothing is lost."""
        config, clients = self.config, len(self.setup.clients)
        loses = config.system is not None or config.on_client_error == "drop"
        if not self.method.selective or loses or config.participants(clients) < clients:
            return []
        why = "every client takes part in every round; it needs participation.fraction below 1"
        return [f"method.selective has no effect: {why}"]


def check(config: RunSettings) -> None:
    """Refuse the other way's key to a client's lambda. Raises ValueError."""
    if config.method_as(Config).autoscale:
        refuse_unused(config.method, "method", "scaler", needs="method.autoscale=false")
    else:
        refuse_unused(config.method, "method", "tau", needs="method.autoscale=true")


FEDEMA = Method(
    Config,
    Client,
    Server,
    Info("FedEMA (Zhuang 2022)", "weights", stateful=True),
    objective="byol",
    accepts=predicting,
    step="exchange",
    check=check,
    check_federation=check_federation,
    footprint=footprint,
)
