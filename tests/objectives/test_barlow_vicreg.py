"""Barlow Twins and VICReg against printed numbers, loops, and variants that look alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rayfed_ssl.objectives.barlow import barlow_twins, cross_correlation
from rayfed_ssl.objectives.vicreg import covariance, invariance, variance, vicreg
from tests import reference
from tests.tensors import normal

close = torch.testing.assert_close
X = torch.tensor([[1, 2], [2, 1], [3, 5], [4, 4]], dtype=torch.float64)  # rho^2 = 1/2


def test_barlow_twins_by_hand() -> None:
    close(barlow_twins(X, X, 0.005).item(), 0.0049999401, rtol=0, atol=1e-10)
    close(barlow_twins(X, X, 0.005, eps=0).item(), 0.005, rtol=0, atol=1e-12)  # lambda (rho^2 + rho^2)
    close(barlow_twins(-X, X, 0.005, eps=0).item(), 8.005, rtol=0, atol=1e-12)  # the diagonal is -1
    close(barlow_twins(X, X, 0.005, scale=0.1), 0.1 * barlow_twins(X, X, 0.005))


def test_barlow_twins_with_the_unbiased_deviation_is_another_loss() -> None:
    standardised = (X - X.mean(0)) / X.std(0)
    c = standardised.T @ standardised / len(X)
    wrong = (c.diagonal() - 1).square().sum() + 0.005 * (c.square().sum() - c.diagonal().square().sum())
    close(wrong.item(), 0.1278125, rtol=0, atol=1e-10)
    assert abs(barlow_twins(X, X, 0.005).item() - wrong.item()) > 0.1


def test_barlow_twins_equals_the_loops_and_ignores_shift_and_scale_of_columns() -> None:
    z_a, z_b = normal(7, 4), normal(7, 4, seed=1)
    close(barlow_twins(z_a, z_b, 0.3).item(), reference.barlow_twins(z_a, z_b, 0.3, 1e-5), rtol=1e-12, atol=0)
    moved = z_a * torch.tensor([2.0, 5, 0.1, 7]) + torch.arange(4)
    close(barlow_twins(moved, z_b, 0.3, eps=0), barlow_twins(z_a, z_b, 0.3, eps=0), rtol=1e-10, atol=0)
    close(cross_correlation(z_a, z_b), cross_correlation(z_b, z_a).T)


def test_vicreg_by_hand() -> None:
    z_a = 0.25 * X
    z_b = z_a + torch.tensor([0.1, 0], dtype=torch.float64)
    close(invariance(z_a, z_b).item(), 0.005, rtol=0, atol=1e-12)
    close(((variance(z_a) + variance(z_b)) / 2).item(), 0.6102757548, rtol=0, atol=1e-10)
    close((covariance(z_a) + covariance(z_b)).item(), 0.0217013889, rtol=0, atol=1e-10)
    close(vicreg(z_a, z_b, (25, 25, 1)).item(), 15.4035952600, rtol=0, atol=1e-9)
    summed = 25 * invariance(z_a, z_b) + 25 * (variance(z_a) + variance(z_b)) + covariance(z_a) + covariance(z_b)
    close(summed.item(), 30.6604891311, rtol=0, atol=1e-9)  # another reading of the paper


def test_vicreg_equals_the_loops() -> None:
    z_a, z_b = normal(6, 5) / 2, normal(6, 5, seed=1)
    terms = reference.vicreg_terms(z_a, z_b)
    for weights in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (25, 20, 3)):
        expected = sum(w * term for w, term in zip(weights, terms, strict=True))
        close(vicreg(z_a, z_b, weights).item(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", ["barlow", "vicreg"])
def test_gradients_and_float32_under_autocast(loss: str) -> None:
    def of(a: Tensor, b: Tensor) -> Tensor:
        return barlow_twins(a, b, 0.3) if loss == "barlow" else vicreg(a, b, (2, 2, 1))

    z_a, z_b = normal(5, 3).requires_grad_(), normal(5, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(of, (z_a, z_b))
    a, b = normal(8, 4).float(), normal(8, 4, seed=1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = of(a, b)
        assert of(a.bfloat16(), b.bfloat16()).dtype == torch.float32
    assert torch.equal(inside, of(a, b))
