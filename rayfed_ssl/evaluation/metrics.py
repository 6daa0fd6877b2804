"""Metrics of a classification of test images: accuracy, balanced accuracy, area under the ROC curve.

Shapes: M test images, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rayfed_ssl.base.lazy import LazyModule

Metric = Literal["accuracy", "balanced_accuracy", "auc"]
ACCURACY: Metric = "accuracy"
AUC: Metric = "auc"
_sklearn = LazyModule("sklearn.metrics")
_stats = LazyModule("scipy.stats")


def accuracy(predicted: Tensor, scores: Tensor, truth: Tensor) -> float:
    """The fraction of images for which ``predicted`` (M,) equals ``truth`` (M,)."""
    return int((predicted == truth).sum()) / len(truth)


def balanced_accuracy(predicted: Tensor, scores: Tensor, truth: Tensor) -> float:
    """The mean over the classes in ``truth`` (M,) of the fraction of a class that ``predicted`` (M,) has right."""
    labels = truth.numpy()
    return float(
        _sklearn.recall_score(labels, predicted.numpy(), labels=np.unique(labels), average="macro", zero_division=0)
    )


def macro_auc(predicted: Tensor, scores: Tensor, truth: Tensor) -> float:
    """The mean over classes of the area under the ROC curve of that class against all others.

    Args:
        scores: (M, C) probabilities. Classes that no image, or every image, of ``truth`` (M,) belongs to are left out;
            NaN if no class remains.
    """
    labels, areas = truth.numpy(), []
    for label in np.unique(labels):
        positive = labels == label
        if not positive.all():
            areas.append(_sklearn.roc_auc_score(positive, scores[:, label].double().numpy()))
    return float(np.mean(areas)) if areas else float("nan")


def auc_contributions(scores: Tensor, truth: Tensor) -> NDArray[np.float64]:
    """What each test image contributes to :func:`macro_auc`: (M,). Their mean is the area, and their variance (M - 1 in
    the denominator) divided by M is the area's variance over the choice of test images.

    Of class c with m images, n others and area A_c, let v_i be the structural component of image i (DeLong et al.
    1988): for an image of c, the share of other images with a lower score for c; for another image, the share of c's
    images with a higher one; equal scores count half. Then

        a_i = mean over c of A_c + sqrt(M (M - 1) / (m (m - 1))) (v_i - A_c), with n for m where i is not of c

    For two classes whose scores add up to 1, the variance is DeLong's, S_10 / m + S_01 / n, and the variance of the
    difference of two encoders' contributions is DeLong's for two correlated areas. For more classes it is the variance
    of the mean of the areas, with their covariances: the same linear approximation, class by class.

    Args:
        scores: (M, C) probabilities.
        truth: (M,) int64 classes. Classes that no image, or every image, belongs to are left out; NaN if no class
            remains.
    """
    labels, values = truth.numpy(), scores.double().numpy()
    total, contributions = len(labels), []
    for label in np.unique(labels):
        positive = labels == label
        m, n = int(positive.sum()), int((~positive).sum())
        if not n:
            continue
        ranks = _stats.rankdata(values[:, label])
        components = np.empty(total)
        components[positive] = (ranks[positive] - _stats.rankdata(values[positive, label])) / n
        components[~positive] = 1 - (ranks[~positive] - _stats.rankdata(values[~positive, label])) / m
        area = components[positive].mean()
        weights = np.where(positive, _stratum_weight(m, total), _stratum_weight(n, total))
        contributions.append(area + weights * (components - area))
    return np.mean(contributions, axis=0) if contributions else np.full(total, np.nan)


def _stratum_weight(count: int, total: int) -> float:
    """The factor of the deviations of ``count`` images from their own mean with which their variance over all ``total``
    images, divided by ``total``, is the sample variance (count - 1) divided by ``count``. One image does not deviate.
    """
    return math.sqrt(total * (total - 1) / (count * (count - 1))) if count > 1 else 0.0


METRICS: Mapping[Metric, Callable[[Tensor, Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "auc": macro_auc,
}


def named(tag: str, metric: Metric) -> str:
    """The tag of a protocol's metric: the accuracy has the protocol's own tag."""
    return tag if metric == ACCURACY else f"{tag}_{metric}"


def measured(tag: str, predicted: Tensor, scores: Tensor, truth: Tensor, metrics: Sequence[Metric]) -> dict[str, float]:
    """``{tag: accuracy, tag_auc: ..}`` for each of ``metrics``.

    Args:
        predicted: (M,) int64 classes.
        scores: (M, C) probabilities.
        truth: (M,) int64 classes.
    """
    return {named(tag, metric): METRICS[metric](predicted, scores, truth) for metric in metrics}
