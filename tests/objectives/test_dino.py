"""DINO: the loss by hand and in loops, the center, the last layer, and the teacher with prototypes of its own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.models import ModelConfig
from rayfed_ssl.objectives import Memory
from rayfed_ssl.objectives.base import Batch
from rayfed_ssl.objectives.dino import DINO, DINOConfig, moved_center, prototype_scores, teacher_probabilities
from rayfed_ssl.objectives.swav import swapped_prediction
from tests import reference
from tests.tensors import normal

close = torch.testing.assert_close


class Rows(nn.Module):
    """A network whose projections are its images times a matrix, with K = 3 prototypes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.matrix = nn.Parameter(normal(4, 2, seed=10 + seed))
        self.prototype_rows = nn.Parameter(normal(3, 2, seed=20 + seed))

    def represent(self, images: Tensor) -> Tensor:
        return images

    def project_features(self, features: Tensor) -> Tensor:
        return features @ self.matrix

    def project(self, images: Tensor) -> Tensor:
        return self.project_features(images)

    def scores(self, images: Tensor) -> Tensor:
        z, rows = self.project(images).detach(), self.prototype_rows.detach()
        return torch.tensor([[reference.cosine(a, b) for b in rows.numpy()] for a in z.numpy()], dtype=torch.float64)


VIEWS = normal(6, 4, seed=2), normal(6, 4, seed=3)


def memory_of(center: Tensor, round: int = 2) -> Memory:
    return Memory(round, {"center": center})


def step(chosen: DINO, network: Any, target: Any, memory: Memory) -> Tensor:
    return chosen.step(network, Batch(VIEWS, target=target, memory=memory)).loss


def test_loss_by_hand() -> None:
    """Scores (.3, .1) less the center (.3, .3) at T = 0.1 are (0, -2): targets 1 / (1 + e^-2) and the rest. Scores
    (.5, 0) at T = 0.5 are (1, 0). The other direction has equal targets and scores (0, 0): log 2.
    """
    t, center = torch.tensor([[0.3, 0.1]]), torch.tensor([0.3, 0.3])
    first = 1 / (1 + math.exp(-2))
    targets = teacher_probabilities(t, center, 0.1)
    close(targets, torch.tensor([[first, 1 - first]]))
    other = torch.tensor([[0.5, 0.5]])
    there = -(first * 1 - math.log(math.e + 1))
    loss = swapped_prediction((torch.zeros(1, 2), torch.tensor([[0.5, 0.0]])), (targets, other), 0.5)
    close(loss.item(), (there + math.log(2)) / 2)


def test_a_step_equals_the_loops() -> None:
    """The teacher's scores come from its own prototypes; targets from the center before this batch."""
    network, target, center = Rows(), Rows(1), normal(3, seed=5) / 10
    memory = memory_of(center)
    loss = step(DINO(DINOConfig(temperature=0.2, teacher_temperature=0.07)), network, target, memory)
    students = network.scores(VIEWS[0]), network.scores(VIEWS[1])
    teachers = target.scores(VIEWS[0]), target.scores(VIEWS[1])
    close(loss.item(), reference.dino(students, teachers, center, 0.2, 0.07), rtol=1e-12, atol=0)
    for wrong in (
        reference.dino(students, teachers[::-1], center, 0.2, 0.07),  # each view's own targets
        reference.dino(students, students, center, 0.2, 0.07),
        reference.dino(students, teachers, torch.zeros(3), 0.2, 0.07),
        reference.dino(students, teachers, memory.tensors["center"], 0.2, 0.07),
    ):
        assert abs(loss.item() - wrong) > 1e-3
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in target.parameters())
    assert all(p.grad is not None for p in network.parameters())


def test_the_center_is_the_moving_mean_of_the_teachers_scores_of_both_views() -> None:
    scores = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
    close(moved_center(torch.tensor([0.2, -0.2]), scores, 0.9), torch.tensor([0.18 + 0.05, -0.18 + 0.025]))
    network, target, center = Rows(), Rows(1), normal(3, seed=5)
    memory = memory_of(center)
    step(DINO(DINOConfig(center_decay=0.75)), network, target, memory)
    seen = torch.cat([target.scores(view) for view in VIEWS])
    close(memory.tensors["center"], 0.75 * center + 0.25 * seen.sum(dim=0) / 12)
    assert not memory.tensors["center"].requires_grad


def test_centring_takes_from_a_prototype_what_it_has_of_every_image() -> None:
    """One that all images like alike is not told from others once the center is there; a shift of all is nothing."""
    plain = normal(5, 4) / 10
    biased = plain + torch.tensor([1.0, 0, 0, 0])
    center = moved_center(torch.zeros(4, dtype=torch.float64), biased, 0)
    even = moved_center(torch.zeros(4, dtype=torch.float64), plain, 0)
    close(teacher_probabilities(biased, center, 0.04), teacher_probabilities(plain, even, 0.04))
    assert teacher_probabilities(biased, torch.zeros(4), 0.04)[:, 0].min() > 0.99
    close(teacher_probabilities(plain, even + 3, 0.04), teacher_probabilities(plain, even, 0.04))


def test_scores_are_those_of_a_weight_normalised_layer_of_scale_1() -> None:
    """Values and gradients, of DINO's last layer: weight_norm with its scale kept at 1, on unit vectors."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 7, bias=False).double())
    with torch.no_grad():
        layer.parametrizations.weight.original0.fill_(1)  # type: ignore[union-attr, operator]
        layer.parametrizations.weight.original1.copy_(3 * normal(7, 4))  # type: ignore[union-attr, operator]
    ours, theirs = (normal(5, 4, seed=1).requires_grad_() for _ in range(2))
    rows = (3 * normal(7, 4)).requires_grad_()
    found, expected = prototype_scores(ours, rows), layer(F.normalize(theirs, dim=1))
    close(found, expected)
    found.pow(3).sum().backward()
    expected.pow(3).sum().backward()
    close(ours.grad, theirs.grad)
    close(rows.grad, layer.parametrizations.weight.original1.grad)  # type: ignore[union-attr]


@pytest.mark.parametrize(("freeze", "round", "frozen"), [(1, 1, True), (1, 2, False), (0, 1, False), (3, 3, True)])
def test_prototypes_rest_in_the_first_rounds(freeze: int, round: int, frozen: bool) -> None:
    network = Rows()
    loss = step(DINO(DINOConfig(freeze_rounds=freeze)), network, Rows(1), memory_of(torch.zeros(3), round))
    loss.backward()  # type: ignore[no-untyped-call]
    assert (network.prototype_rows.grad is None) == frozen
    assert network.matrix.grad is not None


def test_the_teacher_follows_after_each_step_prototypes_included() -> None:
    network, target = Rows(), Rows(1)
    before = {name: value.detach().clone() for name, value in target.named_parameters()}
    DINO(DINOConfig(decay=0.75)).after_step(network, target)  # type: ignore[arg-type]
    assert before.keys() == {"matrix", "prototype_rows"}
    for name, value in target.named_parameters():
        close(value.detach(), 0.75 * before[name] + 0.25 * network.get_parameter(name).detach())


def test_a_fresh_center_is_zero_for_each_prototype() -> None:
    chosen = DINO(DINOConfig())
    dim = chosen.memory_dim(ModelConfig(prototypes=9))
    center = chosen.remember(dim, generator(0))["center"]
    assert torch.equal(center, torch.zeros(9))


def test_needs_what_it_needs() -> None:
    chosen = DINO(DINOConfig())
    for target, memory, missing in ((None, memory_of(torch.zeros(3)), "a target network"), (Rows(1), None, "a memory")):
        with pytest.raises(ValueError, match=f"dino needs {missing}"):
            chosen.step(Rows(), Batch(VIEWS, target=target, memory=memory))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dino needs a target"):
        chosen.after_step(Rows())  # type: ignore[arg-type]
