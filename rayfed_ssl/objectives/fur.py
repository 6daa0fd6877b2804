"""FedU2's uniform regulariser: projections should look like uniform samples of the sphere (Liao et al. 2024).

Distances between the two samples are sliced Wasserstein distances in tangent spaces of the sphere.

Shape legend: B batch, D embedding, T tangent spaces, P directions of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rayfed_ssl.objectives.base import full_precision, no_autocast, random_rows


def log_map(base: Tensor, points: Tensor) -> Tensor:
    """``Log_b(y)``: the tangent vector at b towards y, as long as the arc between them: rows (..., D) -> (..., D).

    ``Log_b(y) = angle(b, y) u / ||u||`` with ``u = y - <b, y> b``; 0 for y = b. At y = -b the direction is not defined,
    and the result is 0. Rows of ``base`` have length 1; the length of y does not matter.
    """
    cosine = (base * points).sum(dim=-1, keepdim=True)
    u = points - cosine * base
    sine: Tensor = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    return u * (torch.atan2(sine, cosine) / sine.clamp_min(torch.finfo(u.dtype).tiny))


def sliced_wasserstein(z: Tensor, targets: Tensor, base: Tensor, directions: Tensor) -> Tensor:
    """Squared sliced Wasserstein distances of z and targets in tangent spaces: unit rows (B, D), (B, D), (T, D) and
    directions (T, P, D) -> (T,).

    Both samples are mapped to the tangent space at each base point; along each direction their sorted coordinates are
    compared, with the mean over directions and ranks.
    """
    spaces = base.unsqueeze(1)  # (T, 1, D)
    with no_autocast(z):
        along = [(log_map(spaces, rows) @ directions.mT).sort(dim=1).values for rows in (z, targets)]  # (T, B, P)
    return (along[0] - along[1]).square().mean(dim=(1, 2))


def sphere_uniformity(z: Tensor, tangent_spaces: int, directions: int, draws: torch.Generator) -> Tensor:
    """Mean sliced Wasserstein distance between the directions of z's rows (B, D) and uniform ones: ().

    Base points and B targets are uniform on the sphere, directions are standard Gaussian; each call draws all of them
    anew from ``draws``, on z's device. Gradients flow through z only.

    Differs: the authors' code has B tangent spaces, sums over them and divides by 6; a weight w there is ``w B / 6``
    here. Its arccos needs unit rows, but it normalises z for SimCLR only; here lengths do not matter. The paper speaks
    of unbalanced optimal transport, which the code does not have.
    """
    z = full_precision(z)
    count, dim = z.shape
    base, targets = (random_rows(n, dim, draws).to(z.dtype) for n in (tangent_spaces, count))
    slices = torch.randn(tangent_spaces, directions, dim, generator=draws, device=draws.device).to(z.dtype)
    return sliced_wasserstein(z, targets, base, slices).mean()
