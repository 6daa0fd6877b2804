"""Orchestra's clusterings: balanced local centroids of a client's memory, and global centroids of all clients' local
ones (Lubana et al. 2022).

Shape legend: N rows, D embedding, K centroids, G global centroids.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.base import optimizers

SHARPNESS = 25.0  # lambda
TOLERANCE = 1e-2
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4  # of SGD on the global centroids


@torch.no_grad()
def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """Soft assignments of rows to centroids of about equal size: scores (N, K) -> (N, K), rows summing to 1.

    ``W = softmax(lambda S)`` over centroids, c = 1/N; then ``r_k = (1/K) / sum_i W_ik c_i`` and ``c_i = (1/N) / sum_k
    W_ik r_k`` in turn; the result is ``N W_ik c_i r_k``. As in the authors' code it ends early if the sum of the
    relative changes of c is below 1e-2 after iteration 1, 11, 21, ... At convergence, columns sum to N/K.
    """
    w = (SHARPNESS * scores).softmax(dim=1)
    rows, columns = w.shape
    c = w.new_full((rows,), 1 / rows)
    for iteration in range(iterations):
        before = c
        r = (1 / columns) / (c @ w)
        c = (1 / rows) / (w @ r)
        if iteration % 10 == 0 and (before / c - 1).abs().sum() < TOLERANCE:
            break
    return rows * w * c.unsqueeze(1) * r


@torch.no_grad()
def local_centroids(memory: Tensor, count: int, draws: torch.Generator, repeats: int = 5) -> Tensor:
    """Centroids (min(count, N), D) of normalised rows ``memory`` (N, D).

    They start as different random rows. Then, ``repeats`` times, each row goes to the centroid to which
    :func:`sinkhorn` (10 iterations) assigns most of it, and each centroid becomes the normalised mean of its rows, or a
    random row if it has none.
    """
    count = min(count, len(memory))
    order = torch.randperm(len(memory), generator=draws, device=memory.device)
    centroids = memory[order[:count]]
    for _ in range(repeats):
        assigned = sinkhorn(memory @ centroids.T, iterations=10).argmax(dim=1)  # (N,)
        members = F.one_hot(assigned, count).to(memory.dtype)  # (N, K)
        spare = memory[torch.randint(len(memory), (count,), generator=draws, device=memory.device)]
        empty = members.sum(dim=0) == 0
        centroids = torch.where(empty.unsqueeze(1), spare, F.normalize(members.T @ memory, dim=1))
    return centroids


def centroid_loss(x: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """``-mean cos(a, p)`` with constant ``a = sinkhorn(X C^T)`` and ``p = softmax(X C^T / T)``: x (N, D), C (K, D)."""
    scores = x @ centroids.T
    assigned = sinkhorn(scores.detach(), iterations=100)
    return -F.cosine_similarity(assigned, (scores / temperature).softmax(dim=1), dim=1).mean()


def fit_centroids(centroids: Tensor, x: Tensor, temperature: float, *, steps: int = 500, lr: float = 0.01) -> Tensor:
    """Global centroids (K, D) after SGD on :func:`centroid_loss` over stacked local ones x (N, D), from ``centroids``.

    Rows are normalised at the start and after each step; momentum is kept.

    Differs: the authors' first centroids are not normalised before their first assignment.
    """
    c = F.normalize(centroids.detach(), dim=1).requires_grad_()
    optimizer = optimizers.SGD([c], lr, MOMENTUM, weight_decay=WEIGHT_DECAY)
    for _ in range(steps):
        optimizer.zero_grad()
        centroid_loss(x, c, temperature).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            c.copy_(F.normalize(c, dim=1))
    return c.detach()


class ClusterSpread(NamedTuple):
    """How local centroids are spread over the global ones."""

    clusters: float  # exp of the entropy of the global centroids' shares: 1 if all are at one, G if evenly spread
    cosine: float  # mean cosine of a local centroid with its nearest global one


def spread(x: np.ndarray, centroids: np.ndarray) -> ClusterSpread:
    """The spread of local centroids x (N, D), each belonging to the nearest of ``centroids`` (G, D) by cosine."""
    units, globals_ = (rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12) for rows in (x, centroids))
    cosines = units.astype(np.float64) @ globals_.astype(np.float64).T
    shares = np.bincount(cosines.argmax(axis=1)) / len(x)
    shares = shares[shares > 0]
    return ClusterSpread(float(np.exp(-(shares * np.log(shares)).sum())), float(cosines.max(axis=1).mean()))
