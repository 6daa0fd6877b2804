"""L-DAWA: each tensor of a client counts by its angle to the model the round started from (Rehman et al. 2023)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np


def angular_divergence(x: np.ndarray, start: np.ndarray) -> float:
    """``<x, g> / (||x|| ||g||)`` of one tensor and the one the client started from, at most 1.

    1 where either is all zeros: a bias that starts at 0 has no direction to diverge from.
    """
    a, g = np.asarray(x, np.float64).ravel(), np.asarray(start, np.float64).ravel()
    lengths = float(np.sqrt(np.dot(a, a)) * np.sqrt(np.dot(g, g)))
    return min(float(np.dot(a, g)) / lengths, 1.0) if lengths > 0 else 1.0


def layerwise_mean(
    clients: Sequence[Mapping[str, np.ndarray]],
    start: Mapping[str, np.ndarray],
    *,
    shares: np.ndarray | None = None,
    averaged: Collection[str] = (),
    normalize: bool = False,
) -> dict[str, np.ndarray]:
    """``1/n sum_k v_k x_k`` for every tensor, v_k its :func:`angular_divergence` from ``start``.

    Not divided by sum_k v_k, unless ``normalize``, and uniform over clients. A negative v_k turns the tensor round.
    Tensors named in ``averaged`` (running statistics, say), and those without dimensions, are plain means with weights
    ``shares`` (n,), by default uniform.

    Raises ValueError where ``normalize`` meets angles that sum to 0 or less.
    """
    weights = np.full(len(clients), 1 / len(clients)) if shares is None else np.asarray(shares, np.float64)
    new = {}
    for name, old in start.items():
        if name in averaged or np.ndim(old) == 0:
            factors = weights
        else:
            factors = np.array([angular_divergence(client[name], old) for client in clients])
            total = float(factors.sum()) if normalize else float(len(clients))
            if total <= 0:
                raise ValueError(
                    f"layerwise_mean: the angles of {name} sum to {total:.3g}; normalize needs more than 0"
                )
            factors = factors / total
        mean = sum(f * np.asarray(client[name], np.float64) for f, client in zip(factors, clients, strict=True))
        new[name] = np.asarray(mean, np.asarray(old).dtype)
    return new
