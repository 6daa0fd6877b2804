"""Raw pixels instead of an encoder's features: the baseline that an encoder has to beat.

``Protocol.pixels`` says how a protocol reads them. Shapes: N images, S image side, C channels, and features of D =
min(S, 32)^2 C dimensions.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

SIDE = 32
"""The largest side that is measured: images larger than it are averaged by area to ``SIDE`` x ``SIDE``. A colour image
of 224 x 224 would have 150,528 dimensions, and 50,000 of them 30 GB of features.
"""
BLOCK = 2**24
"""Values that are averaged at once: 64 MiB of float32."""


def flattened(pixels: NDArray[np.uint8]) -> Tensor:
    """The features (N, D) of images (N, S, S, C) uint8, in [0, 255]: their uint8 values, or float32 means of areas if
    images are larger than ``SIDE``.
    """
    if pixels.shape[1] <= SIDE:
        return torch.from_numpy(np.array(pixels)).reshape(len(pixels), -1)  # a copy: mapped arrays are read-only
    means = torch.empty(len(pixels), SIDE, SIDE, pixels.shape[3])
    rows = max(1, BLOCK // pixels[0].size)
    for start in range(0, len(pixels), rows):
        block = torch.from_numpy(np.array(pixels[start : start + rows])).permute(0, 3, 1, 2).float()
        means[start : start + rows] = F.adaptive_avg_pool2d(block, SIDE).permute(0, 2, 3, 1)
    return means.flatten(1)


def shares(pixels: NDArray[np.uint8]) -> Tensor:
    """The features of images (N, S, S, C) uint8 as (N, D) float32 in [0, 1]."""
    return flattened(pixels).float().div_(255)  # in place, as nothing else uses them
