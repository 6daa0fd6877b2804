"""FedDecorr: features whose dimensions are not correlated, against dimensional collapse (Shi et al. 2023, "Towards
understanding and mitigating dimensional collapse in heterogeneous federated learning").

Nothing extra crosses. Beside its own loss a client minimises ``weight`` times the decorrelation of the encoder's
features of a batch, the mean over its views; other images that a loss reads have no part in it. The weight of the paper
is 0.1 on CIFAR-10, 0.05 on CIFAR-100.

A plug-in: ``plugins: [{name: feddecorr}]`` adds it to any method's local training. ``method.name: feddecorr`` is this
plug-in over FedAvg. With weight 0 nothing is added, bit for bit.

Differs: the paper trains a classifier on labels, with one view; here any objective will do. ``batch_free`` is the
paper's form, which does not grow with the batch, scaled to be the code's at 64 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.federated.method import Info, Method, anything
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.methods import fedavg
from rayfed_ssl.objectives.decorrelation import decorrelation
from rayfed_ssl.settings.run import PluginConfig, RunSettings


class Config(PluginConfig):
    name: Literal["feddecorr"] = "feddecorr"
    weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the decorrelation in the loss."""
    batch_free: bool = False
    """Whether the strength is the same whatever the batch size."""
    weights: Literal["size", "uniform"] = "size"
    """Where it is the method: how clients count in the mean, by their number of images or all the same."""

    def minimum_batch(self, settings: RunSettings) -> int:
        return 3  # two rows are always perfectly correlated

    def unused(self, path: str) -> Mapping[str, str]:
        keys = {} if path == "method" else {f"{path}.weights": f"method.name={self.name}"}
        return keys if self.weight else keys | {f"{path}.batch_free": f"{path}.weight above 0"}


class ClientHalf(ClientPlugin[Config]):
    needs_features = True

    def penalty(self, projections: tuple[Tensor, ...], features: tuple[Tensor, ...] = ()) -> Tensor | None:
        if self.config.weight == 0:
            return None
        terms = [decorrelation(view, batch_free=self.config.batch_free) for view in features]
        return self.config.weight * torch.stack(terms).mean()


FEDDECORR = Method(
    Config,
    fedavg.Client,
    fedavg.Server,
    Info("FedDecorr (Shi 2023)", "weights"),
    objective="simclr",
    accepts=anything,
    plugin=(ClientHalf, ServerPlugin),
    step="exchange",
    averages_targets=True,
)
