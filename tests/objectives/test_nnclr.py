"""NNCLR: the loss by hand and in loops, what the neighbours come from, and where the gradient goes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.objectives import Memory
from rayfed_ssl.objectives.base import Batch
from rayfed_ssl.objectives.nnclr import NNCLR, NNCLRConfig, nearest, neighbour_contrast
from rayfed_ssl.objectives.simclr import info_nce
from tests import reference
from tests.tensors import normal, rows

close = torch.testing.assert_close


class Linear:
    """A projector and a predictor of one matrix each."""

    def __init__(self) -> None:
        self.projector, self.predictor = nn.Parameter(normal(4, 3, seed=7)), nn.Parameter(normal(3, 3, seed=8))

    def represent(self, images: Tensor) -> Tensor:
        return images

    def project_features(self, features: Tensor) -> Tensor:
        return features @ self.projector

    def predict(self, projections: Tensor) -> Tensor:
        return projections @ self.predictor


def stepped(network: Linear, views: tuple[Tensor, Tensor], queue: Tensor, **keys: Any) -> tuple[Tensor, Memory]:
    memory = Memory(1, {"queue": queue})
    step = NNCLR(NNCLRConfig(queue=len(queue), **keys)).step(network, Batch(views, memory=memory))  # type: ignore[arg-type]
    return step.loss, memory


def test_by_hand() -> None:
    """The neighbours of (1, 0) and (0, 1) are (.8, .6) and (-.6, .8); predictions (1, 0), (0, 1): cosines .8, .6 and
    -.6, .8. At temperature 0.5: log(1 + exp(-0.2 / 0.5)) and log(1 + exp(-1.4 / 0.5)).
    """
    z, queue = rows((1, 0), (0, 2)), rows((0.8, 0.6), (-0.6, 0.8), (0, -1))
    assert torch.equal(nearest(z, queue), queue[:2])
    expected = (math.log(1 + math.exp(-0.4)) + math.log(1 + math.exp(-2.8))) / 2
    close(neighbour_contrast(z, rows((3, 0), (0, 1)), queue, 0.5).item(), expected, rtol=1e-12, atol=0)


def test_a_step_equals_the_loops() -> None:
    network, views, queue = Linear(), (normal(5, 4), normal(5, 4, seed=1)), 3 * normal(9, 3, seed=2)
    z_a, z_b = (network.project_features(view).detach() for view in views)
    p_a, p_b = (network.predict(z).detach() for z in (z_a, z_b))
    loss, _ = stepped(network, views, queue, temperature=0.3)
    close(loss.item(), reference.nnclr(z_a, z_b, p_a, p_b, queue, 0.3), rtol=1e-12, atol=0)
    assert abs(loss.item() - reference.nnclr(z_b, z_a, p_a, p_b, queue, 0.3)) > 0.01  # each view's own predictions


def test_a_queue_of_the_view_itself_gives_info_nce() -> None:
    """The nearest neighbour of each row is the row, whatever the order and lengths of the queue's."""
    z, p = normal(6, 3), normal(6, 3, seed=1)
    close(neighbour_contrast(z, p, 5 * z.flip(0), 0.2), info_nce(z, p, 0.2))
    close(neighbour_contrast(z, p, z, 0.2).item(), reference.info_nce(z, p, 0.2), rtol=1e-12, atol=0)


def test_neighbours_are_constant() -> None:
    z, p, queue = (x.requires_grad_() for x in (normal(5, 3), normal(5, 3, seed=1), normal(9, 3, seed=2)))
    neighbour_contrast(z, p, queue, 0.2).backward()
    assert z.grad is None
    assert queue.grad is None
    assert p.grad is not None
    network, views = Linear(), (normal(5, 4), normal(5, 4, seed=1))
    stepped(network, views, normal(9, 3, seed=2))[0].backward()  # through predictions alone
    found = network.projector.grad
    fixed = Linear()
    z_a, z_b = (fixed.project_features(view) for view in views)
    anchors = [nearest(z, normal(9, 3, seed=2)) for z in (z_a, z_b)]
    loss = (info_nce(anchors[0], fixed.predict(z_b), 0.1) + info_nce(anchors[1], fixed.predict(z_a), 0.1)) / 2
    loss.backward()
    close(found, fixed.projector.grad)


def test_the_queue_takes_view_1_after_neighbours_were_found() -> None:
    network, views, queue = Linear(), (normal(2, 4), normal(2, 4, seed=1)), F.normalize(normal(5, 3, seed=2), dim=1)
    loss, memory = stepped(network, views, queue)
    z = F.normalize(network.project_features(views[0]), dim=1).detach()
    close(memory.tensors["queue"], torch.cat([queue[2:], z]))
    assert not memory.tensors["queue"].requires_grad
    again, _ = stepped(network, views, memory.tensors["queue"])
    assert abs(again.item() - loss.item()) > 1e-3  # the rows that came in were not there before


def test_a_fresh_queue_has_unit_rows_of_the_address() -> None:
    chosen = NNCLR(NNCLRConfig(queue=50))
    first, again = (chosen.remember(8, generator(0, 3, "memory"))["queue"] for _ in range(2))
    assert first.shape == (50, 8)
    assert torch.equal(first, again)
    close(first.norm(dim=1), torch.ones(50))


def test_neighbours_are_found_in_full_precision() -> None:
    """Cosines that are equal in bfloat16, under autocast and of rows in it."""
    z, queue = torch.tensor([[1.0, 0.02]]), F.normalize(torch.tensor([[1.0, 0.03], [1.0, 0.0201]]), dim=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(nearest(z, queue), queue[1:])
        assert neighbour_contrast(z.bfloat16(), z.bfloat16(), queue, 0.1).dtype == torch.float32
    assert torch.equal(nearest(z, queue), queue[1:])


def test_needs_a_memory() -> None:
    with pytest.raises(ValueError, match="nnclr needs a memory"):
        NNCLR(NNCLRConfig()).step(Linear(), Batch((normal(2, 4), normal(2, 4))))  # type: ignore[arg-type]
