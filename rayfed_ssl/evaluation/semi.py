"""Semi-supervised accuracy: the whole network fine-tuned on a small share of the labels, drawn class by class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayfed_ssl.base.notes import Note
from rayfed_ssl.evaluation.finetune import FineTuneConfig, answering, fine_tune, label_fraction
from rayfed_ssl.evaluation.material import Material
from rayfed_ssl.evaluation.protocol import Protocol

OVER = 1.5  # times the share of the labels, before it is said


class SemiConfig(FineTuneConfig):
    """Fine-tuning on a share of the labels."""

    fractions: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field((0.01, 0.1), min_length=1)
    """Shares of each class whose labels are used, at least one of each; recorded as ``semi_1`` and ``semi_10``."""


def tag(fraction: float) -> str:
    """``semi_<percent>``, with ``p`` for a decimal point."""
    return f"semi_{100 * fraction:g}".replace(".", "p")


def measure(material: Material, config: SemiConfig) -> dict[str, float]:
    """``semi_<percent>`` for each of ``config.fractions``, measured after the last epoch.

    Source: Liao et al. 2024 (FedU2), semi-supervised evaluation, see ``fine_tune``.
    """
    values: dict[str, float] = {}
    labels = material.train.labels.numpy()
    for fraction in config.fractions:
        rows = label_fraction(labels, fraction, material.seed)
        classify = fine_tune(
            material.encoder, material.train.pixels[rows], labels[rows],
            classes=material.classes, config=config, seed=material.seed, key="evaluation.semi",
        )  # fmt: skip
        values |= material.classified(tag(fraction), answering(classify))
    return values


def remarks(settings: SemiConfig, labels: NDArray[np.int64]) -> Iterator[Note]:
    """A line for each fraction that takes far more labels than its share, because classes are small and each gives
    one.
    """
    for fraction in settings.fractions:
        used = len(label_fraction(labels, fraction, 0))
        if used > OVER * fraction * len(labels):
            yield Note.shareable(
                f"evaluation.semi.fractions: {tag(fraction)} takes {used} of the {len(labels)} labelled train images, "
                f"{100 * used / len(labels):.2g}% for a share of {100 * fraction:g}%: of each class at least one"
            )


SEMI = Protocol(
    SemiConfig,
    measure,
    lambda settings: tuple(tag(fraction) for fraction in settings.fractions),
    remarks=remarks,
)
