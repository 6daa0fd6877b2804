"""Angles between the representations that different encoders give the same images.

Shapes: N images, D embedding.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.schema import Block
from rayfed_ssl.evaluation.material import FrozenEncoder, drawn_rows
from rayfed_ssl.evaluation.protocol import EncoderComparison

TAG = "features/angle"


class AnglesConfig(Block):
    """Angles between encoders."""

    images: int = Field(1000, ge=1)
    """Test images looked at, drawn by the run's seed; all where there are fewer."""
    clients: int = Field(10, ge=2)
    """Clients of a round looked at during a run, the first of those that reply."""


def mean_angle(a: Tensor, b: Tensor) -> float:
    """The mean over images of the angle, in degrees, between rows of ``a`` and ``b`` (N, D).

    Measured as 2 atan2(|a - b|, |a + b|) of the normalised rows, which keeps small angles exact.
    """
    a, b = F.normalize(a.double(), dim=1), F.normalize(b.double(), dim=1)
    return float((2 * (a - b).norm(dim=1).atan2((a + b).norm(dim=1))).rad2deg().mean())


def features_of(encoder: FrozenEncoder, pixels: NDArray[np.uint8], config: AnglesConfig, seed: int) -> Tensor:
    """Features (n, D) of images (N, S, S, channels), the same ones for every encoder of a run."""
    return encoder.features(pixels[np.sort(drawn_rows(len(pixels), config.images, seed, "angles"))])


def compare(features: Mapping[str, Tensor], config: AnglesConfig) -> dict[str, float]:
    """``features/angle``, in degrees: the mean over pairs of encoders whose features have the same dimension; and
    ``features/angle/A B`` for each such pair. Empty if there is no such pair.

    Source: Zhang et al. 2020 (FedCA), figure 4, which does not say what it averages over; here it is the common test
    images.
    """
    pairs = {
        f"{TAG}/{a} {b}": mean_angle(features[a], features[b])
        for a, b in itertools.combinations(features, 2)
        if features[a].shape == features[b].shape
    }
    return {TAG: float(np.mean(list(pairs.values()))), **pairs} if pairs else {}


ANGLES = EncoderComparison(AnglesConfig, TAG, features_of, compare, lambda config: config.clients)
