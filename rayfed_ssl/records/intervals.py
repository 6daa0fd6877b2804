"""Intervals of accuracies over the choice of test images.

An accuracy is a share of M images. Two encoders are measured on the same images. If their answers are not known image
by image (else see :mod:`rayfed_ssl.records.seed_image_intervals`), the interval of their difference treats the answers
as independent; if they agree, as they mostly do, the true interval is narrower.
"""

from __future__ import annotations

import math

from rayfed_ssl.base.lazy import LazyModule

_stats = LazyModule("scipy.stats")
LEVEL = 0.95  # of confidence
SHARES = frozenset({"knn", "linear", "fewshot", "semi", "task"})  # protocols that count right answers
AREA, BALANCED = "_auc", "_balanced_accuracy"  # how the scores by other metrics than accuracy end


def counts_images(score: str) -> bool:
    """Whether a score is a share of the run's test images, and not an area under a curve or a score on another data
    set.
    """
    return score.removeprefix("own_").split("_")[0] in SHARES and not score.endswith((AREA, BALANCED))


def wilson(share: float, images: int) -> tuple[float, float]:
    """The score interval of a share of ``images`` (Wilson 1927)."""
    z = _quantile()
    middle = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    half = z / (1 + z**2 / images) * math.sqrt(share * (1 - share) / images + z**2 / (4 * images**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def of_difference(a: float, b: float, images: int) -> tuple[float, float]:
    """The interval of ``a - b``, two shares of ``images`` each, from their score intervals (Newcombe 1998, method 10).

    Args:
        a, b: accuracies as fractions.
        images: test images, at least 1.
    Returns:
        (low, high), at 95%.
    """
    (low_a, high_a), (low_b, high_b) = wilson(a, images), wilson(b, images)
    return a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b)


def _quantile() -> float:
    return float(_stats.norm.ppf((1 + LEVEL) / 2))
