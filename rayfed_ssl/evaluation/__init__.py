"""Evaluation of a frozen encoder: kNN, linear probe and few-shot accuracy on cached features of clean images.

The caller picks rows with ``labelled_rows``, turns them into features with ``extract`` and hands those to ``evaluate``;
``settings`` is written beside every result, so that no number stands without its k, epochs or draws.

Shapes: N train images, M test images, B batch, D embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.evaluation.fewshot import FewShotConfig, fewshot_accuracy
from rayfed_ssl.evaluation.finetune import FineTuneConfig, fine_tune, label_fraction
from rayfed_ssl.evaluation.knn import KnnConfig, knn_accuracy
from rayfed_ssl.evaluation.linear import LinearConfig, linear_probe

__all__ = [
    "EvaluationConfig",
    "FewShotConfig",
    "FineTuneConfig",
    "KnnConfig",
    "LinearConfig",
    "evaluate",
    "extract",
    "fewshot_accuracy",
    "fine_tune",
    "knn_accuracy",
    "label_fraction",
    "labelled_rows",
    "linear_probe",
    "settings",
]

Protocol: TypeAlias = Literal["knn", "linear", "fewshot"]


class EvaluationConfig(Block):
    """The ``evaluation`` block of a run."""

    protocols: tuple[Protocol, ...] = ("knn", "linear", "fewshot")
    every: int = Field(1, ge=0)
    """Rounds between evaluations; 0 is at the end only."""
    knn: KnnConfig = KnnConfig()
    linear: LinearConfig = LinearConfig()
    fewshot: FewShotConfig = FewShotConfig()
    train_images: int | None = Field(None, ge=1)
    """At most so many labelled train images are used, the first in a seeded order; null is all of them."""
    targets: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    """Accuracies, as fractions: the summary says in which round each protocol first reached them."""
    batch_size: int = Field(500, ge=1)
    """Images per forward pass."""


def labelled_rows(labels: NDArray[np.int64], limit: int | None, seed: int) -> NDArray[np.int64]:
    """Rows with a label (not negative), ascending; at most ``limit``, the first in an order seeded by ``seed``."""
    rows = np.flatnonzero(labels >= 0)
    if limit is not None and len(rows) > limit:
        rows = np.sort(numpy_generator(seed, "evaluation", "train_images").permutation(rows)[:limit])
    return rows


def extract(
    represent: Callable[[Tensor], Tensor],
    pixels: NDArray[np.uint8],
    clean: Callable[[Tensor], Tensor],
    batch_size: int,
    device: torch.device | str,
) -> Tensor:
    """Features (N, D) float32 on the CPU of ``pixels`` (N, H, W, 3) uint8.

    Args:
        represent: images (B, 3, H, W) as ``clean`` leaves them -> (B, ...) features, flattened here. In eval mode.
        clean: uint8 (B, 3, H, W) on ``device`` -> what the encoder takes, without augmentation.
    """
    parts = []
    with torch.inference_mode():
        for start in range(0, len(pixels), batch_size):
            block = torch.from_numpy(
                np.array(pixels[start : start + batch_size])
            )  # a copy: a mapped array is read-only
            images = clean(block.permute(0, 3, 1, 2).to(device))
            parts.append(represent(images).flatten(1).float().cpu())
    return torch.cat(parts)


class BrokenFeatures(UserError):
    """Features that are not finite, of ``broken`` among ``count`` images: training diverged."""

    def __init__(self, broken: int, count: int, split: str) -> None:
        self.found = f"features that are not finite for {broken} of {count} {split} images"
        super().__init__(f"train.optimizer.lr: found {self.found} (training diverged), allowed: a smaller value")


def evaluate(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    config: EvaluationConfig,
    classes: int,
    seed: int,
) -> dict[str, float]:
    """Accuracy as a fraction for each of ``config.protocols``, in that order.

    Args:
        train_x, test_x: (N, D) and (M, D) features on the CPU.
        train_y, test_y: (N,) and (M,) int64; rows with a negative label are left out.
        seed: of the choice of ``config.train_images`` rows and of the linear probe. Few-shot draws do not depend on it.

    Raises:
        UserError: if no train or no test image has a label, or a label is too large, or a feature is not finite.
    """
    if not config.protocols:
        return {}
    train_x, train_y = _labelled("train", train_x, train_y, config.train_images, classes, seed)
    test_x, test_y = _labelled("test", test_x, test_y, None, classes, seed)
    data = train_x, train_y, test_x, test_y
    measure: dict[Protocol, Callable[[], float]] = {
        "knn": lambda: knn_accuracy(*data, classes=classes, **config.knn.model_dump()),
        "linear": lambda: linear_probe(*data, classes=classes, seed=seed, **config.linear.model_dump()),
        "fewshot": lambda: fewshot_accuracy(*data, **config.fewshot.model_dump()),
    }
    return {protocol: measure[protocol]() for protocol in config.protocols}


def settings(config: EvaluationConfig) -> dict[str, Any]:
    """What is written beside every result: the settings of each protocol in use, and what they have in common."""
    used: dict[str, Any] = {protocol: getattr(config, protocol).model_dump() for protocol in config.protocols}
    return {"features": "backbone, clean images, eval mode", "train_images": config.train_images, **used}


def _labelled(split: str, x: Tensor, y: Tensor, limit: int | None, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """The labelled rows of a split, checked."""
    rows = torch.from_numpy(labelled_rows(y.numpy(), limit, seed))
    if len(rows) == 0:
        raise UserError(
            f"evaluation.protocols: found {len(y)} {split} images, none with a label; allowed without labels: []"
        )
    if len(rows) < len(y):
        x, y = x[rows], y[rows]
    if int(y.max()) >= classes:
        raise UserError(f"data: found label {int(y.max())} in the {split} images, allowed: 0 to {classes - 1}")
    broken = int((~x.isfinite().all(dim=1)).sum())
    if broken:
        raise BrokenFeatures(broken, len(x), split)
    return x, y
