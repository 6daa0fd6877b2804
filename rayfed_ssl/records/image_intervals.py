"""Intervals of differences of accuracies, balanced accuracies and areas over test images, and over seeds if several.

- An accuracy is a mean over images: Student's t, or crossed with seeds
  (:mod:`rayfed_ssl.records.seed_image_intervals`).
- A balanced accuracy is the mean over classes of the mean over a class's images, a stratified mean with equal weights
  (Cochran 1977, "Sampling techniques", section 5.3). The test images have so many of each class as the population has
  strata, and which images of a class were drawn is what the interval counts.
- An area under the ROC curve is the mean of what each image contributes to it
  (:func:`rayfed_ssl.evaluation.metrics.auc_contributions`), by which the interval is that of DeLong et al. 1988.

Shapes: n seeds, m test images, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.records.intervals import AREA, BALANCED
from rayfed_ssl.records.seed_image_intervals import RULE_OF_THREE, SAME, half_width, half_width_by

Floats = NDArray[np.float64]


def base(score: str) -> str:
    """The score from whose answers, image by image, a score is computed."""
    return score.removesuffix(BALANCED)


def image_mean(score: str, shares: Floats, labels: NDArray[np.int64]) -> float:
    """The score that ``shares`` (m,) by image give: their mean or, for a balanced accuracy, the mean over classes of
    their means.
    """
    if not score.endswith(BALANCED):
        return float(shares.mean())
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return float((np.bincount(places, shares) / counts).mean())


def image_interval(score: str, differences: Floats, labels: NDArray[np.int64]) -> tuple[float, float] | None:
    """The 95% interval of a score's difference.

    Args:
        differences: D (n, m), by seed and image, the share of one encoder less that of the other; for a balanced
            accuracy, those of its accuracy. m is at least 2.
        labels: (m,) the images' labels.
    Returns:
        (low, high), within [-1, 1], as differences of scores from 0 to 1 are. None for a balanced accuracy if every
            class has a single image, and for an area if no image contributes to a difference, which says nothing of
            other images.
    """
    middle = float(np.mean([image_mean(score, of_seed, labels) for of_seed in differences]))
    if score.endswith(BALANCED):
        half = balanced_half_width(differences, labels)
    elif score.endswith(AREA) and float(np.ptp(differences.mean(axis=0))) < SAME:
        half = None
    else:
        half = half_width(differences)
    return None if half is None else (max(-1.0, middle - half), min(1.0, middle + half))


def balanced_half_width(differences: Floats, labels: NDArray[np.int64]) -> float | None:
    """Half the 95% interval of the mean over classes of the means of D (n, m) within them; None if no class has two
    images.

    Of one seed, with m_c images of class c and the sample variance s_c^2 (m_c - 1 in the denominator) of their D:

        Var = sum over c of s_c^2 / (C^2 m_c)                        (Cochran 1977, eq. 5.14 with weights 1 / C)
        df  = Var^2 / sum over c of (s_c^2 / (C^2 m_c))^2 / (m_c - 1)    (Satterthwaite; his eq. 5.16)

    and the half width is t(df) sqrt(Var). Few images of a class may all have the same D by chance, and then that class
    counts for nothing. So the half width is at least the one with the pooled variance s^2 = sum over c of (m_c - 1)
    s_c^2 / (m - C) for each s_c^2, with m - C degrees of freedom; of classes of equal size Var is the same. It is also
    at least :func:`unseen`, whether or not D varies.

    Of several seeds, D is linearised: mean of the seed + a_c (D_si - mean of the seed's class), with a_c such that the
    variance over images, divided by m, is Var. Its variance is analysed as that of accuracies
    (:func:`rayfed_ssl.records.seed_image_intervals.half_width_by`).
    """
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    classes, m = len(counts), len(labels)
    if m <= classes:
        return None
    means = np.stack([np.bincount(places, of_seed) for of_seed in differences]) / counts
    within = differences - means[:, places]
    images = within.mean(axis=0)
    of_seeds = means.mean(axis=1)[:, None]
    pooled = np.sqrt(m * (m - 1) * (1 / counts).sum() / (m - classes)) / classes
    least = max(unseen(counts), half_width_by(of_seeds + pooled * within, None, m - classes))
    if float(np.ptp(images)) < SAME:  # no class varies
        return least
    several = counts > 1
    of_classes = np.zeros(classes)  # s_c^2 / (C^2 m_c)
    of_classes[several] = (np.bincount(places, images**2) / counts)[several] / (counts[several] - 1) / classes**2
    freedom = of_classes.sum() ** 2 / (of_classes[several] ** 2 / (counts[several] - 1)).sum()
    by_class = np.zeros(classes)
    by_class[several] = np.sqrt(m * (m - 1) / (counts[several] * (counts[several] - 1))) / classes
    return max(least, half_width_by(of_seeds + by_class[places] * within, None, float(freedom)))


def unseen(counts: NDArray[np.int64]) -> float:
    """How far images of a kind that the test images do not contain may move the mean over classes, at 95%.

    If such images are a share p_c of class c, the m_c = ``counts`` (C,) images of the classes hold none with
    probability

        product over c of (1 - p_c)^m_c <= exp(- sum over c of m_c p_c),

    which is at least 5% only where sum over c of m_c p_c <= 3 (the rule of three, Hanley and Lippman-Hand 1983, over
    several classes). Each changes D by 1, so what is sought is the largest (1 / C) sum over c of p_c under this
    constraint and p_c <= 1: the smallest classes are filled first. It is 3 / (C m_c) of the smallest class if that has
    at least three images, and 3 / m of classes of equal size, as for an accuracy.
    """
    sizes = np.sort(counts)
    before = np.cumsum(sizes) - sizes  # images of smaller classes
    return float(np.clip((RULE_OF_THREE - before) / sizes, 0.0, 1.0).sum()) / len(sizes)
