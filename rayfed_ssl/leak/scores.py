"""Membership scores, which are higher for images on which a client seems to have trained.

The direction of each score is fixed in advance; none is inverted after its area is known.

Shapes: n images, V views, D projection, P public images, K outputs, L entries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.base.sphere import squared_lengths


def agreement(features: Tensor) -> Tensor:
    """How similar an encoder's features of one image's views are: the mean of cos(f(x_v), f(x_w)) over pairs v < w
    (EncoderMI, Liu et al. 2021). The cosine of a row of zeros is 0.

    Args:
        features: (V, n, D), V at least 2.
    Returns:
        (n,)
    """
    unit = F.normalize(features.double(), dim=2)
    views = len(unit)
    pairs = unit.sum(0).square().sum(1) - squared_lengths(unit).sum(0)  # the sum over ordered pairs v != w
    return pairs / (views * (views - 1))


def in_correlation(difference: Tensor, z: Tensor, images: int) -> Tensor:
    """How much of an image's own contribution S_x / N is in R - R_ref: N <R - R_ref, S_x> / ||S_x||_F^2, where
    S_x = mean_v z_v z_v' and N is ``images``. It is 1 for a member and 0 for a non-member if R_ref is R without the
    image's contribution. This is the likelihood-ratio test under Gaussian noise.

    Args:
        difference: R - R_ref (D, D).
        z: (V, n, D) projections of the views that the client may have summed.
        images: N, the number of images over which the client's R is a mean.
    Returns:
        (n,)
    """
    z = z.double()
    along = torch.einsum("vnd,de,vne->n", z, difference.double(), z) / len(z)
    norms = torch.einsum("vnd,wnd->nvw", z, z).square().mean((1, 2))
    return images * along / norms.clamp_min(torch.finfo(torch.float64).tiny)


def nearest(entries: Tensor, z: Tensor) -> Tensor:
    """(n,) the largest cosine of each row of z (n, D) with any of the ``entries`` (L, D)."""
    return (F.normalize(z.double(), dim=1) @ F.normalize(entries.double(), dim=1).T).amax(1)


def surrogate(features: Tensor, rows: Tensor, ridge: float) -> Tensor:
    """A linear map W (D, K) from reference features (P, D) to the uploaded rows (P, K), by ridge regression. With it, a
    server that sees only the outputs for public images can imitate the client's encoder.

    ``ridge`` is relative to the mean diagonal entry of the features' Gram matrix.
    """
    x, y = features.double(), rows.double()
    gram = x.T @ x
    scale = ridge * float(gram.diagonal().mean())
    solved: Tensor = torch.linalg.solve(gram + scale * torch.eye(len(gram), dtype=torch.float64), x.T @ y)
    return solved
