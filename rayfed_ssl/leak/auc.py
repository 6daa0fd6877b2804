"""Measures how well a score tells members from non-members: the area under the ROC curve with its interval, and the
true-positive rate at a low false-positive rate.

Shapes: m members, n non-members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.lazy import LazyModule

_stats, _optimize = LazyModule("scipy.stats"), LazyModule("scipy.optimize")
Scores = NDArray[np.float64]
Z = 1.959963984540054  # half the width of a 95% interval, in standard errors
EDGE = 1e-12  # keeps the search away from 0 and 1, which solve Newcombe's equation trivially for such an area


@dataclass(frozen=True)
class AucEstimate:
    """``auc`` with its 95% interval, its standard error, and the true-positive rate at 1% false positives."""

    auc: float
    low: float
    high: float
    error: float
    tpr: float


def placements(members: Scores, others: Scores) -> tuple[Scores, Scores]:
    """(m,) the share of non-members below each member, and (n,) the share of members above each non-member. A tie
    counts as a half (DeLong et al. 1988, equations 4 and 5).
    """
    m, n = len(members), len(others)
    together = _stats.rankdata(np.concatenate([members, others]))
    above = (together[:m] - _stats.rankdata(members)) / n
    below = 1 - (together[m:] - _stats.rankdata(others)) / m
    return np.asarray(above, np.float64), np.asarray(below, np.float64)


def area(members: Scores, others: Scores) -> float:
    """The probability that a member scores above a non-member, where a tie counts as a half."""
    m, n = len(members), len(others)
    ranks = _stats.rankdata(np.concatenate([members, others]))[:m]
    return float((ranks.sum() - m * (m + 1) / 2) / (m * n))  # Mann and Whitney's U


def variance(members: Scores, others: Scores) -> float:
    """The variance of the area, from the variances of both kinds of placements (DeLong et al. 1988)."""
    above, below = placements(members, others)
    return float(np.var(above, ddof=1) / len(above) + np.var(below, ddof=1) / len(below))


def true_positives(members: Scores, others: Scores, false_positives: float = 0.01) -> float:
    """The true-positive rate: the largest share of members above a threshold that at most a share ``false_positives``
    of the others exceeds.
    """
    allowed = math.floor(false_positives * len(others))
    threshold = np.sort(others)[::-1][allowed] if allowed < len(others) else -np.inf
    return float((members > threshold).mean())


def estimate_auc(members: Scores, others: Scores) -> AucEstimate:
    """The area with an interval on the logit scale, logit(A) +- 1.96 se / (A (1 - A)), which stays within [0, 1].

    If the area is 0 or 1, or no placement varies, the standard error is 0 and carries no information. The interval is
    then that of :func:`newcombe`. (A bootstrap interval would have no width, however few images there are.)

    Raises:
        ValueError: fewer than two members or non-members, or scores that are not finite.
    """
    m, n = len(members), len(others)
    if min(m, n) < 2:
        raise ValueError(f"found {m} members and {n} non-members; at least 2 of each are needed")
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        raise ValueError("found scores that are not finite")
    a, error = area(members, others), math.sqrt(variance(members, others))
    tpr = true_positives(members, others)
    if 0 < a < 1 and error:
        centre, half = math.log(a / (1 - a)), Z * error / (a * (1 - a))
        low, high = (1 / (1 + math.exp(-x)) for x in (centre - half, centre + half))
        return AucEstimate(a, low, high, error, tpr)
    return AucEstimate(a, *newcombe(a, m, n), error, tpr)


def newcombe(a: float, m: int, n: int) -> tuple[float, float]:
    """The 95% interval of an area, from its value A and the numbers of scores alone (Newcombe 2006, method 5).

    Its ends are the areas theta that are 1.96 standard errors sqrt(V(theta)) away from A, where
    V(theta) = theta (1 - theta) {1 + N* [(1 - theta) / (2 - theta) + theta / (1 + theta)]} / (m n) and
    N* = (m + n) / 2 - 1.
    """
    star = (m + n) / 2 - 1

    def beyond(theta: float) -> float:
        shape = 1 + star * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return abs(a - theta) - Z * math.sqrt(theta * (1 - theta) * shape / (m * n))

    low = 0.0 if a == 0 else float(_optimize.brentq(beyond, 0.0, min(a, 1 - EDGE)))
    high = 1.0 if a == 1 else float(_optimize.brentq(beyond, max(a, EDGE), 1.0))
    return low, high


def null_deviation(m: int, n: int) -> float:
    """The standard deviation of the area if scores do not depend on membership: sqrt((m + n + 1) / (12 m n))."""
    return math.sqrt((m + n + 1) / (12 * m * n))
