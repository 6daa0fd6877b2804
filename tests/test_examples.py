"""What a third party writes: one file, and no file of ours is edited."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import entropy

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.models import load_exported
from rayfed_ssl.simulation.forecast import forecast
from rayfed_ssl.testing import contract
from rayfed_ssl.testing.tiny import encoders, measured, run_locally, tiny_run
from tests.places import ROOT

EXAMPLES = ROOT / "examples"
KOLEO = {"imports": ["koleo.py"]}
OWN = {
    "imports": ["invariant_clustering.py", "power_law.py"],
    "objective": {"name": "iic", "clusters": 6},
    "data.partition": {"name": "power_law", "exponent": 0.5},
    "train.optimizer": {"name": "adam", "lr": 0.01},
}

TestKoleo = pytest.mark.long(contract("koleo", {**KOLEO, "method.weight": 0.01}, beside=EXAMPLES))
TestHeadAndPartitionOfOnesOwn = pytest.mark.long(contract("fedavg", OWN, beside=EXAMPLES))


def defined_in(example: str) -> ModuleType:
    """The example as a module, beside the one that ``imports`` makes of it."""
    spec = importlib.util.spec_from_file_location(f"tests.examples_{example}", EXAMPLES / f"{example}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def test_the_term_is_that_of_the_paper() -> None:
    """Points of the circle, of any length: an arc of so many degrees has a chord of 2 sin(arc / 2)."""
    koleo = defined_in("koleo").koleo
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


def test_equal_and_opposite_features_have_a_gradient() -> None:
    koleo = defined_in("koleo").koleo
    for other, expected in (([1.0, 0.0], -math.log(1e-8)), ([-1.0, 0.0], -math.log(2))):
        x = torch.tensor([[1.0, 0.0], other], requires_grad=True)
        value = koleo(x)
        assert value.item() == pytest.approx(expected)
        value.backward()
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()


@pytest.mark.long
def test_a_loss_term_costs_nothing_and_goes_with_deadlines_and_fedbuff(tmp_path: Path) -> None:
    """As a plug-in: bytes are those without it, a deadline is kept, and FedBuff takes it."""
    few = {"data.limit": 160, "train.rounds": 1, "evaluation.protocols": []}
    plain = tiny_run("fedsimclr", few)
    with_it = tiny_run("fedsimclr", {**few, **KOLEO, "plugins": [{"name": "koleo"}]}, EXAMPLES)
    assert forecast(with_it).traffic == forecast(plain).traffic is not None
    late = {"system": {"latency_s": 1.0, "deadline_s": 1e6}}
    for name, more in (("deadline", late), ("fedbuff", {**late, "server": {"schedule": "fedbuff", "buffer": 2}})):
        config = tiny_run("fedsimclr", {**few, **KOLEO, **more, "plugins": [{"name": "koleo"}]}, EXAMPLES)
        assert run_locally(config, tmp_path / name)["status"] == "complete"
    run_locally(with_it, tmp_path / "without a deadline")
    run_locally(plain, tmp_path / "plain")
    assert encoders(tmp_path / "deadline") == encoders(tmp_path / "without a deadline") != encoders(tmp_path / "plain")


def test_the_mutual_information_of_two_views_is_scipys() -> None:
    mutual_information = defined_in("invariant_clustering").mutual_information
    logits = 3 * torch.randn(2, 50, 4, dtype=torch.float64, generator=generator(0, "test"))
    p, q = logits.softmax(2)
    joint = sum(torch.outer(one, other) for one, other in zip(p, q, strict=True)).numpy() / 50
    joint = (joint + joint.T) / 2
    expected = entropy(joint.ravel(), np.outer(joint.sum(1), joint.sum(0)).ravel())
    assert mutual_information(p, q).item() == pytest.approx(expected, abs=1e-9)
    sure = torch.eye(4, dtype=torch.float64).repeat(3, 1)
    assert mutual_information(sure, sure).item() == pytest.approx(np.log(4))  # the most there is
    assert mutual_information(sure, sure[torch.arange(12) // 4]).item() < 0.1 * np.log(4)


@pytest.mark.long
def test_a_run_with_a_head_of_ones_own_trains_it_and_exports_what_stands_below(tmp_path: Path) -> None:
    config = tiny_run("fedavg", {**OWN, "train.local_epochs": 3}, beside=EXAMPLES)
    run_locally(config, tmp_path)
    loss = [measured(tmp_path)[round, None, "train/loss"] for round in (1, 2, 3)]
    assert -np.log(6) < loss[2] < 3 * loss[0] < 0
    values = load_file(tmp_path / "encoder/global.safetensors")
    assert not any("clusters" in name for name in values)
    encoder = load_exported(tmp_path)
    assert encoder(torch.zeros(2, 3, 16, 16)).shape == (2, encoder.dim)
    assert torch.equal(encoder.state_dict()[first := next(iter(values))], values[first])


def test_the_power_law_is_zipfs_and_every_image_has_one_client(tmp_path: Path) -> None:
    changes = {"imports": ["power_law.py"], "data.partition": {"name": "power_law"}, "train.rounds": 1}
    config = tiny_run("fedsimclr", changes, beside=EXAMPLES)
    run_locally(config, tmp_path)
    table = pq.read_table(tmp_path / "partition.parquet").to_pydict()
    images = config.data.limit
    assert sorted(table["index"]) == list(range(images))
    sizes = np.bincount(table["client"])
    assert np.abs(sizes - images / (1 + 1 / 2 + 1 / 3 + 1 / 4) / np.arange(1, 5)).max() < 1
    assert table["index"] != sorted(table["index"])  # drawn at random


def test_the_partition_that_the_page_shows_is_the_examples() -> None:
    page, example = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("docs/extending.md", "examples/power_law.py")
    )
    (shown,) = re.findall(r"```python\n(class PowerLaw.*?)```", page, re.DOTALL)
    assert shown in example
