"""FedDecorr: the printed example, loops, the two forms, and misreadings."""

from __future__ import annotations

import pytest
import torch

from rayfed_ssl.objectives.decorrelation import decorrelation
from tests import reference
from tests.tensors import normal

close = torch.testing.assert_close
X = torch.tensor([[1, 2], [2, 1], [3, 5], [4, 4]], dtype=torch.float64)  # rho^2 = 1/2


def test_by_hand() -> None:
    close(decorrelation(X).item(), 1.12499999, rtol=0, atol=1e-8)
    close(decorrelation(X).item(), 9 / 4 * 0.5, rtol=0, atol=2e-8)  # but for eps
    close(decorrelation(torch.cat([X, X])).item(), 49 / 8 * 0.5, rtol=0, atol=1e-7)


def test_other_forms_differ() -> None:
    for x in (X, torch.cat([X, X])):
        rho = torch.corrcoef(x.T)
        close(rho.square().sum().item() / 4, 0.75, rtol=0, atol=1e-12)  # ||K||_F^2 / d^2
        assert abs(decorrelation(x).item() - 0.75) > 0.3
    with_diagonal = 9 / 4 * torch.corrcoef(X.T).square().mean().item()
    assert abs(decorrelation(X).item() - with_diagonal) > 0.5


def test_equals_the_loops_and_ignores_shift_and_scale_of_columns() -> None:
    x = normal(9, 5)
    close(decorrelation(x).item(), reference.decorrelation(x), rtol=1e-6, atol=0)
    moved = x * torch.tensor([2.0, 5, 3, 7, 1]) + torch.arange(5)
    close(decorrelation(moved), decorrelation(x), rtol=1e-6, atol=0)


def test_batch_free_is_the_same_for_any_batch_and_equal_at_64() -> None:
    x = normal(16, 3)
    close(decorrelation(torch.cat([x, x]), batch_free=True), decorrelation(x, batch_free=True), rtol=1e-6, atol=0)
    assert decorrelation(torch.cat([x, x])) > 1.9 * decorrelation(x)
    close(decorrelation(normal(64, 3), batch_free=True), decorrelation(normal(64, 3)))
    close(decorrelation(X, batch_free=True).item(), 62 * 0.5, rtol=1e-3, atol=0)


def test_edges() -> None:
    one = normal(1, 3).requires_grad_()
    loss = decorrelation(one)
    loss.backward()
    assert loss == 0
    assert one.grad is not None
    assert one.grad.abs().sum() == 0
    constant = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    decorrelation(constant).backward()
    assert decorrelation(constant) == 0
    assert constant.grad is not None
    assert constant.grad.isfinite().all()
    with pytest.raises(ValueError, match="1 dimensions; at least 2"):
        decorrelation(normal(4, 1))
    assert torch.autograd.gradcheck(decorrelation, (normal(5, 3).requires_grad_(),))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = decorrelation(normal(8, 4).float())
    assert torch.equal(inside, decorrelation(normal(8, 4).float()))
