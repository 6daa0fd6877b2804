"""The server's optimiser: the next global model as a step towards the clients' mean, not the mean itself.

A round's pseudo-gradient is what clients moved in the mean, ``Delta = mean - theta`` (P,), and the step is

- ``momentum`` (FedAvgM; Hsu et al. 2019): ``m = beta m + Delta``, ``theta += lr m``;
- ``adagrad``, ``adam``, ``yogi`` (Reddi et al. 2021, Algorithm 2): ``m = beta_1 m + (1 - beta_1) Delta``, a second
  moment v of each parameter, ``theta += lr m / (sqrt(v) + tau)``; m begins at 0, v at tau^2, without bias correction.

Buffers (BatchNorm's running statistics) are the clients' mean, as without an optimiser. Sums are float64, what is kept
from round to round is float32. A method needs to know nothing of it: whatever its round ends with is the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.settings.system import Adaptive, Average, FedAdam, FedYogi, Momentum, ServerOptimizer

STATE = "server_optimizer"  # in the server's state: so it is in checkpoints


def second_moment(config: Adaptive, v: np.ndarray, squared: np.ndarray) -> np.ndarray:
    """v of the next round, (P,), from this one's and Delta^2 (Reddi et al. 2021, Algorithm 2)."""
    found: np.ndarray = v + squared
    if isinstance(config, FedAdam):
        found = config.beta_2 * v + (1 - config.beta_2) * squared
    elif isinstance(config, FedYogi):
        found = v - (1 - config.beta_2) * squared * np.sign(v - squared)
    return found


def moved(
    config: Momentum | Adaptive, delta: np.ndarray, state: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The step (P,) in float64 for a pseudo-gradient, and the moments to keep; ``state`` is empty at first."""
    m = state["m"].astype(np.float64) if state else np.zeros_like(delta)
    if isinstance(config, Momentum):
        m = config.momentum * m + delta
        return config.lr * m, {"m": m.astype(np.float32)}
    v = state["v"].astype(np.float64) if state else np.full_like(delta, config.tau**2)
    m = config.beta_1 * m + (1 - config.beta_1) * delta
    v = second_moment(config, v, delta**2)
    step = config.lr * m / (np.sqrt(v) + config.tau)
    return step, {"m": m.astype(np.float32), "v": v.astype(np.float32)}


def optimised_round(server: MethodServer[Any], config: ServerOptimizer, t: int, cohort: Cohort) -> None:
    """The method's round, and the server's step from the model before it towards the mean it ended with."""
    if isinstance(config, Average):
        server.round(t, cohort)
        return
    old = server.weights
    server.round(t, cohort)
    mean, count = server.weights, old.parameters
    before = old.vector[:count].astype(np.float64)
    step, server.state[STATE] = moved(config, mean.vector[:count] - before, server.state.get(STATE, {}))
    server.weights = old.with_vector(np.concatenate([(before + step).astype(np.float32), mean.vector[count:]]))
    server.metrics["server/step"] = float(np.linalg.norm(step))
