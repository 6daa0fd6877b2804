"""Intervals of a run's accuracies over those of its untrained encoder and of raw pixels, paired image by image.

They stand in ``summary.json`` under ``paired``: {"untrained": {"knn": [low, high], ..}, "pixels": {..}}; and by encoder
in ``evaluation.json`` under ``over untrained`` and ``over pixels``, with ``mean of clients`` where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.evaluation.outcomes import Outcomes
from rayfed_ssl.records.crossed import half_width
from rayfed_ssl.records.outcomes import PIXELS_FILE, UNTRAINED_FILE, ImageShares, read_outcomes

OVER = "over {}"  # a block of evaluation.json, and the block that encoders' accuracies are paired with
MEAN = "mean of clients"  # among the encoders of such a block, where several clients have one
BESIDE = {"untrained": UNTRAINED_FILE, "pixels": PIXELS_FILE}  # block of the summary -> its outcomes


def paired(folder: Path, summary: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Block -> score -> (low, high) of the 95% interval of the accuracy less the block's. A score that the outcomes do
    not come to, as recorded in ``summary``, has none. Raises UserError for a damaged file.
    """
    last, found = read_outcomes(folder), dict[str, dict[str, list[float]]]()
    for block, file in BESIDE.items() if last is not None else ():
        before = read_outcomes(folder, file)
        if before is None or last is None or not last.same_images(before):
            continue
        scores = {name: _interval(last, before, name, summary, block) for name in last.shares}
        if known := {name: interval for name, interval in scores.items() if interval is not None}:
            found[block] = known
    return found


def _interval(
    last: ImageShares, before: ImageShares, score: str, summary: Mapping[str, Any], block: str
) -> list[float] | None:
    """(low, high) by Student's t over the test images' paired differences, of encoders the mean (``crossed``)."""
    ours, theirs = (_mean((summary.get(name) or {}).get(score)) for name in ("accuracy", block))
    if ours is None or theirs is None or len(last.index) < 2:
        return None
    a, b = last.of(score, ours), before.of(score, theirs)
    return None if a is None or b is None else _of_pairs(a, b)


def paired_scores(last: Sequence[Outcomes | None], before: Sequence[Outcomes | None]) -> dict[str, list[float]]:
    """Score -> (low, high) of the 95% interval of encoders' mean accuracy less that of as many others on the same
    images, of the scores that all have.
    """
    known = [of for of in (*last, *before) if of is not None]
    if len(known) < len(last) + len(before) or not last:
        return {}
    found = {}
    for score, right in known[0].right.items():
        if all(score in of.right and len(of.right[score]) == len(right) > 1 for of in known):
            shares = np.array([of.right[score] / of.draws[score] for of in known])
            found[score] = _of_pairs(shares[: len(last)].mean(axis=0), shares[len(last) :].mean(axis=0))
    return found


def _of_pairs(a: NDArray[np.float64], b: NDArray[np.float64]) -> list[float]:
    middle, half = float((a - b).mean()), half_width(np.asarray(a - b)[None, :])
    return [middle - half, middle + half]


def _mean(accuracy: object) -> float | None:
    """Of clients' values the mean; None where one has none."""
    values = list(accuracy.values()) if isinstance(accuracy, Mapping) else [accuracy]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return fmean(known) if known and len(known) == len(values) else None
