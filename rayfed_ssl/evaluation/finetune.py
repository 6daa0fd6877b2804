"""Fine-tuning: encoder and a small head trained together on labelled images, measured at the last epoch.

The semi-supervised protocol gives it 1 % or 10 % of the labels (``label_fraction``), the transfer protocol all labels
of another data set; otherwise they are the same.

Shapes: N train images, M test images, B batch, D embedding, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.seeding import forked, generator, numpy_generator


class FineTuneConfig(Block):
    """Settings shared by the semi-supervised and the transfer protocol."""

    epochs: int = Field(100, ge=1)
    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(128, ge=2)
    hidden: int = Field(4096, ge=1)
    """Width of the head's hidden layer."""


def label_fraction(labels: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.int64]:
    """Rows, ascending, of ``fraction`` of each class (rounded, at least one); a negative label is none."""
    order = numpy_generator(seed, "finetune", "labels").permutation(np.flatnonzero(labels >= 0))
    kept = []
    for label in np.unique(labels[order]):
        members = order[labels[order] == label]
        kept.append(members[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(kept)) if kept else order


def fine_tune(
    encoder: nn.Module,
    train: tuple[NDArray[np.uint8], NDArray[np.int64]],
    test: tuple[NDArray[np.uint8], NDArray[np.int64]],
    clean: Callable[[Tensor], Tensor],
    *,
    dim: int,
    classes: int,
    config: FineTuneConfig,
    seed: int,
    device: torch.device | str,
) -> float:
    """Test accuracy of a copy of ``encoder`` with an MLP head, both trained by Adam on ``train``.

    Args:
        encoder: (B, 3, H, W) -> (B, dim); it is copied and left as it was.
        train, test: pixels (., H, W, 3) uint8 and labels (.,) in [0, classes).
        clean: uint8 (B, 3, H, W) -> what the encoder takes; images are not augmented.

    Source: Zhang et al. 2020 (FedCA), evaluation: one hidden layer with ReLU, Adam 1e-3, 100 epochs; batch 128 and
    width 4096 from EasyFL's script. Differs from that script: it gives the optimiser the head only, puts BatchNorm into
    the head and prints the best test epoch; here the encoder learns too and the last epoch counts.
    """
    with torch.inference_mode(False), torch.enable_grad(), forked(seed, "finetune", device=device):
        model = nn.Sequential(
            copy.deepcopy(encoder), nn.Linear(dim, config.hidden), nn.ReLU(), nn.Linear(config.hidden, classes)
        ).to(device)
        model.train().requires_grad_()
        optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
        order = generator(seed, "finetune", "order")
        for _ in range(config.epochs):
            for rows in torch.split(torch.randperm(len(train[1]), generator=order), config.batch_size):
                if len(rows) == 1 < len(train[1]):
                    continue  # BatchNorm has no variance of one image
                images, truth = _batch(train, rows.numpy(), clean, device)
                loss = F.cross_entropy(model(images), truth)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
    model.eval()
    hits = 0
    with torch.inference_mode():
        for rows in torch.split(torch.arange(len(test[1])), config.batch_size):
            images, truth = _batch(test, rows.numpy(), clean, device)
            hits += int((model(images).argmax(dim=1) == truth).sum())
    return hits / len(test[1])


def _batch(
    data: tuple[NDArray[np.uint8], NDArray[np.int64]],
    rows: NDArray[np.int64],
    clean: Callable[[Tensor], Tensor],
    device: torch.device | str,
) -> tuple[Tensor, Tensor]:
    pixels, labels = torch.from_numpy(data[0][rows]), torch.from_numpy(data[1][rows])
    return clean(pixels.permute(0, 3, 1, 2).to(device)), labels.to(device)
