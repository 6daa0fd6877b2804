"""The loss of one image as a membership score: training lowers the loss on members (Yeom et al. 2018).

The loss depends mostly on how difficult the image is, so the decrease of the loss by training tells more about
membership (Watson et al. 2022). Losses that contrast an image with others are no function of one image. So each image
is put into a batch with images that the adversary has, which are the same for all.

Shapes: n images, R images of the adversary, V views, H features.
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
    """The objective's loss on batches that consist of one image and the images ``beside``, for each image. The V views
    make several batches of ``objective.views`` views, and the loss is the mean over these.

    The network is its own momentum target, and each batch begins with the same new memory. What a step draws, such as
    masks, is the same for every image. Differs: in training, the other images of a batch are members. BatchNorm uses
    the mode of ``network``, which should be eval; otherwise the other images of the batch decide.

    Args:
        views: (V, n, ..) views of images, or other inputs of ``network``, in its precision, to which a memory is
            converted. V is at least ``objective.views``.
        beside: (V, R, ..) views of the adversary's images.
        labels: (n,) and (R,), for objectives that read labels.
        draws: the generator of the new memory and of the steps.
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
    """An encoder that returns its input, so that a network takes features in place of images."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return features


@contextmanager
def taking_features(network: Network) -> Iterator[None]:
    """Within this context the network takes features (B, H) in place of images, and only its heads are computed."""
    encoder = network.encoder
    network.encoder = _Passing(encoder.dim)
    try:
        yield
    finally:
        network.encoder = encoder


def heads_in_float64(network: Network) -> Network:
    """A copy of the network's heads in float64, which takes features (B, H) in place of images.

    A confident classifier has very small losses, and adding them to the losses of other images in the batch rounds them
    away in float32. Many images would have the same loss, which hides an order that the server can compute.
    """
    with taking_features(network):
        return deepcopy(network).double()
