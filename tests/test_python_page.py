"""docs/python.md says what happens: its code is run, block after block, and what it prints is looked at."""

from __future__ import annotations

import ast
import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rayfed_ssl
from tests.places import ROOT

PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"0\.\d{3}")  # an accuracy; another processor may change it a little
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def images_beside_a_table(folder: Path) -> None:
    """160 images of two findings in two hospitals, and ``labels.csv``."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "finding", "hospital"])
        for i in range(160):
            finding, name = ("benign", "malignant")[i % 2], f"{i:03d}.png"
            Image.fromarray(draw.integers(100 * (i % 2), 100 * (i % 2) + 99, (20, 24), np.uint8)).save(folder / name)
            table.writerow([name, finding, ("north", "south")[i // 80]])


@pytest.mark.long
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    images_beside_a_table(tmp_path / "scans")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    told = []
    for block in BLOCKS:
        exec(compile(block, "docs/python.md", "exec"), names)
        told.append(capsys.readouterr().out)
    run, longer = names["run"], names["longer"]
    assert isinstance(run, rayfed_ssl.Run)
    assert isinstance(longer, rayfed_ssl.Run)
    said = PAGE.split("print(run)  # ")[1].splitlines()[0]
    (shown,) = [line for line in told[0].splitlines() if line.startswith("Run(")]
    assert NUMBER.sub("0", said).split(": ")[1] == NUMBER.sub("0", shown).split(": ")[1]
    assert list(map(float, NUMBER.findall(said))) == pytest.approx(list(map(float, NUMBER.findall(shown))), abs=0.05)
    assert f"{run.metrics.schema.names}\n{run.communication.schema.names}\n" in told[3]
    for names_told in re.findall(r"#  ?(\[.*\])$", PAGE, re.MULTILINE):
        assert any(str(ast.literal_eval(names_told)) in text for text in told)
    assert told[-4].endswith("\n3\n")
    assert told[-1].splitlines() == [
        line for line in told[-1].splitlines() if line.startswith(("method.name: ", "train.round: "))
    ]
    assert "did you mean fedsimclr?" in told[-1]
    scans = names["scans"]
    assert isinstance(scans, rayfed_ssl.Run)
    assert (scans.status, scans.config.data.partition.name) == ("complete", "natural")
    assert rayfed_ssl.load("runs/scans").config.data.columns.client == "hospital"
    early, lost = names["early"], names["lost"]
    assert isinstance(early, rayfed_ssl.Run)
    assert isinstance(lost, rayfed_ssl.Run)
    assert (early.status, lost.status) == ("stopped", "diverged")
    assert early.summary["rounds"] < 40
    again, small = names["again"], names["small"]
    assert isinstance(again, rayfed_ssl.Run)
    assert (again.config.train.rounds, again.config.train.batch_size) == (3, 32)
    assert isinstance(small, rayfed_ssl.Run)
    assert small.config.method.name == "fedprox"
