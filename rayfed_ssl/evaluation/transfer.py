"""Transfer: measures the encoder on another data set, by a linear probe and by fine-tuning the whole network."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.evaluation import linear as probe
from rayfed_ssl.evaluation.finetune import FineTuneConfig, answering, fine_tune
from rayfed_ssl.evaluation.linear import LinearConfig
from rayfed_ssl.evaluation.material import Material, Split
from rayfed_ssl.evaluation.protocol import Protocol

KEY = "evaluation.transfer"


class TransferConfig(Block):
    """The encoder on another data set."""

    data: SourceConfig | None = None
    """The other data set, labelled and with test images of its own, resized to the run's size; null: none."""
    by: tuple[Literal["linear", "finetune"], ...] = Field(("linear",), min_length=1)
    """How the encoder is measured there."""
    linear: LinearConfig = LinearConfig()
    finetune: FineTuneConfig = FineTuneConfig()


@functools.lru_cache(maxsize=1)  # every round measures on it; ``ready`` forgets it
def dataset(config: TransferConfig, image_size: int) -> Dataset:
    """The other data set. Raises UserError if none is named, if it cannot be read, if it has no labels to measure by,
    or if all its training images are of one class.
    """
    if config.data is None:
        raise UserError(f"{KEY}.data: found nothing; transfer needs another data set: name, and path where it has one")
    other = load(config.data.model_copy(update={"image_size": image_size}), key=f"{KEY}.data")
    for name, images in (("train", other.train), ("test", other.test)):
        if not (images.labels >= 0).any():
            raise UserError(f"{KEY}.data: found no {name} image with a label in {other.name}; transfer needs labels")
    if len(np.unique(other.train.labels[other.train.labels >= 0])) < 2:
        raise UserError(
            f"{KEY}.data: found training images of 1 class in {other.name}, which is every answer; transfer needs two "
            "classes or more"
        )
    return other


def measure(material: Material, config: TransferConfig) -> dict[str, float]:
    """``transfer_linear`` and ``transfer_finetune``, as ``config.by`` says, with all labels of the other data set."""
    images = dataset(config, material.pool.shape[1])
    classes = max(len(images.train.class_names), int(images.train.labels.max()) + 1)
    train, test = (
        Split(f"{KEY}.data {name}", part.pixels, part.labels, classes, material.encoder.features)
        for name, part in (("train", images.train), ("test", images.test))
    )
    other = replace(material, train=train, tests={"": test}, classes=classes, own={})
    values: dict[str, float] = {}
    if "linear" in config.by:
        values |= probe.measure(other, config.linear, "transfer_linear")
    if "finetune" in config.by:
        values |= _finetune(other, config.finetune)
    return values


def _finetune(other: Material, config: FineTuneConfig) -> dict[str, float]:
    classify = fine_tune(
        other.encoder, other.train.pixels, other.train.labels.numpy(),
        classes=other.classes, config=config, seed=other.seed, key=f"{KEY}.finetune",
    )  # fmt: skip
    return other.classified("transfer_finetune", answering(classify))


def tags(config: TransferConfig) -> tuple[str, ...]:
    """The tags that ``measure`` returns."""
    probes = tuple(probe.tag(name, "transfer_linear") for name in config.linear.recipes)
    return (*(probes if "linear" in config.by else ()), *(("transfer_finetune",) if "finetune" in config.by else ()))


def ready(config: TransferConfig, image_size: int) -> None:
    """Raises UserError if the other data set cannot be read. It is read again, since it may have changed since another
    run.
    """
    dataset.cache_clear()
    dataset(config, image_size)


def others(config: TransferConfig, image_size: int) -> dict[str, Dataset]:
    """The other data set by its key. Raises UserError as :func:`dataset` does."""
    return {f"{KEY}.data": dataset(config, image_size)}


TRANSFER = Protocol(TransferConfig, measure, tags, needs_labels=False, ready=ready, images=others)
