"""Says which images protocols read, and on how many of them accuracies are measured."""

from __future__ import annotations

import numpy as np

from rayfed_ssl import evaluation
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.settings.run import RunSettings


def train_rows(federation: Federation, config: RunSettings) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of rows of the training images that protocols read: the labelled ones, at most
    ``evaluation.train_images``, and all of them. Held-out images are in neither.
    """
    known, pool = federation.dataset.train.labels, np.arange(len(federation.dataset.train.labels))
    if federation.held_out is not None:
        pool = np.delete(pool, federation.held_out)
        known = labels_of(known, pool)
    return evaluation.labelled_rows(known, config.evaluation.train_images, config.seed), pool


def check_drawn(federation: Federation, config: RunSettings) -> None:
    """Refuse labelled images that are all of one class after ``evaluation.train_images`` has drawn so many of several
    classes: protocols that classify would fail on them, or find that class everywhere. Raises UserError.
    """
    limit, known = config.evaluation.train_images, federation.dataset.train.labels
    if limit is None or not config.evaluation.classifying:
        return
    classes = len(np.unique(known[train_rows(federation, config)[0]]))
    if classes < 2 <= len(np.unique(known[known >= 0])):
        raise UserError(
            f"evaluation.train_images: found {limit}, which draws images of 1 class, which is every answer; "
            "allowed: more, or null"
        )


def tested_images(federation: Federation, config: RunSettings) -> dict[str, int]:
    """On how many images accuracies are measured: labelled test images, and each client's own ones if tasks differ."""
    found = {"test_images": int((federation.dataset.test.labels >= 0).sum())}
    if federation.tasks is not None:
        found["task_test_images"] = sum(_tasks_images(federation, config).values())
    return found


def clients_tested_images(federation: Federation, config: RunSettings) -> dict[str, dict[int, int]]:
    """On how many of its own images each client is measured: ``own`` counts its labelled test images, ``task`` those of
    its own task. Each maps client -> number of images, without clients that have none.
    """
    found = {}
    if federation.own_tests is not None:
        known = federation.dataset.test.labels >= 0
        found["own"] = {client: int(known[federation.own_tests[client]].sum()) for client in federation.clients}
    if federation.tasks is not None:
        found["task"] = _tasks_images(federation, config)
    return {kind: {client: count for client, count in of.items() if count} for kind, of in found.items()}


def _tasks_images(federation: Federation, config: RunSettings) -> dict[int, int]:
    own = config.evaluation.tasks_on == "own"
    return {
        client: len(shard["test"] if own else federation.task_test(client))
        for client, shard in enumerate(federation.shards)
    }


def labels_of(labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """``labels`` (N,) of ``rows``, and -1 elsewhere."""
    kept = np.full_like(labels, -1)
    kept[rows] = labels[rows]
    return kept
