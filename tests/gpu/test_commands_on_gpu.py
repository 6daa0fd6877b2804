"""What is done with a finished run, on a GPU: the other protocols, an audit of every kind of message, an embedding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rayfed_ssl
from rayfed_ssl.leak.run import leak
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.tiny import run_locally, tiny

pytestmark = pytest.mark.gpu
GPU = "cuda"
HELD_OUT = {"data__limit": 320, "data__partition__name": "iid", "evaluation__select": {"share": 0.35}}
PROTOCOLS = ["knn", "linear", "fewshot", "semi", "cluster", "rank"]
FEW = ("evaluation.semi.fractions=[0.1]", "evaluation.semi.epochs=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "run"
    run_locally(tiny("fedsimclr", resources__device=GPU, **HELD_OUT), folder)
    return folder


def test_every_protocol(run: Path) -> None:
    found = reevaluate(run, PROTOCOLS, FEW)
    (values,) = found["accuracy"].values()
    assert {"knn", "linear", "fewshot", "semi_10"} <= set(values)
    text = json.dumps(found)
    assert all(name in text for name in ("cluster", "rankme"))


@pytest.mark.parametrize("method", ["fedsimclr", "fedsc", "fedfoa", "fedca", "flesd", "fedmd", "orchestra"])
def test_an_audit_repeats_its_areas(method: str, tmp_path: Path) -> None:
    run_locally(tiny(method, resources__device=GPU, **HELD_OUT, evaluation__protocols=[]), tmp_path / "run")
    first, second = (leak(tmp_path / "run").findings for _ in range(2))
    assert first == second
    assert {finding.round for finding in first} == {3}


def test_an_embedding_is_that_of_the_cpu(run: Path, tmp_path: Path) -> None:
    made = {}
    for device in (GPU, "cpu"):
        encoder = rayfed_ssl.load(run).encoder()
        images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
        made[device] = encoder.to(device)(encoder.transform(images).to(device))
    np.testing.assert_allclose(made[GPU].detach().cpu().numpy(), made["cpu"].detach().numpy(), rtol=1e-2, atol=1e-3)
