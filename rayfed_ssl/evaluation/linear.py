"""Linear probe: a linear classifier on cached, clean backbone features, at its last epoch.

Shapes: N train images, M test images, B batch, D embedding, C classes.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.evaluation.standard import capped, moments, standardise


class LinearConfig(Block):
    """The ``evaluation.linear`` block."""

    epochs: int = Field(200, ge=1)
    lr: float = Field(3e-3, gt=0)
    batch_size: int = Field(2048, ge=1)
    """Images per step; never more than a tenth of the train images."""


def linear_probe(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    classes: int,
    seed: int,
    epochs: int = 200,
    lr: float = 3e-3,
    batch_size: int = 2048,
) -> float:
    """Test accuracy after the last epoch of Adam on cross-entropy; the test images choose nothing.

    Args:
        train_x, test_x: (N, D) and (M, D) float features; standardised here by the train images' mean and deviation.
        train_y, test_y: (N,) and (M,) int64 in [0, classes).
        seed: of the initial weights and of the order of the images, new every epoch.

    Source: EasyFL's linear evaluation (Adam 3e-3, no weight decay, batch 2048, 200 epochs).
    Differs: features are standardised, batches reshuffled and at most a tenth of the images (one step an epoch does not
    converge in 200), and the accuracy is over images, not a mean over batches.
    """
    mean, std = moments(train_x)
    weight, bias = fit(
        standardise(train_x, mean, std), train_y, classes, epochs, lr, capped(batch_size, len(train_x)), seed
    )
    predicted = torch.addmm(bias, weight, standardise(test_x, mean, std).T).argmax(dim=0)
    return int((predicted == test_y).sum()) / len(test_y)


@torch.no_grad()
def fit(
    x: Tensor, y: Tensor, classes: int, epochs: int, lr: float, batch_size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """The probe's weight (C, D) and bias (C, 1), from uniform weights within 1/sqrt(D) and zero biases.

    The gradient of the mean cross-entropy is written out, with classes as rows: two to three times faster than autograd
    on (B, C) logits, where a softmax over ten columns costs more than the matrix products.
    """
    start, order = generator(seed, "linear", "init"), generator(seed, "linear", "order")
    bound = x.shape[1] ** -0.5
    weight = torch.empty(classes, x.shape[1]).uniform_(-bound, bound, generator=start)
    bias = torch.zeros(classes, 1)
    optimizer = torch.optim.Adam([weight, bias], lr=lr, fused=True)
    columns = torch.arange(batch_size)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=order), batch_size):
            images, truth = x.index_select(0, rows), y[rows]
            error = torch.addmm(bias, weight, images.T).softmax(dim=0)  # (C, B)
            error[truth, columns[: len(rows)]] -= 1  # d(cross-entropy of one image) / d(its logits)
            weight.grad = error @ images / len(rows)
            bias.grad = error.sum(dim=1, keepdim=True) / len(rows)
            optimizer.step()
    return weight, bias
