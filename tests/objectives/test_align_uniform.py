"""Alignment and uniformity against printed numbers, loops, and the variant with self-pairs."""

from __future__ import annotations

import math

import torch

from rayfed_ssl.evaluation import rank
from rayfed_ssl.objectives.align_uniform import align_uniform, alignment, uniformity
from tests import reference
from tests.tensors import normal

close = torch.testing.assert_close
Z1 = torch.tensor([[1, 0], [0, 1]], dtype=torch.float64)
Z2 = torch.tensor([[0.8, 0.6], [0, 1]], dtype=torch.float64)


def test_by_hand() -> None:
    close(alignment(Z1, Z2).item(), 0.2, rtol=0, atol=1e-12)
    close(uniformity(Z1, 2.0).item(), -4.0, rtol=0, atol=1e-12)
    close(uniformity(Z2, 2.0).item(), -1.6, rtol=0, atol=1e-12)
    close(align_uniform(Z1, Z2, 1.0, 2.0).item(), -2.6, rtol=0, atol=1e-12)
    close(align_uniform(3 * Z1, Z2 / 7, 1.0, 2.0).item(), -2.6, rtol=0, atol=1e-12)  # rows are normalised


def test_self_pairs_would_give_another_number() -> None:
    with_self = torch.cdist(Z1, Z1).square().mul(-2).exp().mean().log().item()
    close(with_self, -0.6749972526, rtol=0, atol=1e-10)
    assert abs(uniformity(Z1, 2.0).item() - with_self) > 1


def test_equals_the_loops() -> None:
    z_a, z_b = normal(7, 4), 3 * normal(7, 4, seed=1)
    close(align_uniform(z_a, z_b, 0.7, 3.0).item(), reference.align_uniform(z_a, z_b, 0.7, 3.0), rtol=1e-12, atol=0)


def test_what_is_recorded_of_features_is_the_same_measure() -> None:
    """To the last bit, also of features in float32: the loss and the protocol ``rank`` have one function each."""
    for z_a, z_b in ((normal(50, 8), normal(50, 8, seed=1)), (normal(50, 8).float(), normal(50, 8, seed=1).float())):
        assert rank.alignment(z_a, z_b) == alignment(z_a.double(), z_b.double()).item()
        assert rank.uniformity(z_a) == uniformity(z_a.double(), 2.0).item()


def test_gradients_are_finite_where_rows_coincide() -> None:
    z = normal(4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: align_uniform(a, a.flip(0), 1.0, 2.0), (z,))
    same = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    loss = uniformity(same, 2.0)
    close(loss.item(), math.log(1.0), rtol=0, atol=1e-12)
    loss.backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()
