"""Autoencoding: reconstruct the pixels of a view from the encoder's features. Used by FedAE.

Shape legend: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.base.schema import Block
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Step, full_precision


class Config(Block):
    """``objective: {name: autoencoder}``. It has no coefficients."""

    name: Literal["autoencoder"] = "autoencoder"


@dataclass(frozen=True)
class Objective:
    """Mean squared error per pixel between one augmented view and its reconstruction.

    Differs: FedCA only names the FedAE baseline and gives no decoder or input corruption; here nothing is corrupted.
    """

    config: Config

    heads: ClassVar[frozenset[str]] = frozenset({"decoder"})
    target: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    views: ClassVar[int] = 1
    minimum_batch: ClassVar[int] = 2  # BatchNorm has no variance over one row of a 1 x 1 map

    def step(
        self, network: Network, views: tuple[Tensor, ...], target: Network | None = None, labels: Tensor | None = None
    ) -> Step:
        (view,) = views
        return Step(F.mse_loss(full_precision(network.reconstruct(view)), view), ())

    def after_step(self, network: Network, target: Network | None = None) -> None:
        """Nothing to do."""
