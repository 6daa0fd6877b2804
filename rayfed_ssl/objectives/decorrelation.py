"""FedDecorr: penalises correlations between the dimensions of a representation (Shi et al. 2023).

Shape legend: N rows of a batch, D dimensions.
"""

from __future__ import annotations

from torch import Tensor

from rayfed_ssl.objectives.base import full_precision, no_autocast

EPS = 1e-8  # added to variances
PAPER_BATCH = 64  # the batch at which both forms are equal


def decorrelation(x: Tensor, *, batch_free: bool = False) -> Tensor:
    """``(N - 1)^2 / N`` times the mean squared correlation of different columns: x (N, D) -> ().

    This follows the authors' code: columns are standardised by the unbiased variance, ``C = xhat^T xhat`` is not
    divided by N, and the mean of its squares off the diagonal is divided by N. The value grows with the batch.
    ``batch_free`` takes the factor of batches of 64 instead, for any N (the paper's form up to a constant). One row
    gives 0.

    Raises ValueError for D < 2.
    """
    count, dim = x.shape
    if dim < 2:
        raise ValueError(f"decorrelation: {dim} dimensions; at least 2 are needed")
    x = full_precision(x)
    if count < 2:
        return 0 * x.sum()
    standardised = (x - x.mean(dim=0)) / (x.var(dim=0) + EPS).sqrt()
    with no_autocast(standardised):
        c = standardised.T @ standardised  # (D, D)
    mean_square = (c.square().sum() - c.diagonal().square().sum()) / (dim * (dim - 1))
    if batch_free:
        return mean_square / (count - 1) ** 2 * ((PAPER_BATCH - 1) ** 2 / PAPER_BATCH)
    return mean_square / count
