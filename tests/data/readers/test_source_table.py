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
from rayfed_ssl.data.partition_base import NaturalClients
from rayfed_ssl.data.readers.tables.cells import typed
from rayfed_ssl.data.readers.tables.images import Places
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.settings.data_argument import parse_data_argument
from tests.command_line import Call
from tests.data.files import fetch, pictures, png, refused, training_images
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
    shards = partition(Natural(), data.train.labels, 3, 0, NaturalClients(data.train.clients, data.train.client_names))
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
        r"data\.columns\.image: line 2 of .*v\.csv names x, which may be a/x\.png or b/x\.png below .*; allowed: paths"
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
    refused(
        r"column label of .*half\.csv is of numbers with fractions; labels are integers", tmp_path, "table", path=path
    )
    assert (whole(tmp_path, path=path, columns={"label": False}).train.labels == -1).all()


@pytest.mark.parametrize(
    ("cells", "kind"), [(["1", "-2", ""], "int64"), (["1", "2.5"], "double"), (["1", "02"], "string"), ([""], "string")]
)
def test_types_are_those_that_pandas_would_give_but_for_leading_zeros(cells: list[str], kind: str) -> None:
    column, empty = typed(cells, fractions=True)
    assert str(column.type) == kind
    assert empty == cells.count("")
    if "02" not in cells and any(cells):
        known = pd.to_numeric(pd.Series([cell or None for cell in cells]))
        assert column.to_pylist() == [None if np.isnan(value) else value for value in known]


def test_images_that_are_not_there_cannot_be_decoded(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "scans/4.png").unlink()
    said = (
        r"scans/4\.png, line 6 of .*pets\.csv cannot be decoded \(it cannot be read: No such file .*on_bad_image=skip"
    )
    refused(said, tmp_path, "table", path=pets)
    data = whole(tmp_path, path=pets, on_bad_image="skip")
    assert data.skipped == (f"scans/4.png, line 6 of {pets}",)
    assert set(by_pixels(data)) == set(range(20)) - {4}


def test_a_changed_table_is_read_again(pets: Path, tmp_path: Path) -> None:
    first = whole(tmp_path, path=pets)
    assert whole(tmp_path, path=pets).digest == first.digest
    pets.write_text(pets.read_text().replace("cat", "lion"))
    assert whole(tmp_path, path=pets).train.class_names == ("dog", "lion")


REFUSED: dict[str, tuple[str, str]] = {
    "empty": ("", r"is empty; its first line names the columns"),
    "short": ("file,label\nscans/0.png\n", r"line 2 of .*t\.csv has 1 cells, its first 2"),
    "none": (
        "what,label\nscans/0.png,1\n",
        r"has no column of images; it has what, label: name one in data\.columns\.image, such as what",
    ),
    "no image": (
        "file,label\nx.png,1\n",
        r"no cell of column file of .*t\.csv names an image below .*; the first is 'x\.png'",
    ),
    "twice": (
        "file,label\nscans/0.png,1\n0,1\n",
        r"line 2 of .*t\.csv and line 3 of .*t\.csv name the same image, scans/0\.png; allowed",
    ),
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
    (tmp_path / "l.jsonl").write_text('{"file": "scans/0.png", "label": "cat", "ward": "w"}\n')
    for path, has in ((pets, "patient"), (tmp_path / "l.jsonl", "ward")):
        wrong = {"path": path, "columns": {"label": "Lable"}}
        refused(rf"columns\.label: found 'Lable'; .*{has}; did you mean label\?$", tmp_path, "table", **wrong)
    (tmp_path / "x.xlsx").write_bytes(b"x")
    refused(r"x\.xlsx is no \.csv, \.tsv or \.jsonl file; save it as CSV", tmp_path, "table", path=tmp_path / "x.xlsx")
    for suffix, reader in ((".npz", "arrays"), (".parquet", "parquet")):
        other = tmp_path / f"x{suffix}"
        other.write_bytes(b"x")
        refused(rf"\.jsonl file; data\.name={reader} reads it$", tmp_path, "table", path=other)
    refused(r"x\.parquet is no \.npz file; data\.name=parquet reads it$", tmp_path, "arrays", path=other)
    told = r"pets\.csv is no \.npz file; data\.name=table reads it, and the images that it names$"
    refused(told, tmp_path, "arrays", path=pets)
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
    assert parse_data_argument(str(pets), "--data").name == "table"


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_missing_image_is_not_one_of_the_same_name_elsewhere(tmp_path: Path) -> None:
    images(tmp_path, [f"a/{k}.png" for k in range(5)])
    images(tmp_path, [f"b/{k}.png" for k in range(4)], first=5)
    rows = [(f"{folder}/{k}.png",) for folder in "ab" for k in range(5)]
    data = whole(tmp_path, path=table(tmp_path / "t.csv", rows, "file"), on_bad_image="skip")
    assert data.skipped == (f"b/4.png, line 11 of {tmp_path / 't.csv'}",)
    assert sorted(by_pixels(data)) == list(range(9))


def test_a_test_image_is_not_taken_from_the_training_images(tmp_path: Path) -> None:
    images(tmp_path, [f"train_images/{k}.png" for k in range(8)])
    images(tmp_path, [f"test_images/{k}.png" for k in range(3)], first=8)
    table(tmp_path / "train.csv", [(k, k % 2) for k in range(8)], "id", "label")
    table(tmp_path / "test.csv", [(k, k % 2) for k in range(4)], "id", "label")
    data = whole(tmp_path, on_bad_image="skip")
    assert data.skipped == (f"3, line 5 of {tmp_path / 'test.csv'}",)
    assert [number for number, (_, split) in by_pixels(data).items() if split == "test"] == [8, 9, 10]


def test_names_with_dots_accents_and_large_suffixes(tmp_path: Path) -> None:
    names = ["1.2.840.1.5.png", "1.2.840.1.png", "e\u0301.PNG", "x.tar.png"]
    images(tmp_path, names)
    path = table(tmp_path / "t.csv", [("1.2.840.1",), ("\u00e9.png",), ("x.tar",)], "image id")
    assert sorted(by_pixels(whole(tmp_path, path=path))) == [1, 2, 3]
    path = table(tmp_path / "u.csv", [("1.2.840",), ("x.tar.png",)], "file")
    refused(r"1\.2\.840, line 2 of .*u\.csv cannot be decoded", tmp_path, "table", path=path)


def test_only_the_suffix_of_an_image_is_one(tmp_path: Path) -> None:
    """DICOM's files are often named by a number with dots."""
    for name in ("1.2.840.1", "1.2.840.1.5"):
        (tmp_path / "s").mkdir(exist_ok=True)
        (tmp_path / "s" / name).write_bytes(bytes(128) + b"DICM")
    places = Places(tmp_path, "data")
    places.__dict__["files"] = sorted((tmp_path / "s").iterdir())  # none of them is an image
    assert places.find("1.2.840.1", "t", "line 2") == tmp_path / "s/1.2.840.1"
    assert places.find("1.2.840", "t", "line 3") is None


def test_paths_from_elsewhere_are_found_by_their_ends_and_counted(tmp_path: Path) -> None:
    images(tmp_path, ["in/a/x.png", "in/b/x.png", "y.png"])
    cells = ["/kaggle/in/a/x.png", "C:\\scans\\in\\b\\x.png", "https://host/y.png"]
    data = whole(tmp_path, path=table(tmp_path / "t.csv", [(cell,) for cell in cells], "path"))
    assert sorted(by_pixels(data)) == [0, 1, 2]
    assert any(
        note.startswith("3 cells are paths from elsewhere, such as /kaggle/in/a/x.png") for note in texts(data.notes)
    )


def test_paths_from_above_the_table_lose_as_few_folders_as_lets_them_lead(tmp_path: Path) -> None:
    """As in CheXpert, whose paths begin with the name of its folder, wherever that was moved to."""
    names = [f"train/p{k}/s1/view1.png" for k in range(6)] + [f"valid/p{k}/s1/view1.png" for k in range(6, 9)]
    images(tmp_path, names)
    for split, rows in (("train", range(7)), ("valid", range(6, 9))):  # of the training rows the last has no image
        cells = [(f"CheXpert-v1.0-small/{split}/p{k}/s1/view1.png", k % 2) for k in rows]
        table(tmp_path / f"{split}.csv", cells, "Path", "label")
    data = whole(tmp_path, on_bad_image="skip")
    assert by_pixels(data) == {k: (k % 2, "train" if k < 6 else "test") for k in range(9)}
    assert len(data.skipped) == 1
    assert any(note.startswith("9 cells are paths from elsewhere, such as CheXpert-v1.0") for note in texts(data.notes))
    images(tmp_path / "two", ["a/x.png", "b/x.png"])  # without both folders a path would lead to either
    path = table(tmp_path / "two/t.csv", [("old/a/x.png",), ("old/b/x",)], "path")
    assert sorted(by_pixels(whole(tmp_path, path=path))) == [0, 1]


def test_a_column_whose_paths_lead_as_they_are_comes_before_one_whose_paths_have_to_be_cut(tmp_path: Path) -> None:
    images(tmp_path, [f"images/{k}.png" for k in range(10)])
    rows = [(f"batch2/{9 - k}.png", f"images/{k}.png", k % 2) for k in range(10)]
    path = table(tmp_path / "t.csv", rows, "file", "path", "label")
    found = by_pixels(whole(tmp_path, path=path))
    assert {k: label for k, (label, _) in found.items()} == {k: k % 2 for k in range(10)}


def test_folders_that_only_some_paths_have_are_never_cut_off(tmp_path: Path) -> None:
    """A file of the same name, of which no row speaks, is no image of theirs."""
    images(tmp_path, ["view1.png", "view2.png"])
    path = table(tmp_path / "t.csv", [(f"ds/patient{k}/view{k}.png",) for k in range(1, 4)], "path")
    refused(r"no cell of column path of .* names an image", tmp_path, "table", path=path)


def test_a_path_that_leads_nowhere_is_a_missing_image_where_others_lead(tmp_path: Path) -> None:
    images(tmp_path, ["a/x.png", "b/y.png"])
    path = table(tmp_path / "t.csv", [("a/x.png",), ("c/y.png",)], "path")
    data = whole(tmp_path, path=path, on_bad_image="skip")
    assert sorted(by_pixels(data)) == [0]
    assert data.skipped == (f"c/y.png, line 3 of {path}",)


def test_absolute_cells_of_a_table_with_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images(tmp_path, ["in/a.png", "in/b.png"])
    table(tmp_path / "in/t.csv", [(tmp_path / "in/a.png",), ("b.png",)], "path")
    monkeypatch.chdir(tmp_path)
    data = whole(tmp_path, path=Path("in/t.csv"))
    assert sorted(by_pixels(data)) == [0, 1]
    assert data.names["train"].to_pylist() == ["a.png", "b.png"]
    refused(r"line 2 of in/u\.csv and line 3 of in/u\.csv name the same image, a\.png", tmp_path, "table",
            path=table(Path("in/u.csv"), [(tmp_path / "in/a.png",), ("a",)], "path"))  # fmt: skip


def test_many_folders_with_images_of_one_name_are_found_at_once(tmp_path: Path) -> None:
    images(tmp_path, [f"{k}/image.png" for k in range(20)])
    data = whole(tmp_path, path=table(tmp_path / "t.csv", [(f"{k}/image",) for k in range(20)], "file"))
    assert sorted(by_pixels(data)) == list(range(20))


# -- two tables --------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    images(tmp_path, [f"{k}.png" for k in range(20)])
    table(tmp_path / "train.csv", [(k, k % 2, k % 3) for k in range(12)], "id", "label", "who")
    table(tmp_path / "test.csv", [(k, k % 2, "x") for k in range(12, 20)], "id", "label", "who")
    return tmp_path


def test_an_image_of_two_tables_is_refused(two: Path) -> None:
    table(two / "test.csv", [(k, k % 2) for k in range(11, 20)], "id", "label")
    refused(
        r"line 13 of .*train\.csv and line 2 of .*test\.csv name the same image, 11\.png; allowed: one row",
        two,
        "table",
    )


def test_a_column_means_the_same_in_both(two: Path) -> None:
    """Numbers in one table and text in the other: all are text."""
    table(two / "test.csv", [(k, k % 2, ("1", "x7")[k % 2]) for k in range(12, 20)], "id", "label", "who")
    notes = texts(whole(two, columns={"group": "who"}).notes)
    assert "4 of 8 test images are of a group (data.columns.group) with training images" in notes
    data = whole(two, columns={"client": "who"})
    assert data.train.client_names == ("0", "1", "2")
    assert data.test.clients.tolist() == [1, -1] * 4
    assert any(
        note.startswith("4 of 8 test images are of a client without training images (x7): ")
        for note in texts(data.notes)
    )
    table(two / "test.csv", [(k, k % 2, ("1", "X 7")[k % 2]) for k in range(12, 20)], "id", "label", "who")
    rows = [(k, k % 2, ("1", "x_7")[k % 2]) for k in range(12)]
    table(two / "train.csv", rows, "id", "label", "who")
    refused(
        r"data\.columns\.client: test images are of the client 'X 7', training images of 'x_7'; allowed: one name",
        two, "table", columns={"client": "who"},
    )  # fmt: skip
    table(two / "train.csv", [(k, k % 2, k % 3) for k in range(12)], "id", "label", "who")
    table(two / "test.csv", [(k, k % 2, ("1", "")[k % 2]) for k in range(12, 20)], "id", "label", "who")
    assert whole(two, columns={"client": "who"}).train.client_names == ("0", "1", "2")


def test_tables_in_the_folders_of_the_splits(tmp_path: Path) -> None:
    """As image folders of the Hugging Face Hub: names of one split may be those of another."""
    images(tmp_path, [f"train/{k}.png" for k in range(6)] + [f"test/{k}.png" for k in range(4)])
    images(tmp_path, ["validation/0.png"], first=10)
    for split, count in (("train", 6), ("test", 3), ("validation", 1)):
        rows = [(f"{k}.png", CLASSES[k % 2]) for k in range(count)]
        table(tmp_path / split / "metadata.csv", rows, "file_name", "label")
    data = whole(tmp_path)
    assert by_pixels(data) == {k: (k % 2, "train") for k in range(6)} | {6 + k: (k % 2, "test") for k in range(3)}
    notes = texts(data.notes)
    assert "validation/metadata.csv is not used; data.test_split=val tests on it" in notes
    assert any(note.startswith("1 image file is in no row of metadata.csv and not read") for note in notes)
    assert by_pixels(whole(tmp_path, test_split="val"))[10] == (0, "test")
    refused(r"test_split: found 'x'; .* train/metadata\.csv trains", tmp_path, "table", test_split="x")


def test_tables_that_are_not_used_or_two_are_told(two: Path) -> None:
    table(two / "val.csv", [(1, 1)], "id", "label")
    notes = texts(whole(two).notes)
    assert "val.csv is not used; data.test_split=val tests on it" in notes
    refused(r"data\.test_split: found 'train'; .*; train\.csv trains", two, "table", test_split="train")
    table(two / "Train.tsv", [(1, 1)], "id", "label")
    refused(r"has Train\.tsv and train\.csv; allowed: one table of a name", two, "table")


def test_public_images_of_a_training_table_are_all_of_them(pets: Path, tmp_path: Path) -> None:
    """As of Parquet parts; of a single table that is named itself those that are not held out, as of one file."""
    whole_folder = tmp_path / "public"
    images(whole_folder, [f"{k}.png" for k in range(20)])
    table(whole_folder / "train.csv", [(k, CLASSES[k % 2]) for k in range(20)], "id", "label")
    alone = training_images(tmp_path, "table", path=whole_folder).train
    np.testing.assert_array_equal(alone.pixels, PIXELS)
    assert alone.labels.tolist() == [k % 2 for k in range(20)]
    assert len(training_images(tmp_path, "table", path=whole_folder / "train.csv").train) == 16
    both = whole(tmp_path, path=whole_folder)
    assert (len(both.train), len(both.test)) == (16, 4)
    table(whole_folder / "test.csv", [(19, "dog")], "id", "label")
    table(whole_folder / "train.csv", [(k, CLASSES[k % 2]) for k in range(19)], "id", "label")
    np.testing.assert_array_equal(training_images(tmp_path, "table", path=whole_folder).train.pixels, PIXELS[:19])


# -- cells -------------------------------------------------------------------------------------------------------------

WRITTEN = {
    "blank lines first": "\n\nfile;label\n{0};a\n{1};b\n",
    "sep": "sep=;\nfile;label\n{0};a\n{1};b\n",
    "commas within quotes": 'file;"size, w, h";label\n{0};1;a\n{1};2;b\n',
    "spaces": 'file, label\n"{0}", "a"\n {1} , b \n   \n,\n',
    "carriage returns": "file,label\r\n{0},a\r\n{1},b\r\n",
    "nameless columns": ",file,label,\n0,{0},a,\n1,{1},b,\n",
    "a first column that names no image": "id,scan,label\nq,{0},a\nr,{1},b\n",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_tables_as_people_write_them(tmp_path: Path, name: str) -> None:
    images(tmp_path, [f"{k}.png" for k in range(20)])
    text = WRITTEN[name]
    head, body = text.split("{0}")[0], "{0}" + text.split("{0}")[1]
    start = head.rfind("\n") + 1
    lines = (head[start:] + body).splitlines(keepends=True)
    several = "".join("".join(lines[:2]).format(f"{k}.png", f"{k + 1}.png") for k in range(0, 20, 2))
    path = tmp_path / "t.csv"
    path.write_bytes((head[:start] + several + "".join(lines[2:])).encode())
    settings = {"columns": {"image": "scan"}} if name == "a first column that names no image" else {}
    data = whole(tmp_path, path=path, **settings)
    assert data.train.class_names == ("a", "b")
    assert {number: label for number, (label, _) in by_pixels(data).items()} == {k: k % 2 for k in range(20)}
    if settings:
        hint = r"no cell of column id of .* names an image below .*; column scan does: data\.columns\.image=scan"
        refused(hint, tmp_path, "table", path=path)


def test_unknown_numbers_are_empty_and_long_ones_text(tmp_path: Path) -> None:
    images(tmp_path, [f"{k}.png" for k in range(20)])
    rows = [(f"{k}.png", ("NA", "0", "1", "nan")[k % 4], f"{10**20 + k // 2}") for k in range(20)]
    data = whole(tmp_path, path=table(tmp_path / "t.csv", rows, "file", "label", "who"), columns={"group": "who"})
    assert {number: label for number, (label, _) in by_pixels(data).items()} == {
        k: (-1, 0, 1, -1)[k % 4] for k in range(20)
    }
    assert any(note.startswith("10 images have an empty label: unlabelled") for note in texts(data.notes))


def test_a_folder_that_may_not_be_read_and_a_name_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images(tmp_path, ["a.png"])
    path = table(tmp_path / "t.csv", [("a.png",), ("x" * 300,), ("",)], "file")
    data = whole(tmp_path, path=path, on_bad_image="skip")
    assert [name.rpartition(", ")[2] for name in data.skipped] == [
        f"line 3 of {path}"
    ]  # a row without any text is none
    monkeypatch.setattr(Path, "iterdir", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    refused(r"data\.path: .* cannot be read \(Permission denied\)", tmp_path, "table")


def test_a_column_that_looks_like_labels_is_named(tmp_path: Path) -> None:
    """Where no column is read as labels, the note on columns says which may be, as cells read."""
    names = [f"{number}.png" for number in range(20)]
    images(tmp_path, names)
    rows = [(name, 20 + k / 3, ("sick", "well")[k % 2], k % 5, f"note {k}") for k, name in enumerate(names)]
    table(tmp_path / "train.csv", rows, "file", "age", "diagnosis", "grade", "remark")
    (note,) = [note for note in texts(whole(tmp_path).notes) if "not read" in note]
    assert note == (
        "columns age, diagnosis, grade, remark are not read; data.columns.label, .client, .group say which are; "
        "diagnosis (2 values) or grade (5 values) may be the labels: data.columns.label=diagnosis"
    )
    (note,) = [n for n in texts(whole(tmp_path, columns={"label": "grade"}).notes) if "not read" in n]
    assert "may be the labels" not in note


def test_a_path_longer_than_the_system_allows_is_an_image_that_is_not_there(pets: Path) -> None:
    images(pets.parent / "long", [f"{k}.png" for k in range(9)])
    rows = [*((f"{k}.png", CLASSES[k % 2]) for k in range(9)), ("a/" * 2100 + "9.png", "cat")]
    file = table(pets.parent / "long" / "all.csv", rows, "file", "label")
    refused(r"^data\.on_bad_image: a/a/.*, line 11 of .* cannot be decoded", pets.parent, "table", path=file)
    assert len(fetch(pets.parent, "table", path=file, on_bad_image="skip").skipped) == 1
