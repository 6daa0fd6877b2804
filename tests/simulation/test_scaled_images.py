"""A run on images of more than 8 bits keeps how they were scaled: in its folder, its report and its model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.exporting.card import card
from rayfed_ssl.exporting.encoders import run_encoder
from rayfed_ssl.records.environment import RunFacts, environment, scalings
from rayfed_ssl.report.dispatch import report_of
from tests.tiny import run_locally, tiny

OWN = "images of more than 8 bits were scaled to 0..255, each by its own smallest and largest value"


def scans(folder: Path, train: int, test: int) -> Path:
    """Grey images of 16 bits of two classes."""
    draw = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for number in range(count):
            file = folder / split / "ab"[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 4096, (8, 8), dtype=np.uint16)).save(file)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("deep")
    public = {"name": "imagefolder", "path": str(scans(root / "public", 6, 2)), "image_size": 8, "range": [0, 4095]}
    data = {"name": "imagefolder", "path": str(scans(root / "scans", 40, 9)), "limit": None, "test_limit": None}
    keys = {f"data__{key}": value for key, value in data.items()}
    keys |= {"data__public": {"source": "source", "images": public}, "clients__count": 2, "train__rounds": 1}
    run_locally(tiny("fedsimclr", **keys, evaluation__protocols=["knn"]), root / "run")
    return root / "run"


def test_the_environment_says_how_many_images_were_scaled_and_how(run: Path) -> None:
    assert json.loads((run / "environment.json").read_text())["scaled"] == {
        "data": {"images": 49, "by": "its own smallest and largest value"},
        "data.public.images": {"images": 6, "by": "data.public.images.range=[0.0, 4095.0]"},
    }
    plain = environment(RunFacts(device="cpu", threads=1, images=""))
    assert "scaled" not in plain
    assert scalings(plain) == []


@pytest.mark.long
@pytest.mark.usefixtures("only_svg")
def test_the_report_and_the_card_say_so_too(run: Path) -> None:
    page = report_of(run)
    notes = page.read_text().split('id="notes"')[1]
    assert notes.count(f"49 {OWN}.") == 1
    assert "data.public.images: 6 images of more than 8 bits" in notes
    shown = card(run_encoder(run), "Load it.")
    assert f"| grey values | data: 49 {OWN} |" in shown
    assert shown.count("| grey values |") == 2


@pytest.mark.long
@pytest.mark.parametrize("damage", [{"scaled": {"data": 3}}, {"notes": 3}])
@pytest.mark.usefixtures("only_svg")
def test_a_damaged_record_is_a_note_of_the_report(run: Path, damage: dict[str, Any]) -> None:
    file = run / "environment.json"
    whole = file.read_text()
    try:
        file.write_text(json.dumps(json.loads(whole) | damage))
        page = report_of(run).read_text()
        assert "environment.json holds what a run does not write there" in page
        assert "summary.json holds" not in page
    finally:
        file.write_text(whole)
