"""MoCo: the printed loss, loops, the queue, and what lasts from round to round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.objectives import Memory
from rayfed_ssl.objectives.base import Batch, random_rows
from rayfed_ssl.objectives.moco import MoCo, MoCoConfig, enqueued, queue_contrast
from tests import reference
from tests.tensors import normal, rows

close = torch.testing.assert_close


class Linear:
    """A network of one matrix, and the keys it makes of two batches."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = torch.nn.Parameter(matrix)

    def represent(self, images: Tensor) -> Tensor:
        return images

    def project_features(self, features: Tensor) -> Tensor:
        return features @ self.matrix

    def project(self, images: Tensor) -> Tensor:
        return self.project_features(images)

    def named_parameters(self) -> Any:
        return iter([("matrix", self.matrix)])


def test_both_directions_by_hand() -> None:
    q1, k2, q2, k1 = rows((1, 0)), rows((0.6, 0.8)), rows((0, 1)), rows((0.8, 0.6))
    queue = rows((1, 0), (-1, 0))
    first, second = queue_contrast(q1, k2, queue, 0.2).item(), queue_contrast(q2, k1, queue, 0.2).item()
    close(first, 2.1269679984, rtol=0, atol=1e-10)
    close(second, 0.0949229564, rtol=0, atol=1e-10)
    memory = Memory(1, {"queue": queue})
    online = Linear(torch.eye(2, dtype=torch.float64))
    target = Linear(torch.tensor([[0.8, 0.6], [0.6, 0.8]], dtype=torch.float64))
    # view 1 is (1, 0), view 2 is (0, 1): q1 = (1, 0), q2 = (0, 1), k1 = (.8, .6), k2 = (.6, .8)
    chosen = MoCo(MoCoConfig(temperature=0.2, queue=2))
    loss, projections, _ = chosen.step(online, Batch((rows((1, 0)), rows((0, 1))), None, target, memory))  # type: ignore[arg-type]
    close(loss.item(), 2.2218909548, rtol=0, atol=1e-10)
    assert abs(loss.item() - 1.1109454774) > 1  # the mean of the directions
    assert [z.tolist() for z in projections] == [[[1, 0]], [[0, 1]]]
    close(memory.tensors["queue"], torch.cat([k1, k2]))  # the two keys pushed both old rows out
    loss.backward()
    assert target.matrix.grad is None


def test_equals_the_loops_and_has_no_negatives_in_the_batch() -> None:
    q, k, queue = normal(5, 3), 4 * normal(5, 3, seed=1), normal(9, 3, seed=2)
    close(queue_contrast(q, k, queue, 0.3).item(), reference.queue_contrast(q, k, queue, 0.3), rtol=1e-12, atol=0)
    in_batch = reference.info_nce(q, k, 0.3, queue)
    assert abs(queue_contrast(q, k, queue, 0.3).item() - in_batch) > 0.01
    leaves = [x.clone().requires_grad_() for x in (q, k, queue)]
    queue_contrast(*leaves, 0.3).backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is None
    assert leaves[2].grad is None


def test_the_queue_is_first_in_first_out() -> None:
    k1, k2, k3, k4 = (normal(1, 3, seed=s) for s in range(4))
    queue = enqueued(normal(4, 3, seed=9), torch.cat([k1, k2]))
    queue = enqueued(queue, torch.cat([k3, k4]))
    assert torch.equal(queue, torch.cat([k1, k2, k3, k4]))
    assert torch.equal(enqueued(queue, torch.cat([k1] * 6))[3:], k1)  # more keys than places: the newest stay
    assert len(enqueued(queue, normal(3, 3))) == 4


def test_a_fresh_queue_has_unit_rows_of_the_address() -> None:
    first, again = (random_rows(50, 8, generator(0, 3, "memory")) for _ in range(2))
    assert torch.equal(first, again)
    close(first.norm(dim=1), torch.ones(50))
    assert not torch.equal(first, random_rows(50, 8, generator(0, 4, "memory")))
    close((first.mean(dim=0) * 50**0.5).norm().item(), 1.0, rtol=0, atol=1.0)  # no direction is preferred


def test_the_key_encoder_follows_after_each_step() -> None:
    online, target = Linear(normal(2, 2)), Linear(normal(2, 2, seed=1))
    before = target.matrix.detach().clone()
    MoCo(MoCoConfig(decay=0.75)).after_step(online, target)  # type: ignore[arg-type]
    close(target.matrix.detach(), 0.75 * before + 0.25 * online.matrix.detach())


def test_needs_what_it_needs() -> None:
    network, chosen = Linear(torch.eye(2)), MoCo(MoCoConfig())
    for target, memory, missing in (
        (None, Memory(1, chosen.remember(2, generator(0))), "a target network"),
        (network, None, "a memory"),
    ):
        with pytest.raises(ValueError, match=f"moco needs {missing}"):
            chosen.step(network, Batch((torch.eye(2), torch.eye(2)), None, target, memory))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="moco needs a target"):
        chosen.after_step(network)  # type: ignore[arg-type]
