"""The optimiser of a client's local training: its learning rate in a round, and the rule of its step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rayfed_ssl.base import optimizers
from rayfed_ssl.settings.blocks import OptimizerConfig


def round_learning_rate(config: OptimizerConfig, t: int, rounds: int) -> float:
    """The learning rate of round t of R = ``rounds``, constant within the round, with W = ``warmup`` < R.

    In rounds t <= W it is lr t / W (Goyal et al. 2017, section 2.2, by rounds). Later it is lr, or, with ``cosine``,
    lr/2 (1 + cos(pi (t - 1 - W) / (R - W))), which begins with lr in round W + 1 (Loshchilov and Hutter 2017, eq. 5,
    without restarts). What is trained before the first round, t = 0, has the first round's warm-up.
    """
    if t <= config.warmup and config.warmup > 0:
        return config.lr * max(t, 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    return config.lr / 2 * (1 + math.cos(math.pi * (t - 1 - config.warmup) / (rounds - config.warmup)))


def new_optimizer(
    config: OptimizerConfig, parameters: list[Tensor], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """A fresh optimiser by the configured rule, with this learning rate and weight decay."""
    if config.name == "sgd":
        return optimizers.SGD(parameters, lr, config.momentum, weight_decay=weight_decay)
    if config.name == "lars":
        return optimizers.LARS(parameters, lr, config.momentum, weight_decay, config.trust_coefficient)
    kind = optimizers.Adam if config.name == "adam" else optimizers.AdamW
    return kind(parameters, lr, weight_decay=weight_decay)
