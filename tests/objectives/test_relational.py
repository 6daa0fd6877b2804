"""FedX's relational loss: the direction of its divergence, the path of its gradient, loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rayfed_ssl.objectives.base import kl_divergence
from rayfed_ssl.objectives.relational import mean_target, relational
from tests import reference
from tests.tensors import normal, rows

close = torch.testing.assert_close


def test_the_direction_of_the_divergence() -> None:
    s1, s2 = rows((0.7, 0.3)).log(), rows((0.4, 0.6)).log()
    log_m = mean_target(s1, s2, 1.0)
    close(log_m.exp(), rows((0.55, 0.45)))
    ours = (kl_divergence(log_m, s1) + kl_divergence(log_m, s2)).item() / 2
    close(ours, 0.0477563935, rtol=0, atol=1e-10)
    jensen_shannon = (kl_divergence(s1, log_m) + kl_divergence(s2, log_m)).item() / 2
    close(jensen_shannon, 0.0462008292, rtol=0, atol=1e-10)
    assert kl_divergence(mean_target(s1, s1, 1.0), s1).abs() < 1e-15


@pytest.mark.parametrize(("detach", "gradient"), [(False, 0.216775), (True, 0.305928)])
def test_the_target_passes_gradients_on(detach: bool, gradient: float) -> None:
    a, b = rows((2, 0)).requires_grad_(), rows((0, 1))
    log_m = mean_target(a, b, 1.0)
    kl_divergence(log_m.detach() if detach else log_m, a.log_softmax(dim=1)).backward()
    assert a.grad is not None
    close(a.grad, rows((gradient, -gradient)), rtol=0, atol=1e-6)


def test_relational_equals_the_loops_and_its_target_is_not_detached() -> None:
    a, b, r = normal(4, 3).requires_grad_(), normal(4, 3, seed=1), normal(6, 3, seed=2).requires_grad_()
    loss = relational(a, b, r, 0.1, 0.3)
    close(loss.item(), reference.relational(a.detach(), b, r.detach(), 0.1, 0.3), rtol=1e-10, atol=0)
    through = torch.autograd.grad(loss, a)[0]
    s_a, s_b = (F.normalize(z, dim=1) @ F.normalize(r, dim=1).T for z in (a, b))
    log_m = mean_target(s_a, s_b, 0.3).detach()
    without = sum(kl_divergence(log_m, F.log_softmax(s / 0.1, dim=1)) for s in (s_a, s_b)) / 2
    close(without, loss)
    assert (torch.autograd.grad(without, a)[0] - through).abs().max() > 1e-3
    assert relational(a, a, r, 0.2, 0.2).abs() < 1e-12
    loss = relational(a, b, r, 0.1, 0.3)
    assert torch.autograd.grad(loss, r)[0].abs().sum() > 0


def test_autocast_keeps_float32() -> None:
    a, b, r = (normal(4, 3, seed=s).float() for s in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = relational(a, b, r, 0.1, 0.1)
    assert torch.equal(inside, relational(a, b, r, 0.1, 0.1))
