"""The server's optimisers against scalar loops and torch's SGD, and whole runs against what they must equal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.config import load as load_config
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.server_steps import moved, optimised_round
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.settings.files import ConfigError, dump
from rayfed_ssl.settings.system import FedAdagrad, FedAdam, FedYogi, Momentum
from rayfed_ssl.simulation.local import LocalCohort
from tests.tiny import booked, encoders, measured, run_locally, tiny

DELTAS = np.random.default_rng(0).normal(scale=0.02, size=(4, 5))  # pseudo-gradients of four rounds
FAST: dict[str, Any] = {"data__limit": 120, "train__local_steps": 2, "evaluation__protocols": []}


def steps_of(config: Momentum | FedAdagrad | FedAdam | FedYogi, deltas: np.ndarray) -> np.ndarray:
    state: dict[str, np.ndarray] = {}
    found = []
    for delta in deltas:
        step, state = moved(config, delta, state)
        found.append(step)
    return np.array(found)


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_adaptive_steps_are_algorithm_2_parameter_by_parameter(kind: type[FedAdagrad | FedAdam | FedYogi]) -> None:
    config = kind(lr=0.3, beta_1=0.8, beta_2=0.95, tau=0.01)
    found = steps_of(config, DELTAS)
    for i in range(DELTAS.shape[1]):
        m, v = 0.0, 0.01**2
        for t, delta in enumerate(DELTAS[:, i]):
            m = 0.8 * m + 0.2 * delta
            if kind is FedAdagrad:
                v = v + delta**2
            elif kind is FedAdam:
                v = 0.95 * v + 0.05 * delta**2
            else:
                v = v - 0.05 * delta**2 * math.copysign(1, v - delta**2)
            assert found[t, i] == pytest.approx(0.3 * m / (math.sqrt(v) + 0.01), rel=1e-5)


def test_the_three_differ_and_yogi_forgets_slower_than_adam() -> None:
    quiet = np.concatenate([np.full((1, 1), 1.0), np.full((3, 1), 1e-3)])
    adagrad, adam, yogi = (steps_of(kind(beta_1=0), quiet)[-1, 0] for kind in (FedAdagrad, FedAdam, FedYogi))
    assert adagrad < yogi < adam  # sqrt(v): 1; sqrt(0.01 - ..); sqrt(0.01 * 0.99^3)


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.9), (0.5, 0.3), (1.0, 0.0)])
def test_momentum_is_torchs_sgd_on_the_pseudo_gradient(lr: float, momentum: float) -> None:
    theta = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=lr, momentum=momentum)
    for delta in DELTAS:
        theta.grad = -torch.tensor(delta)
        optimizer.step()
    config = Momentum(lr=lr, momentum=momentum)
    np.testing.assert_allclose(steps_of(config, DELTAS).sum(axis=0), theta.detach().numpy(), atol=1e-8)


def served(config: RunConfig, rounds: int = 2) -> list[np.ndarray]:
    """The global model before the first and after each round."""
    federation = load_federation(config)
    cohort = LocalCohort(config, federation, Ledger())
    server = METHODS[config.method.name].server(Setup(config, federation, InitialWeights(config, federation)))
    server.start(cohort)
    models = [server.weights.vector]
    for t in range(1, rounds + 1):
        cohort.begin_round(t, federation.clients)
        optimised_round(server, config.server.optimizer, t, cohort)
        cohort.end_round()
        models.append(server.weights.vector)
    return models


def test_a_round_steps_towards_the_mean_and_buffers_are_the_mean() -> None:
    start, mean = served(tiny("fedsimclr", **FAST), rounds=1)
    config = tiny("fedsimclr", server__optimizer={"name": "momentum", "lr": 0.25}, **FAST)
    count = InitialWeights(config, load_federation(config))(config.clients.encoder(0)).parameters
    assert count < len(start)  # BatchNorm's running statistics stand behind the parameters
    _, first = served(config, rounds=1)
    np.testing.assert_allclose(first[:count], start[:count] + 0.25 * (mean - start)[:count], atol=1e-6)
    np.testing.assert_array_equal(first[count:], mean[count:])
    assert np.abs(mean - start)[:count].max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedsimclr", "fedsc", "fedema", "fedx"])
def test_without_momentum_a_step_of_one_is_the_mean(method: str) -> None:
    changes = {"server__optimizer": {"name": "momentum", "momentum": 0.0}, "participation__fraction": 1.0}
    for ours, plain in zip(served(tiny(method, **changes, **FAST)), served(tiny(method, **FAST)), strict=True):
        np.testing.assert_allclose(ours, plain, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["momentum", "yogi"])
def test_a_resumed_run_keeps_the_moments(optimizer: str, tmp_path: Path) -> None:
    config = tiny("fedsc", server__optimizer__name=optimizer, **FAST)
    run_locally(config, tmp_path / "whole")
    seen: list[int] = []
    run_locally(config, tmp_path / "run", report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= 2)
    assert run_locally(config, tmp_path / "run", resume=True)["status"] == "complete"
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    assert booked(tmp_path / "run") == booked(tmp_path / "whole")
    assert all(measured(tmp_path / "run")[t, None, "server/step"] > 0 for t in (1, 2, 3))
    plain = tmp_path / "plain"
    run_locally(tiny("fedsc", **FAST), plain)
    (ours,), (theirs,) = (list(encoders(folder).values()) for folder in (tmp_path / "run", plain))
    assert any(np.abs(value - load(theirs)[name]).max() > 1e-3 for name, value in load(ours).items())


@pytest.mark.parametrize(
    ("method", "changes", "line"),
    [
        ("fedu2", {}, r"server\.optimizer\.name: found 'momentum', but fedu2's server step is no plain mean of "
                      r"weights; allowed: average \('momentum' goes with fedsimclr, "),
        ("local", {}, r"server\.optimizer\.name: found 'momentum', but local's"),
        ("fedsimclr", {"server__schedule": "fedbuff", "system": {"seconds_per_image": 0.1}},
         r"server\.optimizer\.name: found 'momentum'; server\.schedule=fedbuff steps by server\.lr; allowed: average"),
        ("fedsimclr", {"server__optimizer__momentum": 1.0}, r"server\.optimizer\.momentum: found 1"),
        ("fedsimclr", {"server__optimizer__tau": 1.0}, r"server\.optimizer\.tau"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(method: str, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        tiny(method, server__optimizer__name="momentum", **changes)


def test_an_unknown_optimizer_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"server\.optimizer\.name: found 'sgd'; must be one of average, momentum"):
        tiny("fedsimclr", server__optimizer__name="sgd")


def test_averaged_targets_are_refused_before_a_run_and_a_run_that_had_them_is_read(tmp_path: Path) -> None:
    """The mean of targets would run ahead of a model that takes a tenth of the step."""
    changes = {"objective__target": "averaged", "server__optimizer__name": "momentum", "server__optimizer__lr": 0.1}
    config = tiny("fedbyol", **changes)
    dump(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    with pytest.raises(UserError, match=r"^objective\.target: found 'averaged'; .* allowed: local, reset$"):
        run_locally(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
