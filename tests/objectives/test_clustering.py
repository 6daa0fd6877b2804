"""Orchestra's local loss by hand, its roles and its constants."""

from __future__ import annotations

import torch

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.objectives.clustering import cluster_agreement
from tests.tensors import rows

close = torch.testing.assert_close
C = torch.eye(2, dtype=torch.float64)


def test_by_hand() -> None:
    close(cluster_agreement(rows((0.6, 0.8)), rows((1, 0)), C, 0.1).item(), 8.8080160, rtol=0, atol=1e-6)
    close(cluster_agreement(rows((1, 0)), rows((0.6, 0.8)), C, 0.1).item(), 2.1268372, rtol=0, atol=1e-6)  # swapped
    close(cluster_agreement(rows((0.6, 0.8)), rows((0.8, 0.6)), C, 0.1).item(), 1.8885221670, rtol=0, atol=1e-9)
    close(cluster_agreement(rows((3, 4)), rows((4, 3)), C, 0.1).item(), 1.8885221670, rtol=0, atol=1e-9)


def test_only_the_online_view_is_trained_and_rows_are_averaged() -> None:
    t, z, c = (torch.randn(n, 3, generator=generator(n), dtype=torch.float64).requires_grad_() for n in (5, 5, 4))
    loss = cluster_agreement(t, z, c, 0.3)
    loss.backward()
    assert t.grad is None
    assert c.grad is None
    assert z.grad is not None
    each = [cluster_agreement(t[i : i + 1], z[i : i + 1], c, 0.3) for i in range(5)]
    close(loss, torch.stack(each).mean())
