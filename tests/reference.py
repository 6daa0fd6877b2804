"""Slow, independent versions of the losses: plain Python loops over numpy float64, straight from the equations.

Shape legend: V views, B batch, D embedding, K bank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def cosine(a: Array, b: Array) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def nt_xent(z_a: ArrayLike, z_b: ArrayLike, temperature: float) -> float:
    """Chen et al. 2020: row i's positive is the other view of its image, its denominator all rows but itself."""
    rows = [*np.asarray(z_a, float), *np.asarray(z_b, float)]
    half = len(rows) // 2
    losses = []
    for i, row in enumerate(rows):
        positive = math.exp(cosine(row, rows[(i + half) % len(rows)]) / temperature)
        everything = sum(math.exp(cosine(row, other) / temperature) for j, other in enumerate(rows) if j != i)
        losses.append(-math.log(positive / everything))
    return sum(losses) / len(losses)


def info_nce(z_a: ArrayLike, z_b: ArrayLike, temperature: float, bank: ArrayLike = ()) -> float:
    """Anchors of view 1 against the B views 2 and K dictionary entries."""
    anchors, keys, extra = (np.asarray(z, float) for z in (z_a, z_b, bank))
    losses = []
    for i, anchor in enumerate(anchors):
        scores = [math.exp(cosine(anchor, key) / temperature) for key in [*keys, *extra]]
        losses.append(-math.log(scores[i] / sum(scores)))
    return sum(losses) / len(losses)


def byol(p_a: ArrayLike, p_b: ArrayLike, target_a: ArrayLike, target_b: ArrayLike) -> float:
    """Both directions of 2 - 2 cos, summed, mean over the batch."""
    quadruples = zip(*(np.asarray(z, float) for z in (p_a, p_b, target_a, target_b)), strict=True)
    losses = [(2 - 2 * cosine(pa, tb)) + (2 - 2 * cosine(pb, ta)) for pa, pb, ta, tb in quadruples]
    return sum(losses) / len(losses)


def _ordered_pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((u, v) for u in range(count) for v in range(count) if u != v)


def spectral(z: ArrayLike) -> float:
    """-2 E z_a.z_b over views of one image + E (z.z')^2 over all pairs of rows: z (V, B, D). No correlation matrix."""
    z = np.asarray(z, float)
    views, batch, _ = z.shape
    attraction = [float(z[u, i] @ z[v, i]) for i in range(batch) for u, v in _ordered_pairs(views)]
    rows = z.reshape(views * batch, -1)
    contrast = [float(a @ b) ** 2 for a in rows for b in rows]
    return -2 * sum(attraction) / len(attraction) + sum(contrast) / len(contrast)


def spectral_against(z: ArrayLike, others: ArrayLike, alpha: float) -> float:
    """FedSC's local loss with the other clients' rows (M, D) at hand: z (V, B, D)."""
    z, others = np.asarray(z, float), np.asarray(others, float)
    views, batch, _ = z.shape
    attraction = [float(z[u, i] @ z[v, i]) for i in range(batch) for u, v in _ordered_pairs(views)]
    rows = z.reshape(views * batch, -1)
    within = [float(a @ b) ** 2 for a in rows for b in rows]
    between = [float(a @ b) ** 2 for a in rows for b in others]
    return (
        -2 * sum(attraction) / len(attraction)
        + alpha * sum(within) / len(within)
        + 2 * (1 - alpha) * sum(between) / len(between)
    )
