"""Images that a CSV file names, against the arrays and the rows that the test wrote itself."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.partition import Natural, partition
from rayfed_ssl.data.source_table import typed
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.settings.located import located
from tests.command_line import Call
from tests.data.files import fetch, pictures, png, refused
from tests.tiny import run_locally, tiny

PIXELS = pictures(20)
CLASSES = ("cat", "dog")


def images(folder: Path, names: Sequence[str], first: int = 0) -> None:
    for number, name in enumerate(names, first):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(PIXELS[number]))


def table(path: Path, rows: Sequence[Sequence[object]], *names: str, delimiter: str = ",", bom: bool = False) -> Path:
    with path.open("w", encoding="utf-8-sig" if bom else "utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([names, *rows])
    return path


def whole(tmp_path: Path, **settings: Any) -> Dataset:
    """What is read, training and test images, with nothing left out."""
    return fetch(tmp_path, "table", **settings)


def by_pixels(data: Dataset) -> dict[int, tuple[int, str]]:
    """Number in ``PIXELS`` -> (label, split)."""
    found = {}
    for split, part in (("train", data.train), ("test", data.test)):
        for pixels, label in zip(part.pixels, part.labels, strict=True):
            (number,) = [k for k in range(len(PIXELS)) if (PIXELS[k] == pixels).all()]
            found[number] = int(label), split
    return found


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """20 images in a folder, half of each class, and a table of all."""
    images(tmp_path / "scans", [f"{k}.png" for k in range(20)])
    rows = [(f"scans/{k}.png", CLASSES[k % 2], f"h{k % 3}", f"p{k // 2}") for k in range(20)]
    return table(tmp_path / "pets.csv", rows, "file", "label", "hospital", "patient")


def test_a_table_says_what_images_are(pets: Path, tmp_path: Path) -> None:
    data = whole(tmp_path, path=pets, columns={"client": "hospital"})
    assert data.train.class_names == CLASSES
    found = by_pixels(data)
    assert {number: label for number, (label, _) in found.items()} == {k: k % 2 for k in range(20)}
    assert sorted(label for label, split in found.values() if split == "test") == [0, 0, 1, 1]  # a fifth of each class
    assert data.train.client_names == ("h0", "h1", "h2")
    shards = partition(Natural(), data.train.labels, 3, 0, data.train.clients, None, data.train.client_names)
    for client, rows in enumerate(shards):
        numbers = [k for row in rows for k in range(20) if (PIXELS[k] == data.train.pixels[row]).all()]
        assert {k % 3 for k in numbers} == {client}
    assert any("one table" in note for note in texts(data.notes))


def test_images_of_one_patient_stay_together(pets: Path, tmp_path: Path) -> None:
    found = by_pixels(whole(tmp_path, path=pets, columns={"group": "patient"}))
    assert all(found[k][1] == found[k + 1][1] for k in range(0, 20, 2))
    assert {split for _, split in found.values()} == {"train", "test"}
    notes = texts(whole(tmp_path, path=pets).notes)
    assert any("patient" in note and "data.columns.group" in note for note in notes)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_cells_are_separated_as_the_first_line_says(tmp_path: Path, delimiter: str) -> None:
    images(tmp_path, [f"{k}.png" for k in range(10)])
    rows = [(f"{k}.png", f"a, b; {k % 2}") for k in range(10)]
    path = table(tmp_path / "t.csv", rows, "Image", "LABEL", delimiter=delimiter, bom=True)
    data = whole(tmp_path, path=path)
    assert data.train.class_names == ("a, b; 0", "a, b; 1")
    assert len(by_pixels(data)) == 10


def test_a_folder_with_a_table_per_split(tmp_path: Path) -> None:
    """The same names in both: those in the folder named after the split are meant."""
    images(tmp_path, [f"train/{k}.png" for k in range(6)])
    images(tmp_path, [f"test/{k}.png" for k in range(4)], first=6)
    table(tmp_path / "train.csv", [(k, k % 2) for k in range(6)], "id", "label")
    table(tmp_path / "test.csv", [(f"{k}.png", k % 2) for k in range(4)], "id", "label")
    found = by_pixels(whole(tmp_path))
    assert found == {k: (k % 2, "train") for k in range(6)} | {6 + k: (k % 2, "test") for k in range(4)}
    table(tmp_path / "fold5.csv", [(f"test/{k}", k % 2) for k in range(4)], "id", "label")
    (tmp_path / "test.csv").unlink()
    assert by_pixels(whole(tmp_path, test_split="fold5"))[6] == (0, "test")
    refused(r"data\.test_split: found 'six'; .* has fold5\.csv, train\.csv", tmp_path, "table", test_split="six")


def test_an_images_name_is_found_wherever_it_lies(tmp_path: Path) -> None:
    images(tmp_path, ["a/x.png", "b/x.png", "b/c/y.png", "b/c/d/z.jpg", "b/c/y2.png"])
    cells = ["a/x.png", str(tmp_path / "b/x.png"), "y2", "\\old\\disk\\z.jpg"]
    path = table(tmp_path / "t.csv", [(cell,) for cell in cells], "path")
    assert sorted(by_pixels(whole(tmp_path, path=path))) == [0, 1, 3, 4]
    path = table(tmp_path / "u.csv", [("b/x",), ("a/x",)], "path")
    assert sorted(by_pixels(whole(tmp_path, path=path))) == [0, 1]
    path = table(tmp_path / "v.csv", [("x",), ("y",)], "path")
    said = (
        r"data\.columns\.image: row 1 of .*v\.csv names x, which may be a/x\.png or b/x\.png below .*; allowed: paths"
    )
    refused(said, tmp_path, "table", path=path)


def test_labels_are_numbers_or_text_as_all_cells_are(tmp_path: Path) -> None:
    images(tmp_path, [f"{k}.png" for k in range(20)])
    cells = {"numbers": ["0", "1", "1.0", ""], "text": ["07", "1", "1", ""], "words": ["a", "1", "b", " "]}
    for name, values in cells.items():
        rows = [(f"{k}.png", values[k % 4]) for k in range(18)]
        data = whole(tmp_path, path=table(tmp_path / f"{name}.csv", rows, "img", "label"))
        labels = {number: label for number, (label, _) in by_pixels(data).items()}
        expected = {"numbers": [0, 1, 1, -1], "text": [0, 1, 1, -1], "words": [1, 0, 2, -1]}[name]
        assert labels == {k: expected[k % 4] for k in range(18)}
        assert any(note.startswith("4 images have an empty label: unlabelled") for note in texts(data.notes))
        assert any(note.startswith("2 image files are in no row") for note in texts(data.notes))
    path = table(tmp_path / "half.csv", [(f"{k}.png", k / 3) for k in range(18)], "img", "label")
    refused(r"column label of .*half\.csv is of type double; labels are integers", tmp_path, "table", path=path)
    assert (whole(tmp_path, path=path, columns={"label": False}).train.labels == -1).all()


@pytest.mark.parametrize(
    ("cells", "kind"), [(["1", "-2", ""], "int64"), (["1", "2.5"], "double"), (["1", "02"], "string"), ([""], "string")]
)
def test_types_are_those_that_pandas_would_give_but_for_leading_zeros(cells: list[str], kind: str) -> None:
    column, empty = typed(cells)
    assert str(column.type) == kind
    assert empty == cells.count("")
    if "02" not in cells and any(cells):
        known = pd.to_numeric(pd.Series([cell or None for cell in cells]))
        assert column.to_pylist() == [None if np.isnan(value) else value for value in known]


def test_images_that_are_not_there_cannot_be_decoded(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "scans/4.png").unlink()
    said = r"scans/4\.png, row 5 of .*pets\.csv cannot be decoded \(it cannot be read: No such file .*on_bad_image=skip"
    refused(said, tmp_path, "table", path=pets)
    data = whole(tmp_path, path=pets, on_bad_image="skip")
    assert data.skipped == (f"scans/4.png, row 5 of {pets}",)
    assert set(by_pixels(data)) == set(range(20)) - {4}


def test_a_changed_table_is_read_again(pets: Path, tmp_path: Path) -> None:
    first = whole(tmp_path, path=pets)
    assert whole(tmp_path, path=pets).digest == first.digest
    pets.write_text(pets.read_text().replace("cat", "lion"))
    assert whole(tmp_path, path=pets).train.class_names == ("dog", "lion")


REFUSED: dict[str, tuple[str, str]] = {
    "empty": ("", r"is empty; its first line names the columns"),
    "short": ("file,label\nscans/0.png\n", r"row 1 of .*t\.csv has 1 cells, its first line 2"),
    "none": (
        "what,label\nscans/0.png,1\n",
        r"has no column of images; it has what, label: name one in data\.columns\.image, what say",
    ),
    "no image": (
        "file,label\nx.png,1\n",
        r"no cell of column file of .*t\.csv names an image below .*; the first is 'x\.png'",
    ),
    "twice": ("file,label\nscans/0.png,1\n0,1\n", r"rows 1 and 2 of .*t\.csv name the same image, 0; allowed: one row"),
    "quote": ('file,label\n"scans/0.png,1\n', r"cannot be read as a table \(unexpected end of data\)"),
    "two columns": ("file,file,label\nscans/0.png,a,1\n", r"has the column file twice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_of_images_is_one_line(pets: Path, tmp_path: Path, name: str) -> None:
    text, said = REFUSED[name]
    (tmp_path / "t.csv").write_text(text)
    refused(said, tmp_path, "table", path=tmp_path / "t.csv")


def test_other_files_and_folders_are_one_line(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("file,label\nscans/0.png,Köln\n".encode("latin-1"))
    refused(r"latin\.csv is not UTF-8 \(.*\); save it as UTF-8", tmp_path, "table", path=tmp_path / "latin.csv")
    refused(r"has no train\.csv; found latin\.csv, pets\.csv; give one of them", tmp_path, "table")
    refused(r"is one file, allowed: null", tmp_path, "table", path=pets, test_split="val")
    wrong = {"path": pets, "columns": {"client": "ward"}}
    refused(r"data\.columns\.client: found 'ward'; .* has the columns file, label", tmp_path, "table", **wrong)
    (tmp_path / "x.xlsx").write_bytes(b"x")
    refused(r"x\.xlsx is no \.csv or \.tsv file; save it as CSV", tmp_path, "table", path=tmp_path / "x.xlsx")
    for name in ("parquet", "imagefolder"):
        refused(r"; data\.name=table reads it, and the images that it names", tmp_path, name, path=pets)


def test_a_run_an_evaluation_and_an_embedding(pets: Path, tmp_path: Path, call: Call) -> None:
    data = {"name": "table", "path": str(pets), "limit": None, "test_limit": None, "columns": {"client": "hospital"}}
    changes = {f"data__{key}": value for key, value in data.items()} | {"data__partition": {"name": "natural"}}
    few = {"clients__count": 3, "train__batch_size": 2, "train__rounds": 1}
    run_locally(tiny("fedsimclr", **changes, **few), tmp_path / "run")
    status, out, _ = call("evaluate", str(tmp_path / "run"), "--data", str(pets), "--protocol", "knn")
    assert (status, "knn" in out) == (0, True)
    status, _, err = call("embed", str(tmp_path / "run"), str(pets), "--out", "e.parquet", "--id", "file")
    assert status == 0, err
    made = pq.read_table(tmp_path / "e.parquet").to_pylist()
    assert [row["id"] for row in made] == [f"scans/{k}.png" for k in range(20)]
    assert [row["class"] for row in made] == [CLASSES[k % 2] for k in range(20)]
    config = SourceConfig.model_validate({"name": "table", "path": pets, "image_size": 8})
    assert [name for name, _ in catalogued(config).read()] == [f"scans/{k}.png" for k in range(20)]
    assert located(str(pets), "--data").name == "table"
