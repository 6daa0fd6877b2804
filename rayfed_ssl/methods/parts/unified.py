"""FedU2's unified aggregation: one step under which no client's distance to the model grows (Liao et al. 2024), and the
client shares and epochs that belong to it.

Shape legend: n clients, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfed_ssl.base.lazy import LazyModule

MOST_EPOCHS = 10  # local epochs of a client whose steps are equalised
NEEDED = 1e-9  # of ||g||^2 - min_k <u_k, g>, relative to the largest <u_k, u_k>
CHUNK = 1 << 20  # parameters that are processed at once
_optimize = LazyModule("scipy.optimize")


def min_norm_weights(gram: np.ndarray) -> np.ndarray:
    """``argmin ||sum_k a_k u_k||^2`` over the simplex, from the Gram matrix (n, n) of the u_k: a (n,) float64.

    Non-negative least squares finds it exactly: with ``G = B'B``, the x >= 0 that minimises
    ``||B x||^2 + (sum(x) - 1)^2`` is s a for some s > 0, because for each s the shortest ``B a`` is best. The point
    g = sum_k a_k u_k is unique; so is a if the u_k are affinely independent.

    Raises ValueError for a matrix that is not square or not finite, and ArithmeticError if rounding keeps the optimum
    (``<u_k, g> >= ||g||^2`` for all k) from being reached to 1e-9, or in 100 steps for each client.
    """
    gram = np.asarray(gram, np.float64)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram) or not np.isfinite(gram).all():
        raise ValueError(f"min_norm_weights: found shape {gram.shape}; a finite square matrix is needed")
    scaled = gram / max(float(gram.diagonal().max()), np.finfo(np.float64).tiny)
    values, vectors = np.linalg.eigh(scaled)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    ones, right = np.ones(len(gram)), np.append(np.zeros(len(gram)), 1.0)
    try:
        x: np.ndarray = _optimize.nnls(np.vstack([root, ones]), right, maxiter=100 * len(gram))[0]
    except RuntimeError as error:  # its steps are used up
        raise ArithmeticError(f"min_norm_weights: {error}") from None
    alpha: np.ndarray = x / x.sum()
    inner = scaled @ alpha
    if (gap := float(alpha @ inner - inner.min())) > NEEDED:
        raise ArithmeticError(f"min_norm_weights: {gap:.1e} from the optimum; at most {NEEDED:.0e} is allowed")
    return alpha


def unified_step(
    old: np.ndarray, clients: Sequence[np.ndarray], lr: float = 8.0, relative: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """``theta - 2 lr sum_k a_k u_k`` with ``u_k = d_k / ||d_k||`` and ``d_k = theta - theta_k``, and a (n,).

    ``a`` is :func:`min_norm_weights`. The step's length does not depend on how far clients moved, unless ``relative``
    has their shares q (n,): then lr is ``1/2 sum_k q_k ||d_k||``. Clients that did not move are left out (a_k = 0); if
    none did, the result is a copy of ``old``, and a is zero. Sums are float64; the result has old's dtype.

    Differs: the authors' solver returns its start for two clients, can stall, and divides by 0 where d_k = 0.
    """
    gram = np.zeros((len(clients), len(clients)))
    for part in _parts(len(old)):
        d = _moves(old, clients, part)
        gram += d @ d.T
    lengths = np.sqrt(gram.diagonal())
    moved = np.flatnonzero(lengths)
    alpha = np.zeros(len(clients))
    if not len(moved):
        return old.copy(), alpha
    units = gram[np.ix_(moved, moved)] / np.outer(lengths[moved], lengths[moved])
    alpha[moved] = min_norm_weights(units)
    if relative is not None:
        lr = float(np.dot(relative, lengths)) / 2
    factors = np.zeros(len(clients))
    factors[moved] = 2 * lr * alpha[moved] / lengths[moved]
    new = old.copy()
    for part in _parts(len(old)):
        new[part] = old[part] - factors @ _moves(old, clients, part)
    return new, alpha


def _parts(count: int) -> list[slice]:
    """Slices of at most ``CHUNK`` parameters."""
    return [slice(start, start + CHUNK) for start in range(0, count, CHUNK)]


def _moves(old: np.ndarray, clients: Sequence[np.ndarray], part: slice) -> np.ndarray:
    """d_k for some of the parameters: (n, chunk) float64."""
    return np.asarray(old[part], np.float64) - np.stack([np.asarray(client[part], np.float64) for client in clients])


def sharpened(shares: np.ndarray, temperature: float) -> np.ndarray:
    """``q_k^(1/T) / sum``: (n,) -> (n,) float64. T = 1 changes nothing, T -> 0 leaves the largest alone."""
    q = np.asarray(shares, np.float64)
    weights = (q / q.max()) ** (1 / temperature)
    sharp: np.ndarray = weights / weights.sum()
    return sharp


def equalised_epochs(batches: int, largest: int, epochs: int, most: int = MOST_EPOCHS) -> int:
    """The local epochs with which a client of ``batches`` per epoch takes about as many steps as the client with the
    ``largest`` number of batches takes in ``epochs``; at most ``most``.

    ``min(floor(S / b_k), most)`` with ``S = b_max E``. Differs: the authors keep short last batches and count
    ``b_k = ceil(n_k / B)`` and ``S = (floor(n_max / B) + 1) E``, one batch too many if B divides n_max. Here short last
    batches are dropped, so b_k counts the batches that are run.
    """
    return min(largest * epochs // batches, most)
