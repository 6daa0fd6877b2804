"""Spectral contrast: the printed two-client example, the loops, FedSC's gradient identity and variants without it.

Shape legend: V views, B batch, D embedding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from rayfed_ssl.objectives.spectral import (
    clip_norm,
    correlation,
    positive_trace,
    spectral_loss,
)
from tests import reference
from tests.tensors import normal

close = torch.testing.assert_close
F64 = torch.float64

# A linear encoder z = W x; the views of x are x + e and x - e, drawn independently; two clients.
W = torch.tensor([[1, 0.5], [0, 1]], dtype=F64)
E = torch.tensor([0.5, 0], dtype=F64)
CLIENTS = (torch.tensor([[1.0, 0], [1, 1]], dtype=F64), torch.tensor([[0.0, 1]], dtype=F64))
SHARES = (2 / 3, 1 / 3)


def all_pairs(x: Tensor) -> Tensor:
    """Every equally likely pair of views of every image, as one batch: (n, 2) -> (V=2, B=4n, 2)."""
    pairs = [(x + a * E, x + b * E) for a, b in itertools.product((1, -1), repeat=2)]
    return torch.stack([torch.cat([first for first, _ in pairs]), torch.cat([second for _, second in pairs])])


def encode(w: Tensor, x: Tensor) -> Tensor:
    return all_pairs(x) @ w.T


def gradient(loss: Callable[[Tensor], Tensor]) -> Tensor:
    w = W.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(w), w)
    return grad


def global_loss(w: Tensor) -> Tensor:
    return spectral_loss(encode(w, torch.cat(CLIENTS)))


def local_losses(w: Tensor, alphas: Sequence[float], rest_scale: float = 1.0) -> Tensor:
    """sum_j q_j L_j with the other client's correlation held constant."""
    rests = [rest_scale * correlation(encode(W, x)) for x in reversed(CLIENTS)]
    losses = [spectral_loss(encode(w, x), rest, alpha) for x, rest, alpha in zip(CLIENTS, rests, alphas, strict=True)]
    return sum((q * loss for q, loss in zip(SHARES, losses, strict=True)), torch.zeros((), dtype=F64))


def test_correlations_and_global_loss() -> None:
    r1, r2 = (correlation(encode(W, x)) for x in CLIENTS)
    close(r1, torch.tensor([[1.875, 0.75], [0.75, 0.5]], dtype=F64), rtol=0, atol=1e-12)
    close(r2, torch.tensor([[0.5, 0.5], [0.5, 1]], dtype=F64), rtol=0, atol=1e-12)
    r = torch.tensor([[17 / 12, 2 / 3], [2 / 3, 2 / 3]], dtype=F64)
    close(SHARES[0] * r1 + SHARES[1] * r2, r, rtol=0, atol=1e-12)
    close(global_loss(W).item(), -0.326388888889, rtol=0, atol=1e-12)
    close(global_loss(W).item(), reference.spectral(encode(W, torch.cat(CLIENTS))), rtol=1e-12, atol=0)


def test_local_gradients_add_up_to_the_global_one() -> None:
    expected = torch.tensor([[3.694444, 2.888889], [2.444444, 0.888889]], dtype=F64)
    close(gradient(global_loss), expected, rtol=0, atol=1e-6)
    close(gradient(lambda w: local_losses(w, SHARES)), gradient(global_loss), rtol=0, atol=1e-12)
    close(local_losses(W, SHARES).item(), 0.645833333, rtol=0, atol=1e-9)
    r1, r2 = (correlation(encode(W, x)) for x in CLIENTS)
    gap = sum(q * (1 - q) for q in SHARES) * (r1 @ r2).trace()
    close((local_losses(W, SHARES) - global_loss(W)).item(), gap.item(), rtol=0, atol=1e-12)
    close(gap.item(), 0.972222222, rtol=0, atol=1e-9)


def test_misaligned_variants_differ() -> None:  # these must NOT equal the global gradient
    plain = gradient(lambda w: sum(q * spectral_loss(encode(w, x)) for q, x in zip(SHARES, CLIENTS, strict=True)))
    floor = gradient(lambda w: local_losses(w, (0.2, 0.2)))
    halved = gradient(lambda w: local_losses(w, SHARES, rest_scale=0.5))
    close(plain, torch.tensor([[5.333333, 3.083333], [2.5, 1.166667]], dtype=F64), rtol=0, atol=1e-6)
    close(floor, torch.tensor([[1.033333, 1.616667], [2.3, 0.9]], dtype=F64), rtol=0, atol=1e-6)
    close((halved - gradient(global_loss)).abs().max().item(), 1.027778, rtol=0, atol=1e-6)
    assert (plain - gradient(global_loss)).abs().max() > 0.1
    assert (floor - gradient(global_loss)).abs().max() > 0.1


def test_gradient_identity_for_many_clients_and_views() -> None:
    """sum_j q_j grad L_j = grad L for random, unequal clients of V = 3 views, through a nonlinear encoder."""
    sizes = (5, 2, 8, 1)
    shards = [normal(3, n, 4, seed=n) for n in sizes]
    shares = [n / sum(sizes) for n in sizes]
    w = normal(4, 3, seed=99).requires_grad_()
    z = [clip_norm(torch.tanh(x @ w), 1.5) for x in shards]
    total = sum((q * correlation(v.detach()) for q, v in zip(shares, z, strict=True)), torch.zeros(3, 3, dtype=F64))
    rests = [(total - q * correlation(v.detach())) / (1 - q) for q, v in zip(shares, z, strict=True)]
    local = sum(q * spectral_loss(v, rest, q) for q, v, rest in zip(shares, z, rests, strict=True))
    (summed,) = torch.autograd.grad(local, w, retain_graph=True)
    (exact,) = torch.autograd.grad(spectral_loss(torch.cat(z, dim=1)), w)
    close(summed, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("replace", [True, False])
def test_bias_of_the_batch_estimate(replace: bool) -> None:
    def squared(batch: Sequence[tuple[Tensor, Tensor]]) -> float:
        return (
            correlation(torch.stack([torch.stack(views) for views in zip(*batch, strict=True)])).square().sum().item()
        )

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    signs = itertools.product((1, -1), repeat=2) if replace else [(1, -1)]
    samples = [(W @ (x + a * E), W @ (x + b * E)) for a, b in signs for x in CLIENTS[0]]
    close(correlation(encode(W, CLIENTS[0])).square().sum().item(), 4.890625, rtol=0, atol=1e-12)
    close(mean([squared([s]) for s in samples]), 7.59375 if replace else 6.65625, rtol=0, atol=1e-12)
    pairs = [squared(batch) for batch in itertools.product(samples, repeat=2)]
    close(mean(pairs), 6.2421875 if replace else 5.7734375, rtol=0, atol=1e-12)


def test_two_views_need_only_the_inner_product() -> None:
    x = CLIENTS[0]
    close(positive_trace(torch.stack([x + E, x - E]) @ W.T).item(), 1.875, rtol=0, atol=1e-12)
    z = normal(2, 6, 3)
    close(positive_trace(z), (z[0] * z[1]).sum(dim=1).mean(), rtol=1e-12, atol=0)
    close(positive_trace(encode(W, x)).item(), (x @ W.T).square().sum(dim=1).mean().item(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("views", [2, 3, 4])
def test_loss_equals_the_loops(views: int) -> None:
    z, others = normal(views, 5, 3), normal(7, 3, seed=1)
    close(spectral_loss(z).item(), reference.spectral(z), rtol=1e-12, atol=0)
    close(spectral_loss(list(z)).item(), reference.spectral(z), rtol=1e-12, atol=0)
    against = spectral_loss(z, correlation(others[None]), 0.3).item()
    close(against, reference.spectral_against(z, others, 0.3), rtol=1e-12, atol=0)


def test_clip_and_the_sensitivity_it_buys() -> None:
    z = torch.tensor([[3.0, 4], [0.3, 0.4], [0, 0]], dtype=F64)
    clipped = clip_norm(z, 4.0)
    close(clipped, torch.tensor([[1.2, 1.6], [0.3, 0.4], [0, 0]], dtype=F64), rtol=0, atol=1e-12)
    one, other = (correlation(torch.tensor([[z]], dtype=F64)) for z in ([2.0, 0], [0, 2.0]))
    close((one - other).norm().item(), 5.656854, rtol=0, atol=1e-6)
    close((one - other).norm().item(), math.sqrt(2) * 4, rtol=1e-12, atol=0)
    z.requires_grad_()
    clip_norm(z, 4.0).sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()  # also at zero


def test_autocast_keeps_float32_correlations() -> None:
    z = normal(2, 8, 4).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = spectral_loss(z, correlation(z), 0.5)
        assert correlation(z.bfloat16()).dtype == torch.float32
    assert torch.equal(loss, spectral_loss(z, correlation(z), 0.5))
