"""Clients and classes that have names are called by them in the figures and tables of a report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.report.folder import read
from rayfed_ssl.report.formats import short
from rayfed_ssl.report.run import report
from rayfed_ssl.testing.tiny import run_locally, tiny_run

pytestmark = pytest.mark.long

WARDS, KINDS = ("Charité", "St. Thomas' Hospital, London"), ("benign", "malignant", "none of these")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedFoA, whose clients keep their encoders, on images of two named clients and three named classes."""
    root, draws = tmp_path_factory.mktemp("named"), np.random.default_rng(0)
    for place in (*(f"train/{ward}" for ward in WARDS), "test"):
        for label, kind in enumerate(KINDS):
            (root / "images" / place / kind).mkdir(parents=True)
            for k in range(8):
                pixels = draws.integers(60 * label, 60 * label + 80, (8, 8)).astype(np.uint8)
                Image.fromarray(pixels).save(root / "images" / place / kind / f"{k}.png")
    data = {"name": "imagefolder", "path": str(root / "images"), "layout": "clients", "image_size": 8}
    changes = {
        **{f"data.{key}": value for key, value in data.items()}, "data.partition": {"name": "folders"},
        "clients.count": 2, "train.batch_size": 8, "model.calibration": 4, "data.limit": None, "data.test_limit": None,
        "evaluation.protocols": ["knn", "rank", "angles"],
    }  # fmt: skip
    run_locally(tiny_run("fedfoa", changes), root / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))  # which has text
        report(root / "run")
    return root / "run"


def texts(run: Path, figure: str) -> str:
    return (run / "figures" / f"{figure}.svg").read_text(encoding="utf-8").replace("&apos;", "'")


def test_figures_call_clients_and_classes_by_their_names(named: Path) -> None:
    wards = [short(ward) for ward in WARDS]
    assert wards == ["Charité", "St. Thomas' H…"]
    for figure, names in {
        "who_holds_what": [*wards, *KINDS], "clients_knn": wards, "tag_client_loss": wards,
        "fedfoa_distance_round_1": [short(ward, 10) for ward in WARDS],
    }.items():  # fmt: skip
        assert all(f">{name}<" in texts(named, figure) for name in names), figure
    page = (named / "report.html").read_text(encoding="utf-8")
    assert "Charité</th>" in page
    assert "No map and no neighbours" not in page  # the encoder's file bears the client's name, too
    assert "Angle between clients" in page


def test_the_partition_names_classes(named: Path) -> None:
    rows = pq.read_table(named / "partition.parquet").to_pylist()
    assert {(row["label"], row["class_name"]) for row in rows} == {(0, KINDS[0]), (1, KINDS[1]), (2, KINDS[2])}
    found = read(named)
    assert found.class_names == dict(enumerate(KINDS))
    assert found.client_names == dict(enumerate(WARDS))
    assert found.client(7) == "client 7"


def test_classes_that_are_numbers_have_no_names(bare: Path) -> None:
    assert "class_name" not in pq.read_schema(bare / "partition.parquet").names
    assert (read(bare).class_names, read(bare).client_names) == ({}, {})
