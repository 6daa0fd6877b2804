"""Autoencoding: reconstruct the pixels of a view from the encoder's features. Used by FedAE.

Shape legend: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, full_precision


class AutoencoderConfig(ObjectiveConfig):
    name: Literal["autoencoder"] = "autoencoder"


@dataclass(frozen=True)
class Autoencoder(Objective):
    """Mean squared error per pixel between one augmented view and its reconstruction.

    Differs: FedCA only names the FedAE baseline and gives no decoder or input corruption; here nothing is corrupted.
    """

    config: AutoencoderConfig

    block: ClassVar[type[ObjectiveConfig]] = AutoencoderConfig
    heads: ClassVar[frozenset[str]] = frozenset({"decoder"})

    @property
    def views(self) -> int:
        return 1

    def step(self, network: Network, batch: Batch) -> Step:
        (view,) = batch.views
        features = network.represent(view)
        pixels = network.through("decoder", features)
        return Step(F.mse_loss(full_precision(pixels), view), (), (features,))
