"""Alignment and uniformity of vectors on the unit sphere (Wang and Isola 2020, section 4.1), which serve as a training
loss and describe features.

Shape legend: B rows, D dimensions.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def alignment(z_a: Tensor, z_b: Tensor) -> Tensor:
    """``mean ||z_a - z_b||^2`` of normalised rows: z_a, z_b (B, D) -> (), between 0 and 4."""
    a, b = F.normalize(z_a, dim=1), F.normalize(z_b, dim=1)
    return (a - b).square().sum(dim=1).mean()


def squared_lengths(rows: Tensor) -> Tensor:
    """The squared lengths of normalised rows (.., D) -> (..): exactly 1, and 0 or nearly of rows of zeros or nearly,
    as of an encoder that has died, which cannot be normalised.
    """
    squares = rows.detach().square().sum(dim=-1)
    return torch.where(squares > 0.5, 1.0, squares)


def uniformity(z: Tensor, t: float) -> Tensor:
    """``log mean_{i<j} exp(-t ||z_i - z_j||^2)`` of normalised rows: z (B, D) -> ().

    Each pair of different rows counts once. B must be at least 2. A row of zeros, as of an encoder that has died, has
    no direction and stays in the middle: at distance 0 of other such rows, and 1 of all others.
    """
    rows = F.normalize(z, dim=1)
    lengths = squared_lengths(rows)
    first, second = torch.triu_indices(len(rows), len(rows), offset=1, device=rows.device)
    cosines = (rows @ rows.T)[first, second]
    distances = lengths[first] + lengths[second] - 2 * cosines
    return torch.logsumexp(-t * distances, dim=0) - math.log(len(distances))
