"""BYOL and SimSiam against printed numbers and loops; the target network moves as the paper says."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.base.seeding import forked
from rayfed_ssl.objectives.byol import ema_, regression
from rayfed_ssl.objectives.simsiam import negative_cosine
from tests import reference
from tests.tensors import normal

close = torch.testing.assert_close


@pytest.mark.parametrize(("p", "z", "loss"), [((3, 4), (4, 3), 0.08), ((1, 0), (0, 7), 2.0), ((1, 2), (-2, -4), 4.0)])
def test_regression_oracle(p: tuple[float, ...], z: tuple[float, ...], loss: float) -> None:
    p_, z_ = torch.tensor([p], dtype=torch.float64), torch.tensor([z], dtype=torch.float64)
    close(regression(p_, z_).item(), loss, rtol=0, atol=1e-12)
    close(negative_cosine(p_, z_).item(), loss / 2 - 1, rtol=0, atol=1e-12)


def test_both_directions_equal_the_loops() -> None:
    p_a, p_b, t_a, t_b = (normal(6, 4, seed=s) for s in range(4))
    close((regression(p_a, t_b) + regression(p_b, t_a)).item(), reference.byol(p_a, p_b, t_a, t_b), rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", [regression, negative_cosine])
def test_the_second_argument_is_constant(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    p, z = normal(3, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    loss(p, z).backward()
    assert z.grad is None
    assert torch.autograd.gradcheck(lambda x: loss(x, z.detach()), (p,))


def test_ema_moves_parameters_by_name_and_nothing_else() -> None:
    with forked(0, "byol ema"):
        online = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        target = copy.deepcopy(online[:2])
        for parameter in target.parameters():
            nn.init.normal_(parameter)
        online[1].running_mean.fill_(5.0)
    before, source = copy.deepcopy(target), copy.deepcopy(online)
    ema_(target, online, 0.9)
    for name, parameter in target.named_parameters():
        expected = 0.9 * before.get_parameter(name) + 0.1 * online.get_parameter(name)
        close(parameter, expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(target[1].running_mean, before[1].running_mean)
    for name, value in online.state_dict().items():
        assert torch.equal(value, source.state_dict()[name])


def test_ema_needs_every_parameter_of_the_target() -> None:
    with pytest.raises(KeyError, match="bias"):
        ema_(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), 0.9)


def test_ema_converges_geometrically() -> None:
    target, online = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.ones_(target.weight)
    nn.init.zeros_(online.weight)
    for _ in range(16):
        ema_(target, online, 0.999)
    close(target.weight.item(), 0.984119442, rtol=1e-6, atol=0)
