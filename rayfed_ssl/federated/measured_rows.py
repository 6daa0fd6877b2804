"""Which images protocols look at, and how many of them accuracies are measured on."""

from __future__ import annotations

import numpy as np

from rayfed_ssl import evaluation
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.settings.run import RunSettings


def train_rows(federation: Federation, config: RunSettings) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training images that protocols look at: the labelled ones, at most ``evaluation.train_images``, and
    all of them. What is held out is in neither.
    """
    known, pool = federation.dataset.train.labels, np.arange(len(federation.dataset.train.labels))
    if federation.held_out is not None:
        pool = np.delete(pool, federation.held_out)
        known = labels_of(known, pool)
    return evaluation.labelled_rows(known, config.evaluation.train_images, config.seed), pool


def tested_images(federation: Federation, config: RunSettings) -> dict[str, int]:
    """How many images accuracies are measured on: labelled test images, and clients' own where tasks differ."""
    found = {"test_images": int((federation.dataset.test.labels >= 0).sum())}
    if federation.tasks is not None:
        own = config.evaluation.tasks_on == "own"
        found["task_test_images"] = sum(
            len(shard["test"] if own else federation.task_test(client))
            for client, shard in enumerate(federation.shards)
        )
    return found


def labels_of(labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """``labels`` (N,) of ``rows``, and -1 elsewhere."""
    kept = np.full_like(labels, -1)
    kept[rows] = labels[rows]
    return kept
