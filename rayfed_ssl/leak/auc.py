"""How well a score tells members from non-members: the area under the ROC curve, its interval, and what can be told
at few false alarms.

Shapes: m members, n non-members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.late import Late
from rayfed_ssl.base.seeding import Address, numpy_generator

_stats = Late("scipy.stats")
Scores = NDArray[np.float64]
DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class Told:
    """``auc`` with its 95% interval, its standard error, and the true-positive rate at 1% false positives."""

    auc: float
    low: float
    high: float
    error: float
    tpr: float


def placements(members: Scores, others: Scores) -> tuple[Scores, Scores]:
    """For each member (m,) the share of non-members below it, for each non-member (n,) the share of members above it; a
    tie counts as half of one (DeLong et al. 1988, equations 4 and 5).
    """
    m, n = len(members), len(others)
    together = _stats.rankdata(np.concatenate([members, others]))
    above = (together[:m] - _stats.rankdata(members)) / n
    below = 1 - (together[m:] - _stats.rankdata(others)) / m
    return np.asarray(above, np.float64), np.asarray(below, np.float64)


def area(members: Scores, others: Scores) -> float:
    """The probability that a member scores above a non-member, ties counting half."""
    m, n = len(members), len(others)
    ranks = _stats.rankdata(np.concatenate([members, others]))[:m]
    return float((ranks.sum() - m * (m + 1) / 2) / (m * n))  # Mann and Whitney's U


def variance(members: Scores, others: Scores) -> float:
    """DeLong et al. 1988: the variance of the area, from the spread of both kinds of placement."""
    above, below = placements(members, others)
    return float(np.var(above, ddof=1) / len(above) + np.var(below, ddof=1) / len(below))


def true_positives(members: Scores, others: Scores, false_positives: float = 0.01) -> float:
    """The largest share of members above a threshold that at most a share ``false_positives`` of the others exceed."""
    allowed = math.floor(false_positives * len(others))
    threshold = np.sort(others)[::-1][allowed] if allowed < len(others) else -np.inf
    return float((members > threshold).mean())


def told(members: Scores, others: Scores, *address: Address) -> Told:
    """The area with an interval on the logit scale, logit(A) +- 1.96 se / (A (1 - A)), which stays within [0, 1].

    Where the area is 0 or 1, or nothing varies, that says nothing: then the interval is a bootstrap's, whose draws have
    ``address``.

    Raises:
        ValueError: fewer than two members or non-members, or scores that are not finite.
    """
    if min(len(members), len(others)) < 2:
        raise ValueError(f"found {len(members)} members and {len(others)} non-members; at least 2 of each are needed")
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        raise ValueError("found scores that are not finite")
    a, error = area(members, others), math.sqrt(variance(members, others))
    tpr = true_positives(members, others)
    if 0 < a < 1 and error:
        centre, half = math.log(a / (1 - a)), 1.959963984540054 * error / (a * (1 - a))
        low, high = (1 / (1 + math.exp(-x)) for x in (centre - half, centre + half))
        return Told(a, low, high, error, tpr)
    draws = numpy_generator(*address, "bootstrap")
    areas = [area(draws.choice(members, len(members)), draws.choice(others, len(others))) for _ in range(DRAWS)]
    low, high = np.quantile(areas, [0.025, 0.975])
    return Told(a, float(low), float(high), error, tpr)


def null_deviation(m: int, n: int) -> float:
    """The standard deviation of the area where scores know nothing: sqrt((m + n + 1) / (12 m n))."""
    return math.sqrt((m + n + 1) / (12 * m * n))
