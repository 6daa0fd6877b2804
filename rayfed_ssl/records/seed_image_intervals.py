"""Intervals of a mean difference that count both which seeds and which test images were drawn.

Every seed is measured on the same images, so the two are crossed: D_si = mu + seed_s + image_i + rest_si, all random
but mu, which is the difference over other seeds and other images of the same kind (Cornfield and Tukey 1956; Owen 2007,
"The pigeonhole bootstrap", on what leaving one of the two out does to an interval).

Shapes: n seeds, m test images.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.records.intervals import LEVEL

_stats = LazyModule("scipy.stats")
SAME = 1e-9  # differences that differ by less do so by rounding
RULE_OF_THREE = 3.0  # / m: what m images among which none differs leave possible (Hanley and Lippman-Hand 1983)


def mean_squares(differences: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean squares of seeds, of images and of the rest, from D (n, m), n and m > 1: two-way analysis of variance
    without replication.

    Their expectations are r + m s, r + n i and r, with s, i and r the variances of seed_s, image_i and rest_si.
    """
    n, m = differences.shape
    seeds, images, mean = differences.mean(axis=1), differences.mean(axis=0), differences.mean()
    rest = differences - seeds[:, None] - images[None, :] + mean
    return (
        m * float(seeds.var(ddof=1)),
        n * float(images.var(ddof=1)),
        float((rest**2).sum()) / ((n - 1) * (m - 1)),
    )


def half_width(differences: NDArray[np.float64]) -> float:
    """Half the 95% interval of the mean of D (n, m), n > 0 and m > 1.

    Of one seed: Student's t over images, which is the paired z of McNemar's table for large m. Of several: Var(mean) is
    estimated by (MS_seeds + MS_images - MS_rest) / (n m), which is unbiased, and at least by either of the first two
    alone, with t of Satterthwaite's degrees of freedom. With two or three seeds MS_seeds is small by chance too often
    for that, so the half width is at least that over seeds alone (t, n - 1) and that over images alone (t, m - 1).
    """
    m = differences.shape[1]
    alike = float(np.ptp(differences.mean(axis=0))) < SAME  # no image tells them apart, or all do alike
    return half_width_by(differences, RULE_OF_THREE / m if alike else None, m - 1)


def half_width_by(differences: NDArray[np.float64], over_images: float | None, of_images: float) -> float:
    """The same, with ``of_images`` degrees of freedom of the variance over images, which are m - 1 of images drawn from
    one population, and ``over_images`` as the half width over images alone where that is not Student's t.
    """
    n, m = differences.shape
    if over_images is None:
        over_images = _quantile(of_images) * float(differences.mean(axis=0).std(ddof=1)) / math.sqrt(m)
    if n == 1:
        return over_images
    seeds, images, rest = mean_squares(differences)
    variance = max(seeds + images - rest, seeds, images)
    spread = seeds**2 / (n - 1) + images**2 / of_images + rest**2 / ((n - 1) * of_images)
    freedom = variance**2 / spread if spread > 0 else math.inf
    over_seeds = _quantile(n - 1) * math.sqrt(seeds / (n * m))
    over_both = _quantile(max(freedom, n - 1)) * math.sqrt(variance / (n * m))
    return max(over_images, over_seeds, over_both)


def _quantile(freedom: float) -> float:
    return float(_stats.t.ppf((1 + LEVEL) / 2, freedom))
