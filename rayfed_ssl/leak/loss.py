"""The loss of one image as a membership score: a model was trained to a low loss on its members (Yeom et al. 2018).

What an image is like decides most of it; by how much training lowered it says more of membership (Watson et al. 2022).
Losses that contrast an image with others are no function of one image, so it stands in a batch with images that the
adversary has, the same for all. Shapes: n images, R of the adversary's, V views, H features.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor

from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Memory, Objective


@torch.no_grad()
def losses(
    objective: Objective,
    network: Network,
    views: Tensor,
    beside: Tensor,
    labels: tuple[Tensor, Tensor] | None,
    draws: torch.Generator,
) -> Tensor:
    """The objective's loss on batches of one image and those beside it: the mean over as many batches as V views make.

    The network is its own momentum target, and a memory is a fresh one in each batch; what a step draws, such as masks,
    is the same for every image. Differs: a client's batches are other members; BatchNorm is in the mode of the
    ``network``, which should be eval, or the neighbours decide.

    Args:
        views: (V, n, ..) of images, or what ``network`` takes in their place, in its precision, which a memory is
            converted to; V at least ``objective.views``.
        beside: (V, R, ..) of the adversary's images.
        labels: (n,) and (R,), for objectives that read them.
        draws: of the fresh memory, and of the steps.
    Returns:
        (n,) float64 on the CPU.
    """
    per, rows = objective.views, range(views.shape[1])
    fresh = objective.remember(objective.memory_dim(network.config), draws) if objective.memory else {}
    drawn = {name: tensor.to(views.dtype) if tensor.is_floating_point() else tensor for name, tensor in fresh.items()}
    target = None if objective.config.momentum_target is None else network
    firsts = range(0, len(views) - per + 1, per)
    began = draws.get_state()

    def loss(row: int, first: int) -> Tensor:
        pick = slice(first, first + per)
        shown = torch.cat([views[pick, row : row + 1], beside[pick]], dim=1).unbind()
        known = None if labels is None else torch.cat([labels[0][row : row + 1], labels[1]])
        tensors = {name: tensor.clone() for name, tensor in drawn.items()}
        memory = Memory(tensors=tensors, draws=draws) if objective.memory else None
        return objective.step(network, Batch(shown, known, target, memory)).loss.double()

    def mean(row: int) -> Tensor:
        draws.set_state(began)
        return torch.stack([loss(row, first) for first in firsts]).mean()

    return torch.stack([mean(row) for row in rows]).cpu()


class _Passing(Encoder):
    """Takes features for images."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return features


@contextmanager
def taking_features(network: Network) -> Iterator[None]:
    """Within this context the network takes features (B, H) in place of images: its heads alone are at work."""
    encoder = network.encoder
    network.encoder = _Passing(encoder.dim)
    try:
        yield
    finally:
        network.encoder = encoder


def heads_in_float64(network: Network) -> Network:
    """A copy of the network's heads in float64, which takes features (B, H) in place of images.

    In float32 a classifier that is sure of its images has the same loss on many of them: what is far below 1 is rounded
    away beside the losses of the images in the batch. Such ties hide an order that the server can compute.
    """
    with taking_features(network):
        return deepcopy(network).double()
