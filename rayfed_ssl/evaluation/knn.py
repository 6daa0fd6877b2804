"""Weighted nearest-neighbour accuracy of frozen features, as in EasyFL, FedSC and Orchestra (after Wu et al. 2018).

Shapes: N train images, M test images, B test rows of one block, D embedding, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import Block
from rayfed_ssl.evaluation.material import Material, Split
from rayfed_ssl.evaluation.pixels import shares
from rayfed_ssl.evaluation.protocol import Protocol
from rayfed_ssl.evaluation.standard import capped

SIMILARITIES = 2**24
"""Entries of the similarity matrix held at once: 64 MiB of float32, whatever the number of images."""

MIXED = 1.5
"""Times the median class's train images, above which the neighbours that vote are said to be too many."""


class KnnConfig(Block):
    """Weighted nearest neighbours."""

    k: int = Field(200, ge=1)
    """Neighbours that vote; never more than a tenth of the train images."""
    temperature: float = Field(0.1, gt=0)
    """A neighbour's vote is exp(cosine / temperature)."""


def votes(similarity: Tensor, labels: Tensor, temperature: float, classes: int) -> Tensor:
    """Votes (B, C): the sum of exp(similarity / temperature) over each row's neighbours of each class.

    Args:
        similarity: (B, k) cosines. Each row's largest is subtracted first, which scales a row and changes no ranking.
        labels: (B, k) int64, the classes of these neighbours.
    """
    weights = ((similarity - similarity.amax(dim=1, keepdim=True)) / temperature).exp()
    return weights.new_zeros(len(weights), classes).scatter_add_(1, labels, weights)


def knn_votes(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, *, classes: int, k: int = 200, temperature: float = 0.1
) -> Tensor:
    """(M, C): the votes for each class among a test image's nearest train images by cosine similarity.

    Args:
        train_x, test_x: (N, D) and (M, D) float features; normalised here.
        train_y: (N,) int64 in [0, classes).

    Differs: k is clamped to a tenth of the train images; the classes are counted, not fixed at 10; the features are the
    backbone's, where EasyFL and FedSC use the projector's.
    """
    k = capped(k, len(train_x))
    bank = F.normalize(train_x, dim=1).T  # (D, N)
    parts = []
    for block in torch.split(test_x, max(1, SIMILARITIES // len(train_x))):
        similarity, index = (F.normalize(block, dim=1) @ bank).topk(k, dim=1)  # (B, k)
        parts.append(votes(similarity, train_y[index], temperature, classes))
    return torch.cat(parts)


def measure(material: Material, config: KnnConfig) -> dict[str, float]:
    """``knn``; votes are counted on the encoder's device."""
    features, labels = material.train.features.to(material.device), material.train.labels.to(material.device)

    def answer(split: Split) -> tuple[Tensor, Tensor]:
        images = split.features.to(material.device)
        tally = knn_votes(features, labels, images, classes=material.classes, **config.model_dump()).cpu().double()
        return tally.argmax(dim=1), tally / tally.sum(dim=1, keepdim=True)

    return material.classified("knn", answer)


def remarks(settings: KnnConfig, labels: NDArray[np.int64]) -> Iterator[Note]:
    """A line if clearly more neighbours vote than the median class has train images. With ten classes, k may be a tenth
    of the images, which is a class's mean size: so small an excess is not reported.
    """
    counts = np.bincount(labels)
    median = float(np.median(counts[counts > 0])) if len(labels) else np.inf
    used = capped(settings.k, len(labels))
    if used > MIXED * median:
        yield Note.shareable(
            f"evaluation.knn.k: found {settings.k}, of which {used} are used, but the median class has {median:g} of "
            f"the {len(labels)} labelled train images, so most neighbours that vote are of other classes",
            f"; evaluation.knn.k={max(1, int(median) // 2)}, say, tells such classes better apart",
        )


KNN = Protocol(
    KnnConfig,
    measure,
    lambda settings: ("knn",),
    pixels=shares,
    remarks=remarks,
    effective=lambda settings, train: {"k_used": capped(settings.k, train)},
)
