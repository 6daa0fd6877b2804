"""Metrics of a classification of test images: accuracy, balanced accuracy, area under the ROC curve.

Shapes: M test images, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from rayfed_ssl.base.lazy import LazyModule

Metric = Literal["accuracy", "balanced_accuracy", "auc"]
ACCURACY: Metric = "accuracy"
_sklearn = LazyModule("sklearn.metrics")


def accuracy(predicted: Tensor, scores: Tensor, truth: Tensor) -> float:
    """The fraction of ``predicted`` (M,) that equals ``truth`` (M,)."""
    return int((predicted == truth).sum()) / len(truth)


def balanced_accuracy(predicted: Tensor, scores: Tensor, truth: Tensor) -> float:
    """The mean over the classes in ``truth`` (M,) of the fraction of a class that ``predicted`` (M,) has right."""
    known = truth.numpy()
    return float(
        _sklearn.recall_score(known, predicted.numpy(), labels=np.unique(known), average="macro", zero_division=0)
    )


def macro_auc(predicted: Tensor, scores: Tensor, truth: Tensor) -> float:
    """The mean over classes of the area under the ROC curve of that class against all others.

    Args:
        scores: (M, C) probabilities. Classes that ``truth`` (M,) has no image of, or nothing else, take no part; NaN
            where none is left.
    """
    known, areas = truth.numpy(), []
    for label in np.unique(known):
        positive = known == label
        if not positive.all():
            areas.append(_sklearn.roc_auc_score(positive, scores[:, label].double().numpy()))
    return float(np.mean(areas)) if areas else float("nan")


METRICS: Mapping[Metric, Callable[[Tensor, Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "auc": macro_auc,
}


def named(tag: str, metric: Metric) -> str:
    """The tag of a metric of a protocol: accuracy bears the protocol's own."""
    return tag if metric == ACCURACY else f"{tag}_{metric}"


def measured(tag: str, predicted: Tensor, scores: Tensor, truth: Tensor, metrics: Sequence[Metric]) -> dict[str, float]:
    """``{tag: accuracy, tag_auc: ..}`` for each of ``metrics``.

    Args:
        predicted: (M,) int64 classes.
        scores: (M, C) probabilities.
        truth: (M,) int64 classes.
    """
    return {named(tag, metric): METRICS[metric](predicted, scores, truth) for metric in metrics}
