"""Fine-tuning: trains a copy of the encoder and a head together on labelled images, up to the last epoch.

The semi-supervised protocol gives it 1 % or 10 % of the labels (``label_fraction``), the transfer protocol all labels
of another data set; otherwise they are the same.

Shapes: N train images, M images to classify, B batch, D embedding, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from rayfed_ssl.base import optimizers
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import forked, generator, numpy_generator
from rayfed_ssl.data.recipes import Recipe
from rayfed_ssl.evaluation.material import FrozenEncoder, Split
from rayfed_ssl.evaluation.standard import log_probabilities

Share = Annotated[float, Field(gt=0, le=1)]


class FineTuneConfig(Block):
    """Fine-tuning of encoder and head.

    FedCA's settings (Zhang et al. 2020, which gives one hidden layer, Adam 1e-3 and 100 epochs) are ``{epochs: 100,
    optimizer: adam, encoder_lr: 1e-3, head_lr: 1e-3, hidden: 4096, crop_scale: [1, 1], flip: false}``.
    """

    epochs: int = Field(200, ge=1)
    """Passes over the labelled images."""
    batch_size: int = Field(128, ge=2)
    """Images per step."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """The rule of a step."""
    encoder_lr: float = Field(1e-3, gt=0)
    """Learning rate of the encoder."""
    head_lr: float = Field(0.3, gt=0)
    """Learning rate of the head."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of ``sgd``."""
    hidden: int | None = Field(None, ge=1)
    """Width of a hidden layer with ReLU in the head; null: a linear head."""
    crop_scale: tuple[Share, Share] = (0.64, 1.0)
    """Share of the area of a train image that a random square crop keeps; [1, 1]: no crop."""
    flip: bool | None = None
    """Whether train images are mirrored at random; null: as in the run's own training."""

    def recipe(self, of_run: Recipe) -> Recipe:
        """The augmentation of train images, normalised as the run's are."""
        flips = of_run.flip if self.flip is None else self.flip
        return Recipe(crop_scale=self.crop_scale, crop_ratio=(1.0, 1.0), flip=flips, mean=of_run.mean, std=of_run.std)


def label_fraction(labels: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.int64]:
    """Rows, ascending, of ``fraction`` of each class (rounded, at least one); a negative label means no label."""
    order = numpy_generator(seed, "finetune", "labels").permutation(np.flatnonzero(labels >= 0))
    kept = []
    for label in np.unique(labels[order]):
        members = order[labels[order] == label]
        kept.append(members[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(kept)) if kept else order


def fine_tune(
    encoder: FrozenEncoder,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    classes: int,
    config: FineTuneConfig,
    seed: int,
    key: str,
) -> Callable[[NDArray[np.uint8]], Tensor]:
    """Train a copy of ``encoder`` and a head; ``encoder`` is left as it was.

    Args:
        pixels, labels: (N, S, S, channels) uint8 and (N,) in [0, classes).
        key: the settings' block, for messages.
    Returns:
        a function: pixels (M, S, S, channels) -> log-probabilities (M, C) float64 on the CPU, from clean images in eval
        mode.
    Raises:
        UserError: by that function, if a log-probability is not finite.

    Source: the semi-supervised evaluation of FedU2 (Liao et al. 2024, official code): SGD with momentum 0.9, encoder
    1e-3, linear head 0.3, batch 128, 200 epochs, no schedule, no weight decay, random square crops and flips.
    Differs: the last epoch counts, where that code reports the best test epoch.
    """
    with torch.inference_mode(False), torch.enable_grad(), forked(seed, "finetune", device=encoder.device):
        hidden = [] if config.hidden is None else [nn.Linear(encoder.dim, config.hidden), nn.ReLU()]
        head = nn.Sequential(*hidden, nn.Linear(config.hidden or encoder.dim, classes))
        model = nn.Sequential(copy.deepcopy(encoder.module), head.to(encoder.device))
        model.train().requires_grad_()
        optimizer = _optimizer(model[0], model[1], config)
        recipe, truth = config.recipe(encoder.recipe), torch.tensor(labels, device=encoder.device)
        order, draws = generator(seed, "finetune", "order"), generator(seed, "finetune", "views", device=encoder.device)
        for _ in range(config.epochs):
            for rows in torch.split(torch.randperm(len(labels), generator=order), config.batch_size):
                if len(rows) == 1 and len(labels) > 1:
                    continue  # BatchNorm has no variance of one image
                images = encoder.views(encoder.batch(pixels[rows.numpy()]), recipe, draws, 1)
                loss = F.cross_entropy(model(images), truth[rows.to(encoder.device)])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
    model.eval()
    tuned = replace(encoder, module=model)

    def classify(pixels: NDArray[np.uint8]) -> Tensor:
        logits = tuned.features(pixels)
        if not logits.isfinite().all():
            raise UserError(
                f"{key}.head_lr: found {config.head_lr:g} (encoder_lr {config.encoder_lr:g}), with which fine-tuning "
                "diverged; allowed: a smaller value"
            )
        return log_probabilities(logits)

    return classify


def answering(classify: Callable[[NDArray[np.uint8]], Tensor]) -> Callable[[Split], tuple[Tensor, Tensor]]:
    """Wraps the function that :func:`fine_tune` returned for ``Material.classified``: classes (M,) and probabilities
    (M, C).
    """

    def answer(split: Split) -> tuple[Tensor, Tensor]:
        scores = classify(split.pixels)
        return scores.argmax(dim=1), scores.exp()

    return answer


def _optimizer(encoder: nn.Module, head: nn.Module, config: FineTuneConfig) -> torch.optim.Optimizer:
    """The configured rule, with a learning rate each for encoder and head."""
    groups = [
        {"params": list(encoder.parameters()), "lr": config.encoder_lr},
        {"params": list(head.parameters()), "lr": config.head_lr},
    ]
    if config.optimizer == "adam":
        return optimizers.Adam(groups)
    return optimizers.SGD(groups, momentum=config.momentum)
