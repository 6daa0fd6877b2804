"""Orchestra's clusterings: printed assignments, loops, balance, and descent."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.methods.parts.centroids import centroid_loss, fit_centroids, local_centroids, sinkhorn
from tests import reference
from tests.tensors import rows

close = torch.testing.assert_close


def units(count: int, dim: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(count, dim, generator=generator(seed, "centroids"), dtype=torch.float64), dim=1)


S = rows((0.10, 0.05), (0.10, 0.0))


def test_assignments_by_hand() -> None:
    expected = rows((0.34864514, 0.65135486), (0.65135486, 0.34864514))
    close(sinkhorn(S, 200), expected, rtol=0, atol=1e-7)
    odds = sinkhorn(S, 200)[0, 0] / sinkhorn(S, 200)[0, 1]
    close(odds.log().item(), -0.625, rtol=0, atol=1e-6)
    close((25 * S).softmax(dim=1), rows((0.7772999, 0.2227001), (0.9241418, 0.0758582)), rtol=0, atol=1e-7)
    close(sinkhorn(S, 1), rows((0.3798309, 0.6201691), (0.6812960, 0.3187040)), rtol=0, atol=1e-7)


def test_assignments_equal_the_loops_and_end_early_where_they_may() -> None:
    scores = units(6, 4) @ units(3, 4, seed=1).T
    for iterations in (1, 2, 10):
        expected = torch.from_numpy(reference.balanced_assignment(scores, 25, iterations))
        close(sinkhorn(scores, iterations), expected, rtol=1e-10, atol=0)
    nearly = torch.full((4, 2), 0.5, dtype=torch.float64)
    nearly[0, 0] += 1e-5
    close(sinkhorn(nearly, 50), torch.from_numpy(reference.balanced_assignment(nearly, 25, 1)), rtol=0, atol=1e-15)


def test_assignments_are_balanced_and_ignore_constants() -> None:
    scores = units(12, 4) @ units(4, 4, seed=1).T / 5
    found = sinkhorn(scores, 2000)
    close(found.sum(dim=1), torch.ones(12, dtype=torch.float64))
    close(found.sum(dim=0), torch.full((4,), 3.0, dtype=torch.float64), rtol=0.01, atol=0)
    shifted = scores + torch.arange(12).unsqueeze(1) / 10
    close(sinkhorn(shifted, 2000), found, rtol=1e-6, atol=1e-8)
    exact = [reference.balanced_assignment(s, 25, 500) for s in (scores, scores + torch.arange(4) / 50)]
    assert abs(exact[0] - exact[1]).max() < 1e-9


def test_local_centroids_find_balanced_clusters() -> None:
    centres = torch.eye(4, dtype=torch.float64)
    memory = F.normalize(centres.repeat_interleave(8, dim=0) + 0.05 * units(32, 4), dim=1)
    best = 0.0
    for seed in range(5):  # a start may hold two rows of one cluster
        found = local_centroids(memory, 4, generator(seed))
        assert found.shape == (4, 4)
        close(found.norm(dim=1), torch.ones(4, dtype=torch.float64))
        best = max(best, (found @ centres.T).max(dim=0).values.min().item())
    assert best > 0.99
    assert torch.equal(local_centroids(memory, 4, generator(3)), local_centroids(memory, 4, generator(3)))
    assert local_centroids(memory[:3], 16, generator(0)).shape == (3, 4)  # fewer rows than centroids


def test_one_repeat_equals_a_loop_over_balanced_assignments() -> None:
    memory = F.normalize(torch.cat([units(20, 3) + rows((3, 0, 0)), units(4, 3, seed=1) - rows((3, 0, 0))]), dim=1)
    found = local_centroids(memory, 4, generator(2), repeats=1)
    start = memory[torch.randperm(len(memory), generator=generator(2))[:4]]
    assigned = reference.balanced_assignment(memory @ start.T, 25, 10).argmax(axis=1)
    nearest = (memory @ start.T).argmax(dim=1).numpy()
    assert (assigned != nearest).any()  # most rows lie together: balance sends some of them elsewhere
    for k in range(4):
        total = sum(memory[i] for i in range(len(memory)) if assigned[i] == k)
        close(found[k], total / total.norm())


def test_empty_clusters_become_rows() -> None:
    memory = units(2, 3).repeat_interleave(6, dim=0)  # two points, so most of 6 centroids stay empty
    found = local_centroids(memory, 6, generator(0))
    assert (found @ memory.T).max(dim=1).values.min() > 1 - 1e-9


def test_server_loss_by_hand() -> None:
    x, c = rows((1, 0), (0.6, 0.8)), torch.eye(2, dtype=torch.float64)
    close(centroid_loss(x, c, 0.1).item(), -0.9957961338, rtol=0, atol=1e-9)


def test_global_centroids_descend_and_stay_on_the_sphere() -> None:
    x, start = units(24, 5), 3 * units(4, 5, seed=1)
    found = fit_centroids(start, x, 0.1, steps=60)
    close(found.norm(dim=1), torch.ones(4, dtype=torch.float64))
    before, after = (centroid_loss(x, c, 0.1).item() for c in (F.normalize(start, dim=1), found))
    assert after < before
    close(fit_centroids(start, x, 0.1, steps=0), F.normalize(start, dim=1))
    assert torch.equal(found, fit_centroids(start, x, 0.1, steps=60))
    assert not found.requires_grad


@pytest.mark.parametrize("steps", [1, 3])
def test_global_centroids_equal_a_loop_of_momentum_steps(steps: int) -> None:
    x, c = units(10, 3), units(3, 3, seed=1)
    found = fit_centroids(c, x, 0.1, steps=steps)
    velocity = torch.zeros_like(c)
    for step in range(steps):
        leaf = c.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(centroid_loss(x, leaf, 0.1), leaf)
        gradient = gradient + 1e-4 * c
        velocity = gradient if step == 0 else 0.9 * velocity + gradient
        c = F.normalize(c - 0.01 * velocity, dim=1)
    close(found, c)
