"""The optimiser of a client's local training: its learning rate in a round, its update rule, and the moments that it
keeps for the client's next round if ``train.optimizer.keep`` is set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from rayfed_ssl.base import optimizers
from rayfed_ssl.settings.blocks import OptimizerConfig

Moments = Mapping[str, Mapping[str, np.ndarray]]  # parameter -> what an optimiser remembers of it, by PyTorch's names


def round_learning_rate(config: OptimizerConfig, t: int, rounds: int) -> float:
    """The learning rate of round t of R = ``rounds``, constant within the round, with W = ``warmup`` < R.

    In rounds t <= W it is lr t / W (Goyal et al. 2017, section 2.2, with rounds as steps). Later it is lr, or, with
    ``cosine``, lr/2 (1 + cos(pi (t - 1 - W) / (R - W))), which begins with lr in round W + 1 (Loshchilov and Hutter
    2017, eq. 5, without restarts). Training before the first round (t = 0) has the first round's rate.
    """
    t = max(t, 1)
    if t <= config.warmup:
        return config.lr * t / config.warmup
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


def moments(optimizer: torch.optim.Optimizer, network: nn.Module) -> Moments:
    """What the optimiser remembers of the network's parameters: copies in each parameter's shape, and Adam's count of
    steps. Parameters that have had no gradient are left out.
    """
    remembered = {name: optimizer.state.get(p) for name, p in network.named_parameters()}
    return {
        name: {moment: value.detach().cpu().numpy().copy() for moment, value in values.items()}
        for name, values in remembered.items()
        if values
    }


def with_moments(optimizer: torch.optim.Optimizer, network: nn.Module, kept: Moments) -> torch.optim.Optimizer:
    """A fresh optimiser that continues from the :func:`moments` of another with the same rule. They get their
    parameters' memory format; counts of steps stay on the CPU, where PyTorch keeps them.
    """
    parameters = dict(network.named_parameters())
    for name, values in kept.items():
        for moment, value in values.items():
            held = torch.from_numpy(value.copy())
            like = parameters[name]
            optimizer.state[like][moment] = held if moment == "step" else torch.empty_like(like).copy_(held)
    return optimizer


def moments_of(config: OptimizerConfig) -> int:
    """The number of values that the rule remembers for each parameter."""
    if config.name in ("adam", "adamw"):
        return 2
    return 1 if config.momentum > 0 else 0
