"""SSD: separates clients into subspaces, and distils projections into features (Fang et al. 2025).

Shape legend: N rows of a batch, D embedding, w dimensions of a client's subspace.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.objectives.base import full_precision, kl_divergence, no_autocast


def subspaces(dim: int, clients: int, draws: torch.Generator) -> Tensor:
    """Disjoint random index sets of w = floor(D / clients) dimensions: (clients, w), one row per client id.

    Raises ValueError for more clients than dimensions.
    """
    width = dim // clients
    if width < 1:
        raise ValueError(f"subspaces: {clients} clients for {dim} dimensions; at most one client per dimension")
    order = torch.randperm(dim, generator=draws, device=draws.device)
    return order[: clients * width].reshape(clients, width)


def orthonormal(dim: int, draws: torch.Generator) -> Tensor:
    """A random orthogonal Q (D, D) in float64: the QR factor of a Gaussian matrix."""
    q: Tensor = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=draws, device=draws.device)).Q
    return q


def scaling(q: Tensor, subspace: Tensor, scale: float) -> Tensor:
    """``A = Q diag(1, scale on the subspace) Q^T``: Q (D, D), indices (w,) -> (D, D), symmetric."""
    diagonal = torch.ones(len(q), dtype=q.dtype, device=q.device)
    diagonal[subspace] = scale
    return (q * diagonal) @ q.T


def separation(z: Tensor, a: Tensor) -> Tensor:
    """DSR: ``||Z - P||_F / N`` with constant ``p_i = A z_i / ||A z_i||``: z (N, D), A (D, D) symmetric -> ().

    Rows of z are normalised first. The norm is of the whole batch and not squared, as in the authors' code, so the
    term shrinks like 1 / sqrt(N).
    """
    z = F.normalize(full_precision(z), dim=1)
    with no_autocast(z), torch.no_grad():
        p = F.normalize(z @ a.to(z.dtype), dim=1)
    norm: Tensor = torch.linalg.vector_norm(z - p)
    return norm / len(z)


def projector_distillation(features: Tensor, projections: Tensor, temperature: float) -> Tensor:
    """PD: ``KL(softmax(h / T) || softmax(f / T))``, mean over the batch: f, h (N, D) -> (). Gradients flow into both.

    Raises ValueError if features and projections differ in shape.
    """
    if features.shape != projections.shape:
        raise ValueError(
            f"projector_distillation: features {tuple(features.shape)} and projections {tuple(projections.shape)} "
            "must have one shape"
        )
    log_f, log_h = (F.log_softmax(full_precision(x) / temperature, dim=1) for x in (features, projections))
    return kl_divergence(log_h, log_f)
