"""What a third party writes: one file, and no file of ours is edited."""

from __future__ import annotations

import importlib.util
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
from rayfed_ssl.testing import contract
from rayfed_ssl.testing.tiny import measured, run_locally, tiny_run
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
OWN = {
    "imports": ["invariant_clustering.py", "power_law.py"],
    "objective": {"name": "iic", "clusters": 6},
    "data.partition": {"name": "power_law", "exponent": 0.5},
    "train.optimizer": {"name": "adam", "lr": 0.01},
}

TestDecorrelation = contract("decorrelation", {"imports": ["decorrelation.py"], "method.weight": 0.01}, beside=EXAMPLES)
TestHeadAndPartitionOfOnesOwn = contract("fedavg", OWN, beside=EXAMPLES)


def defined_in(example: str) -> ModuleType:
    """The example as a module, beside the one that ``imports`` makes of it."""
    spec = importlib.util.spec_from_file_location(f"tests.examples_{example}", EXAMPLES / f"{example}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def test_the_penalty_is_that_of_the_paper() -> None:
    """(N - 1)^2 / N times the mean squared correlation of pairs of columns; here rho^2 = 0.5 and N = 4."""
    penalty = defined_in("decorrelation").decorrelation
    x = torch.tensor([[1, 2], [2, 1], [3, 5], [4, 4]], dtype=torch.float64)
    torch.testing.assert_close(penalty(x), torch.tensor(1.125, dtype=torch.float64), atol=1e-6, rtol=0)
    y = torch.randn(20, 5, dtype=torch.float64, generator=generator(0, "test"))
    rho = torch.corrcoef(y.T)
    expected = 19**2 / 20 * (rho.square().sum() - 5) / 20
    torch.testing.assert_close(penalty(y), expected, atol=1e-6, rtol=1e-6)


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
    run_locally(tiny_run("fedsimclr", changes, beside=EXAMPLES), tmp_path)
    table = pq.read_table(tmp_path / "partition.parquet").to_pydict()
    assert sorted(table["index"]) == list(range(240))
    sizes = np.bincount(table["client"])
    assert np.abs(sizes - 240 / (1 + 1 / 2 + 1 / 3 + 1 / 4) / np.arange(1, 5)).max() < 1
    assert table["index"] != sorted(table["index"])  # drawn at random


def test_the_partition_that_the_page_shows_is_the_examples() -> None:
    page, example = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("docs/extending.md", "examples/power_law.py")
    )
    (shown,) = re.findall(r"```python\n(class PowerLaw.*?)```", page, re.DOTALL)
    assert shown in example
