"""A plug-in written outside the library: KoLeo (Sablayrolles et al. 2019, "Spreading vectors for similarity search"),
which keeps the features of a batch apart from each other, as in DINOv2.

    rayfed-ssl run configs/demo.yaml 'imports=[examples/koleo.py]' 'plugins=[{name: koleo}]'

The term is weight times -1/N sum_i log min_{j != i} ||x_i - x_j|| of a view's N features of unit length, the mean over
views: the entropy of features, estimated from nearest neighbours (Kozachenko and Leonenko 1987). Nothing extra crosses,
so the server's half is the library's own.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.methods import fedavg
from rayfed_ssl.settings.run import PluginConfig, RunSettings

EPSILON = 1e-8  # within the logarithm: two images may have the same features


class Config(PluginConfig):
    name: Literal["koleo"] = "koleo"
    weights: Literal["size", "uniform"] = "size"
    """Where it is the method: how clients count in the mean, by their number of images or all the same."""
    weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the term in the loss."""

    def minimum_batch(self, settings: RunSettings) -> int:
        return 2  # an image needs a neighbour


def koleo(x: Tensor) -> Tensor:
    """The term of features x (N, D), N >= 2: a number, the smaller the farther nearest neighbours are."""
    x = F.normalize(x, dim=1)
    nearest = (x @ x.T).detach().fill_diagonal_(-2).argmax(1)  # below any cosine: nobody is its own neighbour
    return -torch.log((x - x[nearest]).norm(dim=1) + EPSILON).mean()


class OnTheClient(ClientPlugin[Config]):
    needs_features = True

    def penalty(self, projections: tuple[Tensor, ...], features: tuple[Tensor, ...] = ()) -> Tensor | None:
        return self.config.weight * torch.stack([koleo(view.float()) for view in features]).mean()


METHODS = {
    "koleo": Method(
        Config,
        fedavg.Client,
        fedavg.Server,
        Info("KoLeo (Sablayrolles et al. 2019)", "weights"),
        objective="simclr",
        accepts=unlabelled,
        plugin=(OnTheClient, ServerPlugin),
        step="exchange",
        averages_targets=True,
    )
}
