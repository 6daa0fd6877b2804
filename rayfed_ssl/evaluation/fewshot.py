"""Few-shot accuracy: logistic regression on a handful of labels per class, averaged over fixed draws.

Shapes: N train images, M test images, D embedding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.evaluation.standard import moments, standardise


class FewShotConfig(Block):
    """The ``evaluation.fewshot`` block."""

    labels_per_class: int = Field(5, ge=1)
    draws: int = Field(20, ge=1)
    C: float = Field(1.0, gt=0)


def draw_rows(labels: NDArray[np.int64], labels_per_class: int, draw: int) -> NDArray[np.int64]:
    """The train rows of one draw: ``labels_per_class`` of each class present, or all of a class that has fewer.

    A function of the labels and the draw's number only, so that every run on the same images uses the same rows.
    """
    rng = numpy_generator("fewshot", draw)
    order = rng.permutation(len(labels))
    return np.concatenate([order[labels[order] == label][:labels_per_class] for label in np.unique(labels)])


def fewshot_accuracy(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    labels_per_class: int = 5,
    draws: int = 20,
    C: float = 1.0,
) -> float:
    """Mean test accuracy of scikit-learn's LogisticRegression over ``draws`` draws of few labelled train images.

    Args:
        train_x, test_x: (N, D) and (M, D), float features or flattened uint8 pixels. Standardised by the mean and
            deviation of *all* train images given, labels unread; only the drawn rows of ``train_x`` become float.
        train_y, test_y: (N,) and (M,) int64.

    Raises:
        UserError: where the train images show fewer than two classes.
    """
    labels, truth = train_y.numpy(), test_y.numpy()
    found = len(np.unique(labels))
    if found < 2:
        raise UserError(
            f"evaluation.protocols: fewshot found {found} class among the labelled images, allowed: 2 or more"
        )
    mean, std = moments(train_x)
    test = standardise(test_x, mean, std).numpy()
    accuracies = []
    with threadpool_limits(limits=1, user_api="blas"):  # another thread count gives other bits
        for draw in range(draws):
            rows = draw_rows(labels, labels_per_class, draw)
            shots = standardise(train_x[rows], mean, std).double().numpy()
            model = LogisticRegression(C=C, max_iter=1000).fit(shots, labels[rows])
            accuracies.append(float(np.mean(model.predict(test) == truth)))
    return float(np.mean(accuracies))
