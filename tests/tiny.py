"""The tiny run of every method of ours: what it needs beside ``rayfed_ssl.testing.tiny.BASE``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rayfed_ssl.config import RunConfig
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.testing.tiny import BASE, booked, encoders, measured, run_locally, tiny_run
from tests.dotted import dotted

__all__ = [
    "BASE",
    "OWN",
    "RESEEDED",
    "TASKS",
    "UNPREDICTED",
    "booked",
    "encoders",
    "mean_that_fails",
    "measured",
    "run_locally",
    "tiny",
]

TASKS = {"data.tasks": [[0, 1], [1, 2], [6, 3, 4], [5, 7]], "data.partition.name": "iid"}

PUBLIC = {"data.public.source": "share", "data.public.share": 0.2}

MIXED = {"clients.encoders": ["small_cnn", "small_cnn_bn", "small_cnn", "fedlinked_cnn"], "model.width": 0.1}

# Methods that do not say beforehand what a round costs a client (`traffic`, `workload`), and why.
UNPREDICTED = {
    "fedlinked": "early stopping decides",
    "fedavg_trunk": "early stopping decides",
}

# What a method needs beside BASE to exercise what is its own.
OWN: dict[str, dict[str, object]] = {
    "fedfoa": {
        "clients.encoders": ["small_cnn", "small_cnn_bn", "fedlinked_cnn", "resnet18"],
        "model.calibration": 8,
        "model.width": 0.1,
        "method.warmup": 1,
    },
    "fedsc": {"participation.fraction": 0.5, "method.sharing_passes": 2},
    "fedlinked": {**TASKS, "data.public.share": 0.25},
    "fedavg_trunk": {**TASKS, "data.public.share": 0.25},
    "fedca": {
        **PUBLIC,
        "method.dictionary_size": 40,
        "method.alignment_epochs": 2,
        "method.alignment_batch": 16,
        "participation.fraction": 0.75,
    },
    "fedmae": {
        "clients.encoders": "vit_tiny",
        "model.patch": 2,
        "model.patch_decoder": {"dim": 8, "layers": 1, "heads": 2},
    },
    "fedmoco": {"objective.queue": 48},
    "fedema": {"participation.fraction": 0.75, "method.selective": True},
    "ldawa": {"method.warmup": 1},
    "fedu2": {"method.lr": 0.05},
    "flesd": {**PUBLIC, "method.epochs": 2, "method.anchors": 32, "method.batch_size": 16},
    "flesd_cc": {**PUBLIC, "method.epochs": 2, "method.anchors": 32, "method.batch_size": 16, "train.rounds": 1},
    "fedmkd": {
        **PUBLIC,
        **MIXED,
        "method.student": "small_cnn_bn",
        "method.epochs": 1,
        "method.batch_size": 16,
        "method.queue": 20,
        "method.attention_hidden": 16,
        "participation.fraction": 0.75,
    },
    "ssd": {"model.projector.dim": 32, "participation.fraction": 0.75},
    "orchestra": {
        "method.global_clusters": 8,
        "method.local_clusters": 4,
        "method.memory": 24,
        "method.fit_steps": 10,
        "participation.fraction": 0.75,
    },
    "fedmd": {**PUBLIC, **MIXED, "method.subset": 32, "method.digest_batch": 16, "participation.fraction": 0.75},
    "feddf": {**PUBLIC, **MIXED, "method.steps": 4, "method.batch_size": 16, "participation.fraction": 0.75},
}

# Nothing but dropout reads a global generator; all else has an address of its own.
RESEEDED = {
    "feddf": {"distil": "once for each architecture: a network's dropout has nothing to do with another's"},
    "orchestra": {"fit_global": "twice in the first round: no network is in it"},
}


def mean_that_fails(round: int, error: Exception) -> Callable[..., Any]:
    """``LocalCohort.mean``, but for a round in which it raises."""
    whole: Callable[..., Any] = LocalCohort.mean

    def mean(self: LocalCohort, *given: object, **named: object) -> Any:
        if self.round == round:
            raise error
        return whole(self, *given, **named)

    return mean


def tiny(method: str, **changes: object) -> RunConfig:
    """The contract suite's run of a method; ``changes`` are dotted keys, ``__`` for dots."""
    return tiny_run(method, {**OWN.get(method, {}), **dotted(**changes)})
