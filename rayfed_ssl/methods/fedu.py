"""FedU: clients always take the global encoder, but the global predictor only if they have not diverged (Zhuang et al.
2021, "Collaborative unsupervised visual representation learning from decentralized data").

One exchange a round, of encoder, projector and predictor, as in FedBYOL. A client takes the global online encoder. Its
predictor is the global one where its divergence d_k is strictly below ``threshold``, else its own of its last round
(DAPU, divergence-aware predictor update). The momentum target stays the client's own. In its first round a client
takes everything. The server's mean is FedAvg's, weights n_j.

Differs: the paper's divergence is between the client's last encoder and the new global one; its code (EasyFL) takes how
far the client's own last training moved its convolutions, mean over layers, which is the default
(``divergence: easyfl``). The threshold is on another scale then: 0.4 is the code's.
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
    check_federation,
    footprint,
    predicting,
    takes_predictor,
)


class Config(divergence.Config):
    name: Literal["fedu"] = "fedu"
    threshold: Annotated[float, Field(ge=0)] = 0.4
    """A client with a divergence at or above it keeps its own predictor; 0: always."""


class Client(DivergentClient[Config]):
    def train(self, weights: Weights) -> dict[str, Any]:
        """Local epochs from the global encoder, under the global predictor or this client's own."""
        d = self.divergence(weights)
        if d is not None:
            takes = takes_predictor(d, self.method.threshold)
            self.metrics |= {"divergence": d, "takes_predictor": float(takes)}
            if not takes:
                weights = self.with_own_predictor(weights)
        self.load(weights)
        return self.train_and_keep()

    def with_own_predictor(self, received: Weights) -> Weights:
        """The received values under this client's own predictor, its running statistics included."""
        mixed = received.with_vector(received.vector.copy())
        own = named(self.state["model"], self.network)
        for name, values in named(mixed, self.network).items():
            if name.startswith("predictor."):
                values[...] = own[name]
        return mixed


FEDU = Method(
    Config,
    Client,
    fedavg.Server,
    Info("FedU (Zhuang 2021)", "weights", stateful=True),
    objective="byol",
    accepts=predicting,
    step="exchange",
    check_federation=check_federation,
    footprint=footprint,
)
