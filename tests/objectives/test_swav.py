"""SwAV: the printed codes and loss, loops, and what happens to prototypes and queues over steps and rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfed_ssl.base.seeding import forked, generator
from rayfed_ssl.models import HeadConfig, ModelConfig, build_network
from rayfed_ssl.objectives.base import Batch, Memory
from rayfed_ssl.objectives.swav import SwAV, SwAVConfig, sinkhorn_codes, swapped_prediction
from tests import reference
from tests.tensors import normal

close = torch.testing.assert_close
S_A = torch.tensor([[0.10, 0], [0.10, 0.05]], dtype=torch.float64)
S_B = S_A.flip(1)


class Rows:
    """A network whose projections are its images times a matrix, with K = 3 prototypes."""

    def __init__(self) -> None:
        self.matrix, self.prototype_rows = nn.Parameter(normal(4, 2, seed=7)), nn.Parameter(normal(3, 2, seed=8))

    def represent(self, images: Tensor) -> Tensor:
        return images

    def project_features(self, features: Tensor) -> Tensor:
        return features @ self.matrix

    def project(self, images: Tensor) -> Tensor:
        return self.project_features(self.represent(images))


def step(chosen: SwAV, network: Any, views: tuple[Tensor, Tensor], memory: Memory) -> Tensor:
    return chosen.step(network, Batch(views, memory=memory)).loss


def fresh(chosen: SwAV, round: int = 2) -> Memory:
    tensors = chosen.remember(2, generator("memory"))
    return Memory(round, {name: tensor.double() for name, tensor in tensors.items()})


def scores_of(network: Rows, view: Tensor) -> Tensor:
    return (F.normalize(view @ network.matrix, dim=1) @ F.normalize(network.prototype_rows, dim=1).T).detach()


def test_codes_and_loss_by_hand() -> None:
    codes = sinkhorn_codes(S_A, 0.05, 3)
    expected = torch.tensor([[0.6225607721, 0.3774392279], [0.3776421204, 0.6223578796]], dtype=torch.float64)
    close(codes, expected, rtol=0, atol=1e-10)
    both = codes, sinkhorn_codes(S_B, 0.05, 3)
    close(swapped_prediction((S_A, S_B), both, 0.1).item(), 0.7993602520, rtol=0, atol=1e-10)
    own = swapped_prediction((S_A, S_B), (both[1], both[0]), 0.1).item()  # each view's own code: no swap
    close(own, 0.7379784197, rtol=0, atol=1e-10)
    unbalanced = (S_A / 0.05).softmax(dim=1)
    close(unbalanced[:, 0], torch.tensor([0.8807971, 0.7310586], dtype=torch.float64), rtol=0, atol=1e-7)
    assert (codes - unbalanced).abs().max() > 0.2


def test_codes_and_loss_equal_the_loops() -> None:
    s_a, s_b = normal(6, 5) / 10, normal(6, 5, seed=1) / 10
    close(sinkhorn_codes(s_a, 0.05, 4), torch.from_numpy(reference.sinkhorn_codes(s_a, 0.05, 4)), rtol=1e-12, atol=0)
    codes = sinkhorn_codes(s_a, 0.05, 3), sinkhorn_codes(s_b, 0.05, 3)
    found = swapped_prediction((s_a, s_b), codes, 0.1).item()
    close(found, reference.swav(s_a, s_b, 0.1, 0.05, 3), rtol=1e-12, atol=0)


@pytest.mark.parametrize("epsilon", [0.01, 0.001])
def test_a_small_epsilon_underflows_nowhere(epsilon: float) -> None:
    """A column whose largest score is 2 below the batch's: exp(-200) is 0 in float32."""
    scores = torch.tensor([[1.0, -1.0], [0.9, -0.95], [0.8, -0.9]])
    codes = sinkhorn_codes(scores, epsilon, 3)
    assert codes.isfinite().all()
    close(codes.sum(dim=1), torch.ones(3))
    double = sinkhorn_codes(scores.double(), epsilon, 3)
    close(codes.double(), double, rtol=0, atol=1e-3)


def test_codes_balance_at_convergence_and_are_stable_in_float32() -> None:
    codes = sinkhorn_codes(normal(12, 4) / 10, 0.05, 200)
    close(codes.sum(dim=1), torch.ones(12, dtype=torch.float64))
    close(codes.sum(dim=0), torch.full((4,), 3.0, dtype=torch.float64))
    extreme = sinkhorn_codes(
        F.normalize(normal(64, 8), dim=1).float() @ F.normalize(normal(16, 8), dim=1).float().T, 0.02, 3
    )
    assert extreme.isfinite().all()
    close(extreme.sum(dim=1), torch.ones(64))


def test_step_is_the_swapped_prediction_of_normalised_rows() -> None:
    chosen, network, views = SwAV(SwAVConfig(iterations=5)), Rows(), (normal(6, 4), normal(6, 4, seed=1))
    loss = step(chosen, network, views, fresh(chosen))
    expected = reference.swav(*(scores_of(network, view) for view in views), 0.1, 0.05, 5)
    close(loss.item(), expected, rtol=1e-10, atol=0)
    close(network.prototype_rows.norm(dim=1), torch.ones(3, dtype=torch.float64))
    with torch.no_grad():
        network.prototype_rows.mul_(3)
    chosen.after_step(network)  # type: ignore[arg-type]
    close(network.prototype_rows.norm(dim=1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(("freeze", "round", "frozen"), [(1, 1, True), (1, 2, False), (0, 1, False), (3, 3, True)])
def test_prototypes_rest_in_the_first_rounds(freeze: int, round: int, frozen: bool) -> None:
    chosen, network = SwAV(SwAVConfig(freeze_rounds=freeze)), Rows()
    step(chosen, network, (normal(6, 4), normal(6, 4, seed=1)), fresh(chosen, round)).backward()
    assert (network.prototype_rows.grad is None) == frozen
    assert network.matrix.grad is not None


def test_a_full_queue_takes_part_in_the_balance() -> None:
    views = normal(4, 4), normal(4, 4, seed=1)
    earlier = normal(4, 4, seed=2), normal(4, 4, seed=3)
    chosen, network = SwAV(SwAVConfig(queue=6)), Rows()
    memory = fresh(chosen)
    assert {name: len(queue) for name, queue in memory.tensors.items()} == {"queue_a": 0, "queue_b": 0}
    without = step(SwAV(SwAVConfig()), network, earlier, Memory(2, {"queue_a": views[0][:0], "queue_b": views[0][:0]}))
    close(step(chosen, network, earlier, memory), without)  # nothing queued yet
    step(chosen, network, earlier, memory)
    assert {name: len(queue) for name, queue in memory.tensors.items()} == {"queue_a": 6, "queue_b": 6}
    loss = step(chosen, network, views, memory)
    scores = [scores_of(network, view) for view in views]
    old = [scores_of(network, torch.cat([e, e])[-6:]) for e in earlier]
    codes = [sinkhorn_codes(torch.cat([s, o]), 0.05, 3)[:4] for s, o in zip(scores, old, strict=True)]
    close(loss, swapped_prediction((scores[0], scores[1]), (codes[0], codes[1]), 0.1))
    assert abs(loss.item() - reference.swav(*scores, 0.1, 0.05, 3)) > 1e-4
    newest = F.normalize(views[0] @ network.matrix, dim=1).detach()
    close(memory.tensors["queue_a"][-4:], newest)


def test_networks_have_unit_prototypes_of_projections() -> None:
    model = ModelConfig(width=0.25, projector=HeadConfig(dim=6), prototypes=9)
    with forked("tests", "swav"):
        network = build_network("small_cnn", model, 16, heads={"projector", "prototypes"})
        bare = build_network("small_cnn", model, 16, heads={"projector"})
    assert network.prototype_rows.shape == (9, 6)
    assert network.prototype_rows.requires_grad
    close(network.prototype_rows.norm(dim=1), torch.ones(9))
    with pytest.raises(RuntimeError, match="built without prototypes"):
        _ = bare.prototype_rows


def test_needs_a_memory() -> None:
    with pytest.raises(ValueError, match="swav needs a memory"):
        SwAV(SwAVConfig()).step(Rows(), Batch((normal(2, 4), normal(2, 4))))  # type: ignore[arg-type]
