"""What a third party writes: one file, and no file of ours is edited."""

from __future__ import annotations

import torch

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.testing import contract
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"

TestDecorrelation = contract("decorrelation", {"imports": ["decorrelation.py"], "method.weight": 0.01}, beside=EXAMPLES)


def test_the_penalty_is_that_of_the_paper() -> None:
    """(N - 1)^2 / N times the mean squared correlation of pairs of columns; here rho^2 = 0.5 and N = 4."""
    namespace: dict[str, object] = {}
    exec(compile((EXAMPLES / "decorrelation.py").read_text(encoding="utf-8"), "decorrelation", "exec"), namespace)
    penalty = namespace["decorrelation"]
    x = torch.tensor([[1, 2], [2, 1], [3, 5], [4, 4]], dtype=torch.float64)
    torch.testing.assert_close(penalty(x), torch.tensor(1.125, dtype=torch.float64), atol=1e-6, rtol=0)
    y = torch.randn(20, 5, dtype=torch.float64, generator=generator(0, "test"))
    rho = torch.corrcoef(y.T)
    expected = 19**2 / 20 * (rho.square().sum() - 5) / 20
    torch.testing.assert_close(penalty(y), expected, atol=1e-6, rtol=1e-6)
