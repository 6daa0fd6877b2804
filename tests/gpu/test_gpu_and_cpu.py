"""What is computed on a GPU is what the CPU computes, up to rounding: every objective's loss and gradient, encoders'
features, kNN and the linear probe, the methods' linear algebra.

Random numbers of the two differ, so whole runs cannot be compared; here both are given the same views and weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rayfed_ssl.base import linalg
from rayfed_ssl.base.seeding import forked, generator
from rayfed_ssl.base.weights import unpack
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.objectives import OBJECTIVES, Memory
from rayfed_ssl.objectives.base import Batch
from tests.tiny import tiny

pytestmark = pytest.mark.gpu
GPU = "cuda"
PROTOCOLS = ["knn", "linear", "fewshot", "rank"]


@pytest.fixture(autouse=True)
def _full_float32() -> Iterator[None]:
    """TensorFloat-32 rounds to 10 bits; what is compared here is the rest."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def loss_and_gradient(objective: str, device: str) -> tuple[Tensor, Tensor]:
    """Of one batch of 16 images, with BatchNorm where the encoder has it, from the run's first weights."""
    method = {"supervised": "fedavg_supervised", "mae": "fedmae"}.get(objective, "fedavg")
    settings = tiny(method, objective__name=objective, resources__device=device)
    context, encoder = ProcessContext(settings, load_federation(settings)), settings.clients.encoder(0)
    network, rule = context.network(encoder), context.objective
    unpack(context.initial(encoder), network)
    target = copy.deepcopy(network).requires_grad_(False)
    draws = generator("gpu", objective)
    views = [torch.randn(16, 3, 8, 8, generator=draws) for _ in range(rule.views)]
    memory = None
    if rule.memory:
        tensors = rule.remember(rule.memory_dim(settings.model), generator("gpu", "memory"))
        there = {name: tensor.to(context.device) for name, tensor in tensors.items()}
        memory = Memory(2, there, generator("gpu", "draws") if rule.draws else None)
    labels = (torch.arange(16) % 10).to(context.device) if rule.labelled else None
    moved = tuple(view.to(context.device, memory_format=torch.channels_last) for view in views)
    with forked("gpu", objective):
        step = rule.step(network.train(), Batch(moved, labels, target.train(), memory))
    step.loss.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    return step.loss.detach().cpu(), torch.cat(gradients).cpu()


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_objectives(objective: str) -> None:
    (loss, gradient), (expected, expected_gradient) = (loss_and_gradient(objective, d) for d in (GPU, "cpu"))
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    error = (gradient - expected_gradient).norm() / expected_gradient.norm()
    assert error < 1e-3, f"the gradient is off by {error:.1e} of its norm"


def test_evaluation() -> None:
    """All protocols, of an untrained encoder and of raw pixels: accuracies are within two of 60 test images, what
    describes features is within a thousandth.
    """
    found: dict[str, dict[str, Any]] = {}
    for device in (GPU, "cpu"):
        settings = tiny("fedsimclr", resources__device=device, evaluation__protocols=PROTOCOLS)
        context = ProcessContext(settings, load_federation(settings))
        found[device] = dict(context.evaluate("small_cnn_bn", context.initial("small_cnn_bn")))
        found[device] |= {f"{tag} of pixels": value for tag, value in context.evaluate_pixels().items()}
    assert found[GPU].keys() == found["cpu"].keys()
    for tag, value in found["cpu"].items():
        if tag == "features/alignment":  # of two views that are drawn on the device
            continue
        allowed = 2 / 60 + 1e-9 if not tag.startswith("features/") else 1e-3 * abs(value)
        assert abs(found[GPU][tag] - value) <= allowed, tag


def test_linear_algebra_of_the_methods() -> None:
    draws = generator("gpu", "linalg")
    z, r = torch.randn(64, 8, generator=draws), torch.randn(3, 8, 8, generator=draws)
    lame = r.clone()
    lame[1] = 0  # a peer whose features collapsed
    p, q = torch.randn(50, 6, generator=draws), torch.randn(50, 6, generator=draws)
    torch.testing.assert_close(linalg.canonical_r(z.cuda()).cpu(), linalg.canonical_r(z))
    torch.testing.assert_close(linalg.polar_factor(z.cuda(), r.cuda()).cpu(), linalg.polar_factor(z, r))
    factor = linalg.polar_factor(z.cuda(), lame.cuda()).cpu()
    torch.testing.assert_close(factor.mT @ factor, torch.eye(8).expand(3, 8, 8), atol=1e-5, rtol=0)
    (mapped, value), (expected, known) = linalg.orthogonal_map(p.cuda(), q.cuda()), linalg.orthogonal_map(p, q)
    torch.testing.assert_close(mapped.cpu(), expected)
    torch.testing.assert_close(value.cpu(), known)
