"""Two tiny runs and their reports, made once: clients with encoders of their own, and one global encoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rayfed_ssl.report.dispatch import report_of
from rayfed_ssl.testing.tiny import run_locally, tiny_run

OWN = {
    "data.image_size": 16,
    "evaluation.protocols": ["knn", "fewshot", "rank"],
    "train.rounds": 2,
    "clients.count": 3,
    "model.calibration": 8,
}


@pytest.fixture(scope="session")
def fedfoa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedFoA, whose clients keep their encoders, with its report."""
    folder = tmp_path_factory.mktemp("report") / "fedfoa"
    run_locally(tiny_run("fedfoa", {**OWN, "figures": True}), folder)
    report_of(folder)
    return folder


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedSimCLR without a report."""
    folder = tmp_path_factory.mktemp("report") / "fedsimclr"
    run_locally(tiny_run("fedsimclr", {"train.rounds": 2, "clients.count": 3}), folder)
    return folder


@pytest.fixture
def copy(bare: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the run of FedSimCLR, to be damaged."""

    def made(name: str = "run") -> Path:
        return Path(shutil.copytree(bare, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints")))

    return made


def told(document: Path, key: str) -> float:
    """The number that a key, joined by slashes, leads to in a JSON file; of clients' values the mean."""
    here = json.loads(document.read_text())
    for part in key.split("/"):
        here = here[int(part)] if isinstance(here, list) else here[part]
    values = list(here.values()) if isinstance(here, dict) else [here]
    return float(sum(values) / len(values))
