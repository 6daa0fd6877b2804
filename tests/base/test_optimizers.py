"""Our optimisers give PyTorch's bits, LARS a loop's numbers, and none imports the compiler."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.base import optimizers

CASES = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 1e-3}),
    ("Adam", {"weight_decay": 1e-2}),
    ("Adam", {"fused": True}),
    ("AdamW", {"weight_decay": 1e-2}),
]
STEPS = """
import sys, torch
from rayfed_ssl.base import optimizers
for name in sys.argv[1:]:
    theta = torch.nn.Parameter(torch.ones(3))
    optimizer = getattr(optimizers, name)([theta], 0.1)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        theta.square().sum().backward()
        optimizer.step()
    assert theta[0] < 1, theta
    print(name, "torch._dynamo" in sys.modules)
"""


def trained(module: Any, name: str, settings: dict[str, Any]) -> Tensor:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 5))
    optimizer = getattr(module, name)(network.parameters(), 0.05, **settings)
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        network(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_the_bits_are_pytorchs(name: str, settings: dict[str, Any]) -> None:
    assert torch.equal(trained(optimizers, name, settings), trained(torch.optim, name, settings))


@pytest.mark.long
def test_a_step_does_not_import_the_compiler() -> None:
    found = subprocess.run(
        [sys.executable, "-c", STEPS, "SGD", "Adam", "AdamW", "LARS"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert found.stdout == "SGD False\nAdam False\nAdamW False\nLARS False\n"


@pytest.mark.parametrize("name", ["SGD", "LARS"])
def test_schedules_accept_them(name: str) -> None:
    optimizer = getattr(optimizers, name)([nn.Parameter(torch.ones(1))], 0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25)


# -- LARS --------------------------------------------------------------------------------------------------------------

SHAPES = {"scale": (), "bias": (5,), "matrix": (4, 5), "zero": (3, 2), "idle": (2, 2), "kernel": (3, 2, 2, 2)}


def norm(values: np.ndarray) -> float:
    return math.sqrt(sum(float(value) ** 2 for value in values.reshape(-1)))


def lars(
    weights: dict[str, np.ndarray],
    gradients: list[dict[str, np.ndarray]],
    lr: float,
    momentum: float,
    decay: float,
    trust: float,
) -> dict[str, np.ndarray]:
    """SimCLR's LARSOptimizer with classic momentum, tensor by tensor: the learning rate is part of what is gathered."""
    weights, gathered = dict(weights), {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for given in gradients:
        for name, g in given.items():
            w, ratio = weights[name], 1.0
            if w.ndim > 1:
                g = g + decay * w
                if norm(w) > 0 and norm(g) > 0:
                    ratio = trust * norm(w) / norm(g)
            gathered[name] = momentum * gathered[name] + lr * ratio * g
            weights[name] = w - gathered[name]
    return weights


def first_values() -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Weights, one of which begins at zero, and the gradients of six steps, one of which is always zero."""
    rng = np.random.default_rng(0)
    weights = {name: np.asarray(rng.normal(size=shape)) for name, shape in SHAPES.items()}
    gradients = [{name: np.asarray(rng.normal(size=shape)) for name, shape in SHAPES.items()} for _ in range(6)]
    weights["zero"] = np.zeros(SHAPES["zero"])
    for given in gradients:
        given["idle"] = np.zeros(SHAPES["idle"])
    return weights, gradients


def stepped(
    weights: dict[str, np.ndarray], gradients: list[dict[str, np.ndarray]], **settings: float
) -> tuple[dict[str, nn.Parameter], optimizers.LARS]:
    """Parameters after a step of LARS with each of the gradients."""
    parameters = {name: nn.Parameter(torch.tensor(values)) for name, values in weights.items()}
    optimizer = optimizers.LARS(parameters.values(), **settings)
    for given in gradients:
        for name, g in given.items():
            parameters[name].grad = torch.tensor(g)
        optimizer.step()
        for name, g in given.items():
            assert torch.equal(parameters[name].grad, torch.tensor(g)), name  # type: ignore[arg-type]
    return parameters, optimizer


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("trust", [0.001, 0.05])
def test_lars_equals_a_loop(momentum: float, decay: float, trust: float) -> None:
    weights, gradients = first_values()
    settings = {"lr": 0.4, "momentum": momentum, "weight_decay": decay, "trust_coefficient": trust}
    parameters, _ = stepped(weights, gradients, **settings)
    expected = lars(weights, gradients, 0.4, momentum, decay, trust)
    for name, values in expected.items():
        np.testing.assert_allclose(parameters[name].detach().numpy(), values, rtol=1e-12, atol=1e-14, err_msg=name)
        assert np.array_equal(values, weights[name]) == (name == "idle" and decay == 0), name


def test_a_step_of_lars_is_as_long_as_the_weights_and_not_the_gradients_norm_says() -> None:
    """Without decay and momentum: lr trust |w|, whatever factor the loss has. Biases follow the factor."""
    weights, (given, *_) = first_values()
    settings = {"lr": 0.5, "momentum": 0.0, "trust_coefficient": 0.02}
    for factor in (1.0, 100.0):
        parameters, _ = stepped(weights, [{name: factor * g for name, g in given.items()}], **settings)
        moved = {name: norm(p.detach().numpy() - weights[name]) for name, p in parameters.items()}
        for name in ("matrix", "kernel"):
            assert moved[name] == pytest.approx(0.5 * 0.02 * norm(weights[name]), rel=1e-9)
        for name in ("scale", "bias", "zero"):
            assert moved[name] == pytest.approx(0.5 * factor * norm(given[name]), rel=1e-9)


def test_lars_leaves_alone_what_has_no_gradient() -> None:
    weights, gradients = first_values()
    some = [{name: given[name] for name in ("matrix", "bias")} for given in gradients]
    parameters, optimizer = stepped(weights, some, lr=0.4, weight_decay=0.3)
    assert set(optimizer.state) == {parameters["matrix"], parameters["bias"]}
    for name in SHAPES.keys() - {"matrix", "bias"}:
        assert np.array_equal(parameters[name].detach().numpy(), weights[name])
    assert not stepped(weights, gradients, lr=0.4, momentum=0.0)[1].state
    stepped(weights, [{}], lr=0.4)


def test_groups_of_lars_have_their_own_settings_and_a_closure_its_gradients() -> None:
    a, b = (nn.Parameter(torch.full((1, 1), 2.0, dtype=torch.float64)) for _ in range(2))
    optimizer = optimizers.LARS([{"params": [a]}, {"params": [b], "lr": 1.0, "weight_decay": 0.5}], 0.1, 0.0, 0.0, 0.25)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (3 * a - 4 * b).sum()
        loss.backward()
        return loss.detach()

    assert float(optimizer.step(closure)) == -2.0
    assert float(a.detach()) == pytest.approx(2 - 0.1 * 0.25 * 2)  # u = 3
    assert float(b.detach()) == pytest.approx(2 + 1.0 * 0.25 * 2)  # u = -4 + 0.5 * 2


def test_lars_goes_on_from_its_state() -> None:
    weights, gradients = first_values()
    whole, _ = stepped(weights, gradients, lr=0.4)
    half, optimizer = stepped(weights, gradients[:3], lr=0.4)
    continued = {name: nn.Parameter(p.detach().clone()) for name, p in half.items()}
    other = optimizers.LARS(continued.values(), lr=1.0)
    other.load_state_dict(optimizer.state_dict())
    for given in gradients[3:]:
        for name, g in given.items():
            continued[name].grad = torch.tensor(g)
        other.step()
    assert all(torch.equal(continued[name], whole[name]) for name in SHAPES)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"lr": -0.1}, "lr: found -0.1; must be at least 0"),
        ({"lr": 0.1, "momentum": float("nan")}, "momentum: found nan; must be at least 0"),
        ({"lr": 0.1, "weight_decay": -1}, "weight_decay: found -1; must be at least 0"),
        ({"lr": 0.1, "trust_coefficient": 0}, "trust_coefficient: found 0; must be above 0"),
    ],
)
def test_wrong_settings_of_lars_are_refused(settings: dict[str, float], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        optimizers.LARS([nn.Parameter(torch.ones(1))], **settings)
