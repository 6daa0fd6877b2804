"""What a third party writes: one file, and no file of ours is edited."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.simulation.forecast import forecast
from rayfed_ssl.testing import contract
from rayfed_ssl.testing.tiny import encoders, run_locally, tiny_run
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
FILE = {"imports": ["koleo.py"]}

TestKoleo = contract("koleo", {**FILE, "method.weight": 0.01}, beside=EXAMPLES)


@pytest.fixture
def koleo() -> Callable[[Tensor], Tensor]:
    namespace: dict[str, Callable[[Tensor], Tensor]] = {}
    exec(compile((EXAMPLES / "koleo.py").read_text(encoding="utf-8"), "koleo", "exec"), namespace)
    return namespace["koleo"]


def test_the_term_is_that_of_the_paper(koleo: Callable[[Tensor], Tensor]) -> None:
    """Points of the circle, of any length: an arc of so many degrees has a chord of 2 sin(arc / 2)."""
    at = [math.radians(degrees) for degrees in (0, 10, 90, 150)]
    x = torch.tensor([[r * math.cos(a), r * math.sin(a)] for a, r in zip(at, (1, 3, 0.5, 2), strict=True)])
    chords = [2 * math.sin(math.radians(arc) / 2) for arc in (10, 10, 60, 60)]
    expected = -sum(map(math.log, chords)) / 4
    torch.testing.assert_close(koleo(x.double()), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)
    y = torch.randn(20, 5, dtype=torch.float64, generator=generator(0, "test"))
    unit = [row / math.sqrt(float((row * row).sum())) for row in y]
    least = [min(math.dist(a.tolist(), b.tolist()) for b in unit if b is not a) for a in unit]
    wanted = -sum(map(math.log, least)) / len(least)
    torch.testing.assert_close(koleo(y), torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=1e-6)


def test_equal_and_opposite_features_have_a_gradient(koleo: Callable[[Tensor], Tensor]) -> None:
    for other, expected in (([1.0, 0.0], -math.log(1e-8)), ([-1.0, 0.0], -math.log(2))):
        x = torch.tensor([[1.0, 0.0], other], requires_grad=True)
        value = koleo(x)
        assert value.item() == pytest.approx(expected)
        value.backward()
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()


def test_a_loss_term_costs_nothing_and_goes_with_deadlines_and_fedbuff(tmp_path: Path) -> None:
    """As a plug-in: bytes are those without it, a deadline is kept, and FedBuff takes it."""
    few = {"data.limit": 160, "train.rounds": 1, "evaluation.protocols": []}
    plain = tiny_run("fedsimclr", few)
    with_it = tiny_run("fedsimclr", {**few, **FILE, "plugins": [{"name": "koleo"}]}, EXAMPLES)
    assert forecast(with_it).traffic == forecast(plain).traffic is not None
    late = {"system": {"latency_s": 1.0, "deadline_s": 1e6}}
    for name, more in (("deadline", late), ("fedbuff", {**late, "server": {"schedule": "fedbuff", "buffer": 2}})):
        config = tiny_run("fedsimclr", {**few, **FILE, **more, "plugins": [{"name": "koleo"}]}, EXAMPLES)
        assert run_locally(config, tmp_path / name)["status"] == "complete"
    run_locally(with_it, tmp_path / "without a deadline")
    run_locally(plain, tmp_path / "plain")
    assert encoders(tmp_path / "deadline") == encoders(tmp_path / "without a deadline") != encoders(tmp_path / "plain")
