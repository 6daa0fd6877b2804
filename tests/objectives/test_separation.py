"""SSD: scaled subspaces and the distillation from projections to features, by hand and against misreadings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.objectives.separation import orthonormal, projector_distillation, scaling, separation, subspaces
from tests.tensors import rows

close = torch.testing.assert_close


Z = rows((0.6, 0.8), (0.8, 0.6))


def test_separation_by_hand() -> None:
    a = scaling(torch.eye(2, dtype=torch.float64), torch.tensor([0]), 10.0)
    close(a, torch.diag(torch.tensor([10.0, 1], dtype=torch.float64)))
    p = F.normalize(Z @ a, dim=1)
    close(p, rows((0.9912279, 0.1321637), (0.9971993, 0.0747899)), rtol=0, atol=1e-7)
    close(separation(Z, a).item(), 0.4779638410, rtol=0, atol=1e-10)
    squared = scaling(torch.eye(2, dtype=torch.float64), torch.tensor([0]), 100.0)
    close(separation(Z, squared).item(), 0.5407911950, rtol=0, atol=1e-10)
    close((Z - p).norm(dim=1).mean().item(), 0.6675017288, rtol=0, atol=1e-10)
    close((Z - p).square().sum(dim=1).mean().item(), 0.4568988667, rtol=0, atol=1e-10)


def test_the_scaled_direction_is_constant_and_nothing_happens_at_scale_one() -> None:
    q = orthonormal(4, generator(0, "Q"))
    close(q @ q.T, torch.eye(4, dtype=torch.float64))
    z = torch.randn(5, 4, generator=generator(1), dtype=torch.float64).requires_grad_()
    close(separation(z, scaling(q, torch.tensor([1, 3]), 1.0)).item(), 0.0, rtol=0, atol=1e-12)
    a = scaling(q, torch.tensor([1, 3]), 10.0)
    close(a, a.T)
    close(q.T @ a @ q, torch.diag(torch.tensor([1.0, 10, 1, 10], dtype=torch.float64)))
    (gradient,) = torch.autograd.grad(separation(z, a), z)
    target = F.normalize(F.normalize(z.detach(), dim=1) @ a, dim=1)
    by_hand = torch.linalg.vector_norm(F.normalize(z, dim=1) - target) / 5
    close(gradient, torch.autograd.grad(by_hand, z)[0])


def test_slices_are_disjoint_and_a_clients_own() -> None:
    slices = subspaces(512, 10, generator(0, "subspaces"))
    assert slices.shape == (10, 51)
    assert len(set(slices.flatten().tolist())) == 510
    again = subspaces(512, 10, generator(0, "subspaces"))
    sampled = [7, 3]  # by id, whatever their place in the list of this round
    assert torch.equal(slices[sampled[0]], again[7])
    assert not torch.equal(slices[sampled[0]], slices[0])
    assert subspaces(512, 50, generator(0)).shape == (50, 10)
    with pytest.raises(ValueError, match="5 clients for 4 dimensions"):
        subspaces(4, 5, generator(0))


def test_distillation_by_hand() -> None:
    f, h = rows((1, 0)).requires_grad_(), rows((0.2, 0.1)).requires_grad_()
    loss = projector_distillation(f, h, 0.5)
    close(loss.item(), 0.3390879465, rtol=0, atol=1e-10)
    loss.backward()
    assert f.grad is not None
    assert h.grad is not None
    close(f.grad, rows((0.6619261613, -0.6619261613)), rtol=0, atol=1e-10)
    close(h.grad, rows((-0.8910596618, 0.8910596618)), rtol=0, atol=1e-10)  # no stop-gradient
    close(projector_distillation(h, f, 0.5).item(), 0.2566455987, rtol=0, atol=1e-10)  # the other direction


def test_distillation_is_a_mean_over_rows_and_zero_where_rows_differ_by_a_constant() -> None:
    f = torch.randn(4, 3, generator=generator(0), dtype=torch.float64)
    h = torch.randn(4, 3, generator=generator(1), dtype=torch.float64)
    expected = F.kl_div((f / 0.5).log_softmax(1), (h / 0.5).softmax(1), reduction="batchmean")
    close(projector_distillation(f, h, 0.5), expected)
    close(projector_distillation(f, f + torch.arange(4).unsqueeze(1), 0.5).item(), 0.0, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"features \(4, 3\) and projections \(4, 2\)"):
        projector_distillation(f, h[:, :2], 0.5)
