"""FedU and FedEMA: how far a client's model is from another, and what it keeps of its own because of that
(Zhuang et al. 2021, "Collaborative unsupervised visual representation learning from decentralized data"; Zhuang et al.
2022, "Divergence-aware federated self-supervised learning").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import nn

SHORTCUTS = ("shortcut", "downsample")


def convolutions(module: nn.Module) -> list[str]:
    """The names of the weights of all convolutions but those on residual shortcuts, which EasyFL leaves out, too."""
    return [
        f"{name}.weight"
        for name, part in module.named_modules()
        if isinstance(part, nn.Conv2d) and not any(word in name for word in SHORTCUTS)
    ]


def layer_divergence(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """Mean over tensors of the L2 distance between both models' (EasyFL's code, of a model before and after its own
    previous training, convolutions only).

    Raises ValueError for no tensors, or other names.
    """
    return float(np.mean(np.sqrt(_squares(a, b))))


def model_divergence(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """L2 distance over all tensors together (the papers: between the global and the client's own encoder).

    Raises ValueError for no tensors, or other names.
    """
    return float(np.sqrt(np.sum(_squares(a, b))))


def _squares(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> list[float]:
    if not a or a.keys() != b.keys():
        raise ValueError("divergence: both models need the same tensors, at least one")
    moves = (np.asarray(a[name], np.float64) - np.asarray(b[name], np.float64) for name in a)
    return [float(np.dot(move.ravel(), move.ravel())) for move in moves]


def takes_predictor(divergence: float, threshold: float) -> bool:
    """FedU: whether a client takes the global predictor, else it keeps its own; only strictly below the threshold."""
    return divergence < threshold


def autoscaler(tau: float, first: float) -> float | None:
    """FedEMA's lambda_k = tau / d_k with the first divergence, so that mu_k is tau then (FedEMA, eq. 4).

    None while nothing has moved (d_k = 0); the next divergence is then the first one.
    """
    return tau / first if first > 0 else None


def kept_share(scaler: float, divergence: float) -> float:
    """FedEMA's mu_k = min(lambda_k d_k, 1): how much of its own model a client keeps (eq. 3)."""
    return min(scaler * divergence, 1.0)


def mixed(own: np.ndarray, received: np.ndarray, mu: float) -> np.ndarray:
    """``mu own + (1 - mu) received`` (FedEMA, eq. 1 and 2); 0 is the received one and 1 the own one to the bit."""
    if mu in (0.0, 1.0):
        return (own if mu else received).copy()
    return np.asarray(np.float32(mu) * own + np.float32(1 - mu) * received, own.dtype)
