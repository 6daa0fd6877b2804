"""Membership scores, higher for images that look as if a client had trained on them.

Each is fixed before any label is looked at; none is turned round to look better.
Shapes: n images, V views, D projection, P public images, L entries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def agreement(features: Tensor) -> Tensor:
    """How alike an encoder finds views of one image: the mean of cos(f(x_v), f(x_w)) over pairs v < w (EncoderMI, Liu
    et al. 2021).

    Args:
        features: (V, n, D), V at least 2.
    Returns:
        (n,)
    """
    unit = F.normalize(features.double(), dim=2)
    views = len(unit)
    pairs = unit.sum(0).square().sum(1) - views  # the sum over ordered pairs v != w
    return pairs / (views * (views - 1))


def in_correlation(difference: Tensor, z: Tensor, images: int) -> Tensor:
    """How much of an image's own share S_x / n is in R - R_ref: n <R - R_ref, S_x> / ||S_x||_F^2, S_x = mean_v z_v
    z_v'. It is 1 for a member and 0 for another where R_ref is R without it: the likelihood-ratio test under Gaussian
    noise.

    Args:
        difference: R - R_ref (D, D).
        z: (V, n, D) projections of the views that the client may have summed.
        images: how many the client's R is a mean over.
    Returns:
        (n,)
    """
    z = z.double()
    along = torch.einsum("vnd,de,vne->n", z, difference.double(), z) / len(z)
    norms = torch.einsum("vnd,wnd->nvw", z, z).square().mean((1, 2))
    return images * along / norms.clamp_min(torch.finfo(torch.float64).tiny)


def nearest(entries: Tensor, z: Tensor) -> Tensor:
    """(n,) the largest cosine of each z (n, D) with any of the ``entries`` (L, D)."""
    return (F.normalize(z.double(), dim=1) @ F.normalize(entries.double(), dim=1).T).amax(1)


def surrogate(features: Tensor, rows: Tensor, ridge: float) -> Tensor:
    """A linear map W (D, K) from reference features (P, D) to the uploaded rows (P, K), by ridge regression: what a
    server that sees representations of public images only can make of the client's encoder.

    ``ridge`` is relative to the mean of the features' squares.
    """
    x, y = features.double(), rows.double()
    gram = x.T @ x
    scale = ridge * float(gram.diagonal().mean())
    solved: Tensor = torch.linalg.solve(gram + scale * torch.eye(len(gram), dtype=torch.float64), x.T @ y)
    return solved
