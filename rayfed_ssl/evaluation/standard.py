"""Helpers that the protocols share: standardised features, probabilities, and a cap on settings meant for tens of
thousands of images.

Shapes: N images, D embedding, C classes.
"""

from __future__ import annotations

import importlib

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

BLOCK = 2048
"""Rows converted to float64 at once."""


def capped(wanted: int, n: int) -> int:
    """``wanted``, but at most a tenth of the ``n`` train images, and at least 1."""
    return min(wanted, max(1, n // 10))


def one_thread(module: str, user_api: str | None = None) -> threadpool_limits:
    """A context in which the libraries behind scikit-learn's ``module`` use one thread: another number of threads gives
    other bits.

    The module is imported first, since what is not loaded yet cannot be limited.
    """
    importlib.import_module(module)
    return threadpool_limits(limits=1, user_api=user_api)


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (population), each (D,) float32, of ``x`` (N, D) of any real type; no label is read.

    Sums are taken in float64, block by block. If a feature is constant to float32's resolution, its deviation is
    returned as 1, so that a collapsed encoder gives zeros rather than amplified rounding errors.
    """
    total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for block in torch.split(x, BLOCK):
        total += block.double().sum(dim=0)
    mean = total / len(x)
    square = torch.zeros_like(total)
    for block in torch.split(x, BLOCK):
        square += (block.double() - mean).square().sum(dim=0)
    std = (square / len(x)).sqrt()
    constant = std <= torch.finfo(torch.float32).eps * mean.abs()
    return mean.float(), std.masked_fill(constant, 1.0).float()


def standardise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(x - mean) / std as float32 (N, D)."""
    return (x.float() - mean).div_(std)


def log_probabilities(logits: Tensor) -> Tensor:
    """The logarithm of the softmax (N, C) of logits (N, C), in float64.

    Float32 rounds all probabilities above 1 - 3e-8 to 1. An area under the ROC curve would then take images as equal
    that a confident classifier tells apart.
    """
    return logits.double().log_softmax(dim=1)
