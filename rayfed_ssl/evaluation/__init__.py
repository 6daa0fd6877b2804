"""Evaluation of a frozen encoder by the protocols of a table: ``PROTOCOLS``.

The caller makes a ``Material`` (images, labels, the encoder) and hands it to ``evaluate``; ``settings`` is written
beside every result, so that no number stands without its k, epochs or draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.evaluation.config import EvaluationConfig, SelectConfig
from rayfed_ssl.evaluation.material import (
    OWN,
    SELECT,
    BrokenFeatures,
    FrozenEncoder,
    Material,
    Split,
    by_client,
    extract,
    labelled_rows,
    of_client,
)
from rayfed_ssl.evaluation.outcomes import EncoderValues, Outcomes, ValueKey, outcomes_of
from rayfed_ssl.evaluation.protocol import EncoderComparison, Protocol
from rayfed_ssl.evaluation.table import PROTOCOLS

__all__ = [
    "OWN",
    "PROTOCOLS",
    "SELECT",
    "BrokenFeatures",
    "EncoderComparison",
    "EncoderValues",
    "EvaluationConfig",
    "FrozenEncoder",
    "Material",
    "Outcomes",
    "Protocol",
    "SelectConfig",
    "Split",
    "ValueKey",
    "by_client",
    "check",
    "evaluate",
    "extract",
    "labelled_rows",
    "of_client",
    "outcomes_of",
    "recorded",
    "settings",
    "settings_of",
]


FEATURES = "backbone, clean images, eval mode"


def evaluate(material: Material, config: EvaluationConfig) -> EncoderValues:
    """The values of each of ``config.protocols`` by tag, in that order; accuracies are fractions. ``by_client``
    separates the values on clients' own test images from the others; ``outcomes_of`` returns what ``material.tally``
    counted.

    Raises:
        UserError: if a protocol needs labels and no image has one, or a label is too large, or a feature is not finite.
    """
    values: dict[str, float] = {}
    for name, protocol in config.rows.items():
        values |= protocol.values(name, material, config.of(name))
    return EncoderValues(values, None if material.tally is None else material.tally.outcomes(values))


def recorded(tag: str) -> str:
    """The tag in the table of metrics: ``eval/knn`` for ``knn``; a tag with a slash is recorded as it is."""
    return tag if "/" in tag else f"eval/{tag}"


def settings(config: EvaluationConfig, train: int | None = None) -> dict[str, Any]:
    """What is written beside every result: the settings of each protocol in use, and those that all protocols share.

    Args:
        train: the number of labelled training images, if known. Settings that their number limits are then added as
            used, such as ``k_used``.
    """
    return _common(config) | {name: _own(config, name, train) for name in config.protocols}


def settings_of(config: EvaluationConfig, protocol: str, train: int | None = None) -> dict[str, Any]:
    """Every setting behind one protocol's results; ``train`` as in :func:`settings`."""
    return _common(config) | _own(config, protocol, train)


def _own(config: EvaluationConfig, protocol: str, train: int | None) -> dict[str, Any]:
    block, row = config.of(protocol), PROTOCOLS[protocol]
    used = row.effective(block, train) if train is not None and isinstance(row, Protocol) else {}
    return block.model_dump(mode="json") | used


def _common(config: EvaluationConfig) -> dict[str, Any]:
    common: dict[str, Any] = {"features": FEATURES, "train_images": config.train_images}
    if config.metrics != ("accuracy",):
        common["metrics"] = list(config.metrics)
    if config.select is not None:
        common["select"] = config.select.model_dump(mode="json")
    return common


def check(
    config: EvaluationConfig,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    image_size: int,
    other: str | None = None,
    unless: str = "",
) -> None:
    """Refuse protocols that these images cannot serve, before rounds are spent on them.

    Args:
        train, test: (N,) and (M,) labels, negative for an image without a label.
        other: what to call images that are not a run's own and are measured by ``--protocol``.
        unless: the key that would name the labels of these images, if another column holds them; empty if none would.
    Raises:
        UserError: labels are missing, or a protocol's own settings cannot work.
    """
    if other is not None and config.labelled:
        _check_other(config.labelled, train, test, other, unless)
    for split, labels in (("train", train), ("test", test)):
        if config.labelled and not (labels >= 0).any():
            held_out = config.select is not None and not (train >= 0).any()
            unused = ", with evaluation.select=null: nothing can be chosen by what it holds out" if held_out else ""
            column = f"; {unless} says which column or array has them" if unless else ""
            raise UserError(
                f"evaluation.protocols: found {', '.join(config.labelled)}, but none of the {len(labels)} {split} "
                f"images has a label{column}; allowed without labels: rank, or []{unused}"
            )
    if config.labelled and len(np.unique(train[train >= 0])) < 2:
        raise UserError(
            f"evaluation.protocols: found {', '.join(config.labelled)}, but the training images are of 1 class, which "
            "is every answer; allowed with one class: rank, or []"
        )
    for name, protocol in config.rows.items():
        protocol.ready(config.of(name), image_size)


def _check_other(
    labelled: Sequence[str], train: NDArray[np.int64], test: NDArray[np.int64], other: str, unless: str
) -> None:
    """Refuse protocols that need labels if the ``other`` images have too few of them. The message speaks of the
    command's options.
    """
    known = (train >= 0).any(), (test >= 0).any()
    if not any(known):
        problem = f"{other} has no labels" + (f", unless {unless} names them" if unless else "")
    elif not all(known):
        split, count = ("test", len(test)) if known[0] else ("train", len(train))
        problem = f"none of the {count} {split} images of {other} has a label"
    elif len(np.unique(train[train >= 0])) < 2:
        problem = f"the training images of {other} are of 1 class, which is every answer"
    else:
        return
    raise UserError(f"--protocol: found {', '.join(labelled)}; {problem}; allowed: rank")
