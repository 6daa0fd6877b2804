"""Our optimisers give PyTorch's bits, and do not import the compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

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


def test_a_step_does_not_import_the_compiler() -> None:
    found = subprocess.run(
        [sys.executable, "-c", STEPS, "SGD", "Adam", "AdamW"], capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout == "SGD False\nAdam False\nAdamW False\n"


def test_schedules_accept_them() -> None:
    optimizer = optimizers.SGD([nn.Parameter(torch.ones(1))], 0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25)
