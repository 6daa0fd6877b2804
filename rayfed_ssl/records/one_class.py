"""Scores whose classifiers are right about test images of one class and hardly any other, as those that name one class
for nearly all images: such an accuracy is about the share of that class, whatever the encoder has learned.

They stand in ``summary.json`` under ``one_class``: {"knn": {"name": "well", "share": 0.6}}.

Shapes: M labelled test images, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.records.intervals import counts_images
from rayfed_ssl.records.outcomes import read_outcomes

NEARLY_ALL, HARDLY_ANY = 0.95, 0.05  # of the number of a class's images: right answers in it, and in all others


def of_one_class(folder: Path, class_names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Score -> the class that alone is recognised, and its share of the labelled test images; without the scores of
    which that is not so. Raises UserError for damaged outcomes.
    """
    if (last := read_outcomes(folder)) is None:
        return {}
    found = {score: recognised(shares, last.labels) for score, shares in last.shares.items() if counts_images(score)}
    return {
        score: {
            "name": class_names[label] if class_names else str(label),
            "share": float((last.labels == label).mean()),
        }
        for score, label in found.items()
        if label is not None
    }


def recognised(shares: NDArray[np.float64], labels: NDArray[np.int64]) -> int | None:
    """The class of which ``NEARLY_ALL`` images are classified rightly, if of all others fewer than ``HARDLY_ANY`` of
    that number are: the accuracy is its share of the images, within 5% of that. None where there is none, or one class
    of test images.

    Args:
        shares: (M,) of the classifiers that are right about an image.
        labels: (M,) classes.
    """
    known = np.unique(labels)
    if len(known) < 2:
        return None
    right = [float(shares[labels == label].sum()) for label in known]
    best = int(known[np.argmax(right)])
    images, others = int((labels == best).sum()), float(shares[labels != best].sum())
    return best if max(right) >= NEARLY_ALL * images and others < HARDLY_ANY * images else None
