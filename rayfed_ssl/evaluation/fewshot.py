"""Few-shot accuracy: logistic regression on a handful of labels per class, averaged over fixed draws.

Shapes: N train images, M test images, D embedding.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.evaluation.logistic import Classifier, logistic_regression
from rayfed_ssl.evaluation.material import Material, Split
from rayfed_ssl.evaluation.pixels import flattened
from rayfed_ssl.evaluation.protocol import Protocol
from rayfed_ssl.evaluation.standard import moments, one_thread, standardise


class FewShotConfig(Block):
    """Few-shot accuracy by logistic regression."""

    labels_per_class: int = Field(5, ge=1)
    """Labelled images of each class that a draw has."""
    draws: int = Field(20, ge=1)
    """Draws of labelled images that the accuracy is averaged over."""
    C: float = Field(1.0, gt=0)
    """Inverse strength of the logistic regression's regularisation."""


def draw_rows(labels: NDArray[np.int64], labels_per_class: int, draw: int) -> NDArray[np.int64]:
    """The train rows of one draw: ``labels_per_class`` of each class present, or all of a class that has fewer.

    A function of the labels and the draw's number only, so that every run on the same images uses the same rows.
    """
    rng = numpy_generator("fewshot", draw)
    order = rng.permutation(len(labels))
    return np.concatenate([order[labels[order] == label][:labels_per_class] for label in np.unique(labels)])


class FewShots:
    """Classifiers on draws of few labels. Features are standardised by all train images (N, D), without reading labels.

    The features may be floats or flattened uint8 pixels; only the rows of a draw become float.

    Raises:
        UserError: the train images show fewer than two classes.
    """

    def __init__(self, x: Tensor, y: Tensor, labels_per_class: int, C: float) -> None:
        self.x, self.labels, self.labels_per_class, self.C = x, y.numpy(), labels_per_class, C
        classes = len(np.unique(self.labels))
        if classes < 2:
            raise UserError(
                f"evaluation.protocols: fewshot found {classes} class among the labelled images, allowed: 2 or more"
            )
        self.moments = moments(x)

    def fit(self, draw: int) -> Classifier:
        """Logistic regression on the rows of one draw."""
        rows = draw_rows(self.labels, self.labels_per_class, draw)
        shots = standardise(self.x[rows], *self.moments).double().numpy()
        return logistic_regression(shots, self.labels[rows], self.C)


def measure(material: Material, config: FewShotConfig) -> dict[str, float]:
    """``fewshot``: each metric's mean over the draws. Raises UserError as :class:`FewShots` does."""
    train = material.train
    by_metric: dict[str, list[float]] = {}
    with one_thread("sklearn.linear_model", "blas"):
        shots = FewShots(train.features, train.labels, config.labels_per_class, config.C)
        standard = {split: standardise(split.features, *shots.moments).numpy() for split in material.tests.values()}
        for draw in range(config.draws):
            model = shots.fit(draw)

            def answer(split: Split, model: Classifier = model) -> tuple[Tensor, Tensor]:
                scores = torch.zeros(len(split.labels), material.classes, dtype=torch.float64)
                if "auc" in material.metrics:
                    scores[:, torch.from_numpy(model.classes_)] = torch.from_numpy(
                        model.predict_proba(standard[split])
                    ).double()
                return torch.from_numpy(model.predict(standard[split])), scores

            for name, value in material.classified("fewshot", answer).items():
                by_metric.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in by_metric.items()}


FEWSHOT = Protocol(FewShotConfig, measure, lambda settings: ("fewshot",), pixels=flattened)
