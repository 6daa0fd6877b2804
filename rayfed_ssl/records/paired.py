"""Intervals of a run's accuracies, balanced accuracies and areas over those of its untrained encoder and of raw pixels,
paired image by image.

They stand in ``summary.json`` under ``paired``: {"untrained": {"knn": [low, high], ..}, "pixels": {..}}; and by encoder
in ``evaluation.json`` under ``over untrained`` and ``over pixels``, with ``mean of clients`` where there are several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.evaluation.outcomes import Outcomes
from rayfed_ssl.records.image_intervals import base, image_interval
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
        names = [name for name in summary.get("accuracy") or {} if last.has(name)]
        scores = {name: _interval(last, before, name, summary, block) for name in names}
        if known := {name: interval for name, interval in scores.items() if interval is not None}:
            found[block] = known
    return found


def _interval(
    last: ImageShares, before: ImageShares, score: str, summary: Mapping[str, Any], block: str
) -> list[float] | None:
    """(low, high) over the test images' paired differences, of encoders the mean (``image_intervals``)."""
    ours, theirs = (_mean((summary.get(name) or {}).get(score)) for name in ("accuracy", block))
    if ours is None or theirs is None or len(last.index) < 2:
        return None
    a, b = last.of(score, ours), before.of(score, theirs)
    return None if a is None or b is None else _of_pairs(score, a, b, last.labels)


def paired_scores(
    last: Sequence[Outcomes | None],
    before: Sequence[Outcomes | None],
    scores: Iterable[str],
    labels: NDArray[np.int64],
) -> dict[str, list[float]]:
    """Score -> (low, high) of the 95% interval of encoders' mean accuracy less that of as many others on the same
    images, of those of ``scores`` that all have. ``labels`` (m,): of the labelled test images.
    """
    known = [of for of in (*last, *before) if of is not None]
    if len(known) < len(last) + len(before) or not last:
        return {}
    found = dict[str, list[float]]()
    for score in scores:
        name = base(score)
        if all(name in of.right and len(of.right[name]) == len(labels) > 1 for of in known):
            shares = np.array([of.right[name] / of.draws[name] for of in known])
            apart = _of_pairs(score, shares[: len(last)].mean(axis=0), shares[len(last) :].mean(axis=0), labels)
            found |= {} if apart is None else {score: apart}
    return found


def _of_pairs(
    score: str, a: NDArray[np.float64], b: NDArray[np.float64], labels: NDArray[np.int64]
) -> list[float] | None:
    interval = image_interval(score, np.asarray(a - b)[None, :], labels)
    return None if interval is None else list(interval)


def _mean(accuracy: object) -> float | None:
    """The mean of clients' values; None where a client has none."""
    values = list(accuracy.values()) if isinstance(accuracy, Mapping) else [accuracy]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return fmean(known) if known and len(known) == len(values) else None
