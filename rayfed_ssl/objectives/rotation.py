"""Rotation prediction (Gidaris et al. 2018): by which of four rotations was an image turned? Used by FedPR.

Shape legend: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, full_precision


def rotations(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, C, H, H) turned by 0, 90, 180 and 270 degrees: images (4B, C, H, H), turn by turn, and labels (4B,)."""
    images = torch.cat([torch.rot90(x, turns, dims=(-2, -1)) for turns in range(4)])
    return images, torch.arange(4, device=x.device).repeat_interleave(len(x))


def turned(images: Tensor, turns: Tensor) -> Tensor:
    """Each of ``images`` (B, C, H, H) rotated by its number of quarter turns, ``turns`` (B,) in 0 .. 3."""
    side = images.shape[-1]
    pixel = torch.arange(side**2, device=images.device).reshape(side, side)
    source = torch.stack([torch.rot90(pixel, quarter).flatten() for quarter in range(4)])  # (4, H H)
    chosen = source[turns][:, None].expand(-1, images.shape[1], -1)  # (B, C, H H): the pixel whose value each gets
    return images.flatten(2).gather(2, chosen).reshape(images.shape)


class RotationConfig(ObjectiveConfig):
    name: Literal["rotation"] = "rotation"


@dataclass(frozen=True)
class Rotation(Objective):
    """Cross-entropy of the four-way rotation head on the encoder's features, for every image in all four rotations.

    Differs: FedCA only names the FedPR baseline; Orchestra's code draws one random rotation per image.
    """

    config: RotationConfig

    block: ClassVar[type[ObjectiveConfig]] = RotationConfig
    heads: ClassVar[frozenset[str]] = frozenset({"rotation"})
    minimum_batch: ClassVar[int] = 1

    @property
    def views(self) -> int:
        return 1

    def step(self, network: Network, batch: Batch) -> Step:
        (view,) = batch.views
        images, turns = rotations(view)
        features = network.represent(images)
        logits = network.through("rotation", features)  # (4B, 4)
        return Step(F.cross_entropy(full_precision(logits), turns), (), features.chunk(4))
