"""FedU2's uniform regulariser: arcs and distances by hand, loops, and what misreadings of it would give.

Shape legend: B batch, D embedding, T tangent spaces, P directions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.objectives.base import random_rows
from rayfed_ssl.objectives.fur import log_map, sliced_wasserstein, sphere_uniformity
from tests import reference
from tests.tensors import normal, rows

close = torch.testing.assert_close


BASE, Z, S = rows((1, 0, 0)), rows((0, 1, 0), (0, 0, 1)), rows((0, 1, 0), (0, -1, 0))
DIRECTION = rows((0, 1, 0)).unsqueeze(0)  # (T=1, P=1, D)


def test_distance_by_hand() -> None:
    found = sliced_wasserstein(Z, S, BASE, DIRECTION)
    close(found, rows((math.pi**2 / 8,))[0], rtol=0, atol=1e-12)
    close(found.item(), 1.2337005501, rtol=0, atol=1e-10)
    twice = sliced_wasserstein(Z, S, BASE.repeat(2, 1), DIRECTION.repeat(2, 1, 1))
    close(twice.mean().item(), 1.2337005501, rtol=0, atol=1e-10)
    close((twice.sum() / 6).item(), 0.4112335167, rtol=0, atol=1e-10)  # the authors' sum over 6
    flat = (Z[:, 1].sort().values - S[:, 1].sort().values).square().mean().item()
    close(flat, 0.5, rtol=0, atol=1e-12)  # without the map
    assert abs(found.item() - flat) > 0.5


def test_log_map_has_the_length_of_the_arc_and_needs_unit_rows() -> None:
    y = rows((0.5, math.sqrt(0.75), 0))  # at 60 degrees
    close(log_map(BASE, y).norm().item(), math.pi / 3, rtol=0, atol=1e-12)
    close(log_map(BASE, y)[0, 0].item(), 0.0, rtol=0, atol=1e-12)  # orthogonal to the base
    naive = math.acos(0.25)
    close(naive, 1.3181160717, rtol=0, atol=1e-10)  # what arccos gives for the vector of half the length
    assert abs(naive - math.pi / 3) > 0.2
    close(log_map(BASE, BASE), torch.zeros(1, 3, dtype=torch.float64))
    for scale in (0.5, 2.0):  # the regulariser itself normalises
        draws = (generator(0, "fur") for _ in range(2))
        close(sphere_uniformity(scale * Z, 3, 4, next(draws)), sphere_uniformity(Z, 3, 4, next(draws)))


def test_distances_equal_the_loops() -> None:
    z, targets, base = (F.normalize(normal(5, 4, seed=s), dim=1) for s in range(3))
    directions = normal(5, 6, 4, seed=3)
    found = sliced_wasserstein(z, targets, base, directions)
    np.testing.assert_allclose(found.numpy(), reference.sliced_wasserstein(z, targets, base, directions), rtol=1e-10)


def test_is_zero_for_the_targets_themselves_and_small_for_uniform_rows() -> None:
    base, directions = random_rows(6, 8, generator(1)).double(), normal(6, 6, 8)
    targets = random_rows(32, 8, generator(2)).double()
    shuffled = targets[torch.randperm(32, generator=generator(3))]
    close(sliced_wasserstein(shuffled, targets, base, directions), torch.zeros(6, dtype=torch.float64))
    uniform, collapsed = random_rows(256, 8, generator(4)), F.normalize(torch.ones(256, 8) + 0.01, dim=1)
    apart = [sphere_uniformity(z, 6, 6, generator(5)).item() for z in (uniform, collapsed)]
    assert apart[0] < 0.1 < apart[1]


def test_the_gradient_reaches_z_alone_is_exact_and_finite_at_the_base() -> None:
    base, targets, directions = (
        F.normalize(normal(3, 4), dim=1),
        F.normalize(normal(4, 4, seed=1), dim=1),
        normal(3, 2, 4),
    )
    z = normal(4, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: sliced_wasserstein(F.normalize(x, dim=1), targets, base, directions), (z,)
    )
    at_base = base[:1].repeat(4, 1).requires_grad_()
    sliced_wasserstein(at_base, targets, base, directions).sum().backward()
    assert at_base.grad is not None
    assert at_base.grad.isfinite().all()


def test_draws_are_addressed_and_fresh_in_each_call() -> None:
    z = normal(6, 4).float()
    draws = generator(0, "fur")
    first, second = (sphere_uniformity(z, 6, 6, draws) for _ in range(2))
    assert first != second
    assert torch.equal(first, sphere_uniformity(z, 6, 6, generator(0, "fur")))
