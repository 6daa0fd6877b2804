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

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.evaluation.material import FrozenEncoder
from rayfed_ssl.evaluation.protocol import Comparison

GROUP = "features/"


class AnglesConfig(Block):
    """The ``evaluation.angles`` block."""

    images: int = Field(1000, ge=1)
    """Test images looked at, the first ones."""


def mean_angle(a: Tensor, b: Tensor) -> float:
    """The mean over images of the angle, in degrees, between rows of ``a`` and ``b`` (N, D).

    Measured as 2 atan2(|a - b|, |a + b|) of the normalised rows, which keeps small angles exact.
    """
    a, b = F.normalize(a.double(), dim=1), F.normalize(b.double(), dim=1)
    return float((2 * (a - b).norm(dim=1).atan2((a + b).norm(dim=1))).rad2deg().mean())


def compare(encoders: Mapping[str, FrozenEncoder], pixels: NDArray[np.uint8], config: AnglesConfig) -> dict[str, float]:
    """``features/angle``, the mean over pairs of encoders whose features have one dimension, in degrees; and
    ``features/angle/A B`` of each such pair.

    Source: Zhang et al. 2020 (FedCA), figure 4, which does not say over what it averages: here over common test images.

    Raises:
        UserError: no two encoders can be compared.
    """
    features = {name: encoder.features(pixels[: config.images]) for name, encoder in encoders.items()}
    pairs = {
        f"{GROUP}angle/{a} {b}": mean_angle(features[a], features[b])
        for a, b in itertools.combinations(features, 2)
        if features[a].shape == features[b].shape
    }
    if not pairs:
        dims = ", ".join(f"{name} ({x.shape[1]} dimensions)" for name, x in features.items()) or "none"
        raise UserError(
            f"evaluation.protocols: found angles with encoders {dims}; it needs at least two of one dimension"
        )
    return {f"{GROUP}angle": float(np.mean(list(pairs.values()))), **pairs}


ANGLES = Comparison(AnglesConfig, compare)
