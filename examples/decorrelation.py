"""A plug-in written outside the library: FedDecorr (Shi et al. 2023, "Towards understanding and mitigating dimensional
collapse in heterogeneous federated learning", eq. 4-5), which keeps the columns of the features uncorrelated.

    rayfed-ssl run configs/demo.yaml 'imports=[examples/decorrelation.py]' 'plugins=[{name: decorrelation}]'

Nothing extra crosses. The penalty is weight / N times the mean of C_ij^2 over i != j, averaged over views; C = X^T X of
the N standardised rows X of a view's features, as the authors' code has it: N - 1 times the correlation matrix.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.federated.method import Info, Method, projecting
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.methods import fedavg
from rayfed_ssl.settings.run import PluginConfig

EPSILON = 1e-8


class Config(PluginConfig):
    name: Literal["decorrelation"] = "decorrelation"
    weights: Literal["size", "uniform"] = "size"
    """As a method: how clients count in the mean, by their number of images or all the same."""
    weight: Annotated[float, Field(ge=0)] = 0.1
    """Of the term in the loss."""


def decorrelation(x: Tensor) -> Tensor:
    """The penalty on features x (N, D), N >= 2; unchanged by shifting and scaling a column."""
    rows, columns = x.shape
    x = (x - x.mean(0)) / torch.sqrt(EPSILON + x.var(0))
    c = x.T @ x
    return (c.square().sum() - c.diagonal().square().sum()) / (columns * (columns - 1)) / rows


class OnTheClient(ClientPlugin[Config]):
    needs_features = True

    def penalty(self, projections: tuple[Tensor, ...], features: tuple[Tensor, ...] = ()) -> Tensor | None:
        terms = [decorrelation(view.float()) for view in features if len(view) > 1]
        return self.config.weight * torch.stack(terms).mean() if terms else None


class OnTheServer(ServerPlugin[Config]):
    """Nothing: the penalty is the client's own business."""


METHODS = {
    "decorrelation": Method(
        Config,
        fedavg.Client,
        fedavg.Server,
        Info("FedDecorr (Shi et al. 2023)", "weights"),
        objective="simclr",
        accepts=projecting,
        plugin=(OnTheClient, OnTheServer),
        averages=True,
    )
}
