"""Small dense linear algebra for methods that exchange correlations and representations, in float64 throughout.

Shape legend: m rows of a batch, n projection dimension (m >= n), P peers, N public samples, r representation dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The Gram route needs the ratio of the smallest to the largest eigenvalue of the Gram matrix to be above this value
# (a condition of Z R^T below 1e5). Below it, one Newton-Schulz step no longer reaches full precision.
GRAM_TOLERANCE = 1e-10


@torch.no_grad()
def canonical_r(z: Tensor) -> Tensor:
    """The triangular factor of ``z`` (m, n) with a non-negative diagonal, (n, n), in ``z``'s dtype; no gradient.

    FedFoA, eq. 4. Householder QR leaves the signs of the diagonal arbitrary, which would cancel in a mean over batches
    and corrupt traces; with this sign R is unique for full column rank and equals ``cholesky(Z^T Z)^T``. Columns are
    not pivoted: pivoting would permute them from batch to batch.

    Raises ValueError if m < n.
    """
    m, n = z.shape
    if m < n:
        raise ValueError(f"canonical_r: {m} rows for {n} columns; at least as many rows as columns are needed")
    r: Tensor = torch.linalg.qr(z.double(), mode="r").R
    diagonal = r.diagonal()
    return (torch.where(diagonal < 0, -1.0, 1.0).unsqueeze(-1) * r).to(z.dtype)


@torch.no_grad()
def polar_factor(z: Tensor, r: Tensor) -> Tensor:
    """``argmin ||Z - Q R_j||_F`` over Q with orthonormal columns, for every peer: z (m, n), r (P, n, n) -> (P, m, n).

    FedFoA, eq. 5. The solution is the polar factor of A = Z R^T; the attained value is
    ``||Z||_F^2 + ||R||_F^2 - 2 ||R Z^T||_*``. No gradient flows through Q: if A has full rank, the minimiser's
    contribution to the gradient vanishes, so a constant Q is exact. The result has ``z``'s dtype.

    Differs: no SVD of an n x m matrix. Q = A (A^T A)^{-1/2} from the n x n Gram matrix, and one Newton-Schulz step,
    which squares the remaining orthogonality error. An SVD is computed only for peers with collapsed or ill-conditioned
    features.

    Raises ValueError if m < n.
    """
    m, n = z.shape
    if m < n:
        raise ValueError(f"polar_factor: {m} rows for {n} columns; at least as many rows as columns are needed")
    a = z.double() @ r.double().mT  # (P, m, n)
    eigenvalues, vectors = torch.linalg.eigh(a.mT @ a)  # ascending: (P, n), (P, n, n)
    inverse_root = eigenvalues.clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    q: Tensor = a @ ((vectors * inverse_root.unsqueeze(-2)) @ vectors.mT)
    q = q @ (1.5 * torch.eye(n, dtype=q.dtype, device=q.device) - 0.5 * (q.mT @ q))
    weak = eigenvalues[:, 0] <= GRAM_TOLERANCE * eigenvalues[:, -1]  # true for all-zero features as well
    if bool(weak.any()):
        q[weak] = _polar_by_svd(a[weak])
    return q.to(z.dtype)


def _polar_by_svd(a: Tensor) -> Tensor:
    """The polar factor of ``a`` (P, m, n) of any rank, by QR first, because Q is orthonormal even if ``a`` is zero."""
    basis, triangle = torch.linalg.qr(a)
    u, _, vh = torch.linalg.svd(triangle, driver="gesvd" if a.is_cuda else None)
    q: Tensor = basis @ (u @ vh)
    return q


@torch.no_grad()
def orthogonal_map(p_k: Tensor, p_j: Tensor) -> tuple[Tensor, Tensor]:
    """The orthogonal map B (r, r) that best turns representations p_k (N, r) into p_j (N, r), and its value ().

    FedLinked, eq. 3.8: R = sum_x alpha_k alpha_j^T = P_k^T P_j = U S V^T; B = V U^T maximises Tr(B R) over orthogonal
    B (reflections allowed), hence minimises ``||P_k B^T - P_j||_F``. The value is the nuclear norm ||R||_*, which is
    the utility G_kj = G_jk. Representations are rows, so transformed ones are ``p_k @ b.T``. B has ``p_k``'s dtype, the
    value is float64. If R is rank-deficient, B is not unique and any completion is returned.

    Raises ValueError if the shapes differ.
    """
    if p_k.shape != p_j.shape:
        raise ValueError(f"orthogonal_map: shapes {tuple(p_k.shape)} and {tuple(p_j.shape)} differ")
    u, s, vh = torch.linalg.svd(p_k.double().mT @ p_j.double(), driver="gesvd" if p_k.is_cuda else None)
    return (u @ vh).mT.to(p_k.dtype), s.sum()
