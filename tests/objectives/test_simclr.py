"""NT-Xent and InfoNCE against printed numbers and loops."""

from __future__ import annotations

import math

import pytest
import torch

from rayfed_ssl.objectives.simclr import info_nce, nt_xent
from tests import reference
from tests.tensors import normal

close = torch.testing.assert_close
Z1 = torch.tensor([[1, 0], [0.6, 0.8]], dtype=torch.float64)
Z2 = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)


def test_the_three_losses_called_simclr() -> None:
    close(info_nce(Z1, Z2, 0.5).item(), 0.8237454261, rtol=0, atol=1e-10)
    close(info_nce(Z2, Z1, 0.5).item(), 0.5123214537, rtol=0, atol=1e-10)
    both = (info_nce(Z1, Z2, 0.5) + info_nce(Z2, Z1, 0.5)) / 2
    close(both.item(), 0.6680334399, rtol=0, atol=1e-10)
    close(nt_xent(Z1, Z2, 0.5).item(), 0.991945931208, rtol=0, atol=1e-12)  # evaluated with 30 decimal digits


def test_dictionary_oracle() -> None:
    bank = torch.tensor([[0.0, -1]], dtype=torch.float64)
    close(info_nce(Z1, Z2, 0.5, bank).item(), 0.9224982223, rtol=0, atol=1e-10)
    close(info_nce(Z1, Z2, 0.5, bank[:0]).item(), 0.8237454261, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("entries", "expected"), [(0, 4.539890e-5), (1, 9.079574e-5), (1024, 0.0454846384)])
def test_orthogonal_dictionary(entries: int, expected: float) -> None:
    batch = torch.eye(3, dtype=torch.float64)[:2]
    bank = torch.tensor([[0.0, 0, 1]], dtype=torch.float64).repeat(entries, 1)
    loss = info_nce(batch, batch, 0.1, bank).item()
    close(loss, math.log(1 + (1 + entries) * math.exp(-10)), rtol=1e-12, atol=0)
    close(loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_losses_equal_the_loops(temperature: float) -> None:
    z_a, z_b, bank = normal(7, 5), 3 * normal(7, 5, seed=1), normal(11, 5, seed=2)
    close(nt_xent(z_a, z_b, temperature).item(), reference.nt_xent(z_a, z_b, temperature), rtol=1e-12, atol=0)
    close(info_nce(z_a, z_b, temperature).item(), reference.info_nce(z_a, z_b, temperature), rtol=1e-12, atol=0)
    with_bank = info_nce(z_a, z_b, temperature, bank).item()
    close(with_bank, reference.info_nce(z_a, z_b, temperature, bank), rtol=1e-12, atol=0)


def test_nt_xent_is_symmetric_in_the_views_and_in_the_images() -> None:
    z_a, z_b, order = normal(6, 4), normal(6, 4, seed=1), torch.tensor([3, 1, 0, 5, 4, 2])
    close(nt_xent(z_b, z_a, 0.2), nt_xent(z_a, z_b, 0.2), rtol=1e-12, atol=0)
    close(nt_xent(z_a[order], z_b[order], 0.2), nt_xent(z_a, z_b, 0.2), rtol=1e-12, atol=0)


def test_gradients_equal_finite_differences_and_the_bank_gets_none() -> None:
    z_a, z_b = normal(4, 3).requires_grad_(), normal(4, 3, seed=1).requires_grad_()
    bank = normal(5, 3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: nt_xent(a, b, 0.3), (z_a, z_b))
    assert torch.autograd.gradcheck(lambda a, b: info_nce(a, b, 0.3, bank), (z_a, z_b))
    info_nce(z_a, z_b, 0.3, bank).backward()
    assert bank.grad is None


def test_float32_is_stable_and_autocast_keeps_float32_logits() -> None:
    z_a, z_b = normal(16, 8).float(), normal(16, 8, seed=1).float()
    exact = reference.nt_xent(z_a.double(), z_b.double(), 0.01)
    close(nt_xent(z_a, z_b, 0.01).item(), exact, rtol=1e-5, atol=0)
    close(nt_xent(1e15 * z_a, 1e-10 * z_b, 0.01).item(), exact, rtol=1e-5, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, directed = nt_xent(z_a, z_b, 0.01), info_nce(z_a, z_b, 0.01, z_a)
        assert nt_xent(z_a.bfloat16(), z_b.bfloat16(), 0.5).dtype == torch.float32
    assert torch.equal(loss, nt_xent(z_a, z_b, 0.01))
    assert torch.equal(directed, info_nce(z_a, z_b, 0.01, z_a))
