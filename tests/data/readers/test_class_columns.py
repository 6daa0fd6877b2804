"""Columns that are a class each (``data.columns.label: [MEL, NV, ..]``), against pandas' and scikit-learn's reading of
the same cells, and columns that say which rows train.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.preprocessing import LabelBinarizer

from rayfed_ssl.base.notes import texts
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.readers.one_hot import labels_of, likely_classes
from rayfed_ssl.data.readers.parquet.source import parquet_source
from rayfed_ssl.data.sources import SourceConfig
from tests.command_line import Call, caller
from tests.data.files import fetch, pictures, png, refused, write_parquet

PIXELS = pictures(40)
NAMES = ["MEL", "NV", "No Finding"]
LIST = {"label": NAMES}
SEVERAL = (
    " a 1 in several columns: every combination is read as a class of its own, and naming one of them counts as wrong"
)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(tmp_path, monkeypatch, capsys)


def table(folder: Path, cells: pd.DataFrame, name: str = "t.csv", first: int = 0) -> Path:
    """A CSV file as pandas writes it, beside an image for each row, called by its number from ``first``."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + len(cells)):
        (folder / f"{number}.png").write_bytes(png(PIXELS[number]))
    names = pd.Series([f"{number}.png" for number in range(first, first + len(cells))], cells.index, name="image")
    pd.concat([names, cells], axis=1).to_csv(folder / name, index=False)
    return folder / name


def read_names(data: Dataset) -> dict[int, str | None]:
    """The number of each image -> the name of its class, None without one."""
    found: dict[int, str | None] = {}
    for part in (data.train, data.test):
        for pixels, label in zip(part.pixels, part.labels, strict=True):
            (number,) = [k for k in range(len(PIXELS)) if (PIXELS[k] == pixels).all()]
            found[number] = part.class_names[label] if label >= 0 else None
    return found


def one_hot(count: int = 30) -> pd.DataFrame:
    """A class of each row in turn, as scikit-learn writes it with floats."""
    truth = [NAMES[row % 3] for row in range(count)]
    return pd.DataFrame(LabelBinarizer().fit(NAMES).transform(truth).astype(float), columns=sorted(NAMES))[NAMES]


@pytest.mark.parametrize("kind", [float, int, bool])
def test_a_row_is_of_the_class_whose_column_has_a_1(tmp_path: Path, kind: type) -> None:
    cells = one_hot().astype(kind)
    data = fetch(tmp_path, "table", path=table(tmp_path, cells), columns=LIST)
    assert data.train.class_names == ("MEL", "NV", "No Finding")
    assert read_names(data) == dict(enumerate(cells.astype(float).idxmax(axis=1)))  # by pandas
    assert len(data.test) == 6  # a fifth of each class
    assert not [note for note in texts(data.notes) if "not read" in note or "label" in note]
    found = catalogued(SourceConfig.model_validate({"name": "table", "path": tmp_path / "t.csv", "columns": LIST}))
    assert found.class_names is not None
    assert [found.class_names[label] for label in found.labels] == [*cells.astype(float).idxmax(axis=1)]


def test_parquet_has_such_columns_too(tmp_path: Path) -> None:
    cells = one_hot()
    path = tmp_path / "x.parquet"
    write_parquet(path, PIXELS[:30], [], label="", **{name: cells[name].astype(bool) for name in NAMES})
    by_column = fetch(tmp_path, "parquet", path=path, columns=LIST)
    assert read_names(by_column) == dict(enumerate(cells.idxmax(axis=1)))
    (note,) = [note for note in texts(fetch(tmp_path, "parquet", path=path).notes) if "not read" in note]
    assert note.endswith("MEL, NV, No Finding hold one 1 in each row: 'data.columns.label=[MEL,NV,No Finding]' reads "
                         "them as classes")  # fmt: skip
    refused("columns.label: found 'DF'; .*has the columns img, MEL", tmp_path, "parquet", path=path,
            columns={"label": ["MEL", "DF"]})  # fmt: skip


def test_several_labels_are_a_class_of_their_own_and_counted(tmp_path: Path) -> None:
    """Rows without a 1, and those with a -1, are unlabelled, and a note counts both."""
    cells = one_hot().astype(int)
    cells.loc[0:9, ["MEL", "NV"]] = 1  # of ten rows; four of them are of the third class, too
    cells.loc[20, :] = 0
    cells.loc[21, "NV"] = -1
    data = fetch(tmp_path, "table", path=table(tmp_path, cells), columns=LIST)
    expected = {
        row: None if (cells.loc[row] < 0).any() else "|".join(name for name in NAMES if cells.loc[row, name]) or None
        for row in range(30)
    }
    assert read_names(data) == expected
    assert [*expected.values()].count("MEL|NV") == 7
    assert data.train.class_names == ("MEL", "MEL|NV", "MEL|NV|No Finding", "NV", "No Finding")
    notes = texts(data.notes)
    assert f"10 images have several labels,{SEVERAL}" in notes
    assert "2 images have an empty label: unlabelled" in notes


def test_columns_of_both_tables_make_the_same_classes(tmp_path: Path) -> None:
    """Where the test table lacks them, as those published without labels, the line says how to go on."""
    cells = one_hot()
    table(tmp_path, cells[:21], "train.csv")
    table(tmp_path, cells[21:], "test.csv", first=21)
    data = fetch(tmp_path, "table", columns=LIST)
    assert (len(data.train), len(data.test)) == (21, 9)
    assert read_names(data) == dict(enumerate(cells.idxmax(axis=1)))
    table(tmp_path, cells[21:][[]], "test.csv", first=21)
    said = (
        r"data\.columns\.label: found 'MEL', which .*test\.csv does not have; it has image; data\.path=.*train\.csv "
        "reads that table alone, and holds a fifth of each class out"
    )
    refused(said, tmp_path, "table", columns=LIST)
    assert len(fetch(tmp_path, "table", path=tmp_path / "train.csv", columns=LIST).test) == 3  # what it says works


ODD = {
    "a share": ([0.5, 0.0, 1.0], r"column NV of .*t\.csv holds 0\.5; allowed in columns that are a class each: 1 for"),
    "a count": ([2, 0, 1], r"column NV of .*t\.csv holds 2; allowed"),
    "text": (["yes", "no", "no"], r"column NV of .*t\.csv holds yes; allowed"),
}


@pytest.mark.parametrize("name", ODD)
def test_anything_but_0_and_1_is_one_line(tmp_path: Path, name: str) -> None:
    values, said = ODD[name]
    cells = pd.DataFrame({"MEL": [0, 1, 0], "NV": values, "No Finding": [0, 0, 1]})
    refused(rf"data\.columns\.label: {said}", tmp_path, "table", path=table(tmp_path, cells), columns=LIST)


def test_a_list_is_of_two_columns_each_once_and_not_of_arrays(tmp_path: Path, call: Call) -> None:
    for wrong in ("[MEL]", "[MEL,MEL]", "[]"):
        status, _, error = call("run", "tiny.yaml", "data.name=table", f"data.columns.label={wrong}")
        assert status == 2
        assert "data.columns.label: found [" in error
        assert "a list names two columns or more, each once" in error
    np.savez(tmp_path / "a.npz", images=PIXELS[:6], labels=np.arange(6) % 2, other=np.arange(6) % 2)
    said = r"data\.columns\.label: found a list of columns; .*a\.npz has arrays, allowed: the name of one"
    refused(said, tmp_path, "arrays", path=tmp_path / "a.npz", columns={"label": ["labels", "other"]})


# -- what is advised ---------------------------------------------------------------------------------------------------


def advised(tmp_path: Path, cells: pd.DataFrame) -> str:
    (note,) = [
        note for note in texts(fetch(tmp_path, "table", path=table(tmp_path, cells)).notes) if "not read" in note
    ]
    return note


def asked(advice: str) -> list[str]:
    """The columns that the key in a line names, as a shell and YAML read it."""
    (word,) = [word for word in shlex.split(advice) if word.startswith("data.columns.label=[")]
    return [str(name) for name in yaml.safe_load(word.partition("=")[2])]


def test_the_key_that_reads_such_columns_is_told_as_a_shell_takes_it(tmp_path: Path) -> None:
    cells = one_hot().rename(columns={"NV": "no", "MEL": "it's, a: #1"})
    note = advised(tmp_path, cells.assign(age=np.arange(30) + 0.5))
    assert "it's, a: #1, no, No Finding hold one 1 in each row: " in note
    assert asked(note) == ["it's, a: #1", "no", "No Finding"]
    data = fetch(tmp_path, "table", path=tmp_path / "t.csv", columns={"label": asked(note)})
    assert len(data.train.class_names) == 3


@pytest.mark.parametrize("ones", [0, 3])
def test_columns_of_0_and_1_are_not_advised_as_classes_where_a_row_has_not_one_1(tmp_path: Path, ones: int) -> None:
    cells = one_hot().astype(int)
    cells.loc[20, :] = [1] * ones + [0] * (3 - ones)
    note = advised(tmp_path, cells)
    assert note.endswith(
        "MEL (2 values) or NV (2 values) or No Finding (2 values) may be the labels: data.columns.label=MEL"
    )
    cells.loc[20, :] = [1, 0, 0]
    assert asked(advised(tmp_path, cells)) == NAMES


def test_columns_of_0_and_1_are_advised_only_side_by_side(tmp_path: Path) -> None:
    note = advised(tmp_path, pd.DataFrame({"smokes": [0, 1] * 15, "age": np.arange(30) + 0.5, "wart": [1, 0] * 15}))
    assert "hold one 1" not in note


def test_columns_are_judged_by_all_of_their_parts() -> None:
    def values(name: str) -> list[pa.Array]:
        return {
            "a": [pa.array([1, 0]), pa.array([0])],
            "b": [pa.array([0, 1]), pa.array([0])],
            "c": [pa.array([0, 0]), pa.array([1])],
            "d": [pa.array([1, 0]), pa.array([7])],
            "e": [pa.array([1, 1, 1])],
        }[name]

    found = likely_classes(["a", "b", "c", "d"], values, "data")
    assert found is not None
    assert (found.names, found.certain) == (["a", "b", "c"], True)
    assert likely_classes(["a", "d", "b"], values, "data") is None
    assert likely_classes(["a", "b"], values, "data") is None  # the last row has none
    assert likely_classes(["d", "e"], values, "data") is None  # one column


def test_empty_cells_are_zeros_and_minus_ones_unknown() -> None:
    columns = {
        "a": pa.chunked_array([[1.0, None, None, -1.0, float("nan")]]),
        "b": pa.chunked_array([pa.array([None, 1, None, 1, 1], pa.int8())]),
        "c": pa.chunked_array([pa.nulls(5)]),
    }
    assert labels_of(columns, "x.parquet", "data").to_pylist() == ["a", "b", None, None, "b"]


def test_names_of_class_columns_are_compared_like_other_names(tmp_path: Path) -> None:
    """Also decomposed and with blanks around them, of which no label is taken for several."""
    cells = pd.DataFrame({"Mu\u0308ller": [1, 0] * 5, "Rest": [0, 1] * 5})
    write_parquet(tmp_path / "x.parquet", PIXELS[:10], [], label="", **{name: cells[name] for name in cells})
    own = [" M\u00fcller", "Rest "]
    for source, path, names in (
        ("parquet", tmp_path / "x.parquet", [*cells]),
        ("table", table(tmp_path, cells), [*cells]),
        ("table", tmp_path / "t.csv", own),
    ):
        data = fetch(tmp_path, source, path=path, columns={"label": names})
        assert data.train.class_names == ("M\u00fcller", "Rest")
        assert not [note for note in texts(data.notes) if "several labels" in note]


def test_minus_one_is_counted_among_labels_that_are_missing(tmp_path: Path) -> None:
    """In one column, as CheXpert has it: empty is nothing, -1 uncertain; both are unlabelled."""
    cells = pd.DataFrame({"label": [1.0, 0.0, -1.0, None, -1.0, *[0.0, 1.0] * 5]})
    data = fetch(tmp_path, "table", path=table(tmp_path, cells))
    assert "3 images have an empty label: unlabelled" in texts(data.notes)
    assert int((data.train.labels < 0).sum()) == 3


def test_a_column_that_names_the_images_is_no_group_that_is_not_read(tmp_path: Path) -> None:
    """RSNA's tables call images by their patients."""
    write_parquet(tmp_path / "x.parquet", PIXELS[:6], [0, 1] * 3, column="patientId", subject=[0, 0, 1, 1, 2, 2])
    notes = texts(fetch(tmp_path, "parquet", path=tmp_path / "x.parquet", columns={"image": "patientId"}).notes)
    (note,) = [note for note in notes if "is not read as a group" in note]
    assert note.startswith("column subject is")


def test_usual_names_of_columns_of_images(tmp_path: Path) -> None:
    for name in ("img_id", "id_code", "ImgPath"):
        path = table(tmp_path, pd.DataFrame({"label": ["a", "b"] * 5}))
        path.write_text(path.read_text().replace("image", name, 1))
        assert len(fetch(tmp_path, "table", path=path).train) == 8


def test_parquet_with_paths_alone_is_told_what_makes_images_of_them(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image_path": ["x/0.png", "x/1.png"], "label": [0, 1]}), tmp_path / "x.parquet")
    said = r"it has image_path, label; where image_path names files: docs/python\.md makes one Parquet file of a table"
    refused(said, tmp_path, "parquet", path=tmp_path / "x.parquet")


# -- which rows train --------------------------------------------------------------------------------------------------


def splits(values: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"label": [f"c{row % 2}" for row in range(len(values))], "split": values})


def test_a_column_of_splits_is_told_and_read_if_asked(tmp_path: Path) -> None:
    values = ["Train"] * 12 + ["test"] * 5 + ["valid"] * 4
    path = table(tmp_path, splits(values))
    unasked = fetch(tmp_path, "table", path=path)
    assert len(unasked.test) == 4  # a fifth of each class
    said = "column split says which images train (train: 12, test: 5, val: 4 rows) and is not read; "
    assert f"{said}data.columns.split=split reads it" in texts(unasked.notes)
    for what in ("label", "client", "group"):  # it is read
        asked_so = fetch(tmp_path, "table", path=path, columns={what: "split"})
        assert not [note for note in texts(asked_so.notes) if "which images train" in note]
    data = fetch(tmp_path, "table", path=path, columns={"split": "split"})
    found = read_names(data)
    assert sorted(found) == [*range(17)]
    assert np.array_equal(data.train.pixels, PIXELS[:12])
    assert np.array_equal(data.test.pixels, PIXELS[12:17])
    notes = texts(data.notes)
    assert f"4 rows of column split of {path} are val and not used; data.test_split=val tests on them" in notes
    assert not [note for note in notes if "held out" in note or "in no row" in note]
    other = fetch(tmp_path, "table", path=path, columns={"split": "split"}, test_split="val")
    assert np.array_equal(other.test.pixels, PIXELS[17:21])


def test_a_column_of_splits_is_not_taken_for_labels(tmp_path: Path) -> None:
    frame = pd.DataFrame({"kind": ["a", "b"] * 10, "use": ["train"] * 15 + ["test"] * 5})
    (unread,) = (note for note in texts(fetch(tmp_path, "table", path=table(tmp_path, frame)).notes) if "kind" in note)
    of_labels = "data.columns.label, .client, .group say which are; kind (2 values) may be the labels"
    assert unread == f"column kind is not read; {of_labels}: data.columns.label=kind"


def test_wrong_columns_of_splits_are_one_line(tmp_path: Path) -> None:
    path = table(tmp_path, splits(["train"] * 6 + ["later"] * 2 + [""] * 2))
    refused("columns.split: column label of .* has c0, c1; allowed: train for images that train", tmp_path, "table",
            path=path, columns={"split": "label"})  # fmt: skip
    refused(r"test_split: found 'test'; column split of .* has train, later, \(empty\)", tmp_path, "table", path=path,
            columns={"split": "split"}, test_split="test")  # fmt: skip
    data = fetch(tmp_path, "table", path=path, columns={"split": "split"})
    assert (len(data.train), len(data.test)) == (4, 2)  # of the rows that train a fifth of each class is held out
    assert f"4 rows of column split of {path} are of no split and not used" in texts(data.notes)
    tests = table(tmp_path, splits(["test"] * 6 + ["val"] * 4), "tests.csv")
    assert not [note for note in texts(fetch(tmp_path, "table", path=tests).notes) if "which images train" in note]
    tests.unlink()
    table(tmp_path, splits(["train"] * 6), "train.csv")
    table(tmp_path, splits(["test"] * 4), "test.csv", first=6)
    refused(r"columns.split: found 'split'; .*test\.csv has the test images", tmp_path, "table",
            columns={"split": "split"})  # fmt: skip


@pytest.mark.parametrize("several", [False, True])
def test_a_column_of_splits_of_parquet_is_read_if_asked(tmp_path: Path, several: bool) -> None:
    values = ["Train", "test", "valid", "Train", "Train", "TEST", " train"] * 3
    labels = ["a", "b", "only val", "b", "a", "a", ""] * 3
    owners = ["north", "south", "east", "north", "south", "north", "south"] * 3
    halves = ((0, 10), (10, 21)) if several else ((0, 21),)
    for number, (low, high) in enumerate(halves):
        more = {"split": values[low:high], "owner": owners[low:high]}
        write_parquet(tmp_path / f"train-{number}.parquet", PIXELS[low:high], labels[low:high], **more)
    path = tmp_path if several else tmp_path / "train-0.parquet"
    told = texts(fetch(tmp_path, "parquet", path=path).notes)
    assert [note for note in told if note.endswith("and is not read; data.columns.split=split reads it")]
    columns = {"split": "split", "client": "owner"}
    data = fetch(tmp_path, "parquet", path=path, columns=columns)
    trains = [row for row, value in enumerate(values) if value.strip().lower() == "train"]
    tests = [row for row, value in enumerate(values) if value.lower() == "test"]
    assert np.array_equal(data.train.pixels, PIXELS[trains])
    assert np.array_equal(data.test.pixels, PIXELS[tests])
    assert data.train.class_names == ("a", "b")  # that of images which are not used is none
    assert data.train.labels.tolist() == [{"a": 0, "b": 1, "": -1}[labels[row]] for row in trains]
    assert data.test.labels.tolist() == [{"a": 0, "b": 1}[labels[row]] for row in tests]
    assert data.train.clients is not None
    assert [data.train.client_names[owner] for owner in data.train.clients] == [owners[row] for row in trains]
    assert data.names["test"][-1].as_py().endswith(f"row {tests[-1] - halves[-1][0]}")  # as the file counts
    notes = texts(data.notes)
    assert [note for note in notes if note.endswith("are val and not used; data.test_split=val tests on them")]
    assert [note for note in notes if note.startswith("3 images have an empty label")]  # of those that are used
    assert not [note for note in notes if "held out" in note or "which images train" in note]


def test_wrong_columns_of_splits_of_parquet_are_one_line(tmp_path: Path) -> None:
    path, wrong = tmp_path / "train.parquet", {"split": "split"}
    write_parquet(path, PIXELS[:10], [0, 1] * 5, split=["train"] * 6 + ["val"] * 4, part=[0] * 10)
    refused("columns.split: column part of .* is of type int64; splits are text", tmp_path, "parquet", path=path,
            columns={"split": "part"})  # fmt: skip
    refused("columns.split: found 'fold'; .* has the columns", tmp_path, "parquet", path=path,
            columns={"split": "fold"})  # fmt: skip
    refused("test_split: found 'test'; column split of .* has train, val", tmp_path, "parquet", path=path,
            columns=wrong, test_split="test")  # fmt: skip
    assert np.array_equal(fetch(tmp_path, "parquet", path=path, columns=wrong).test.pixels, PIXELS[6:10])
    write_parquet(tmp_path / "test.parquet", PIXELS[10:14], [0, 1] * 2)
    refused(r"columns.split: found 'split'; .*test\.parquet has the test images, allowed: null", tmp_path, "parquet",
            columns=wrong)  # fmt: skip
    path.unlink()
    (tmp_path / "test.parquet").unlink()
    write_parquet(path, PIXELS[:20], [0, 1] * 10, split=["train"] * 10 + [None] * 10)
    data = fetch(tmp_path, "parquet", path=path, columns=wrong)
    assert (len(data.train), len(data.test)) == (8, 2)  # of the rows that train a fifth of each class is held out
    assert [note for note in texts(data.notes) if note.startswith("10 rows") and "are of no split" in note]


def test_for_notes_no_column_of_images_or_lists_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of 65,536 rows of them may take more memory than there is."""
    path, read = tmp_path / "x.parquet", list[str]()
    other = {"mask": [b"x"] * 6, "boxes": [[0.5]] * 6, "place": [{"x": 1}] * 6, "said": ["train", "no"] * 3}
    write_parquet(path, PIXELS[:6], [0, 1] * 3, label="kind", **other)
    iter_batches = pq.ParquetFile.iter_batches

    def noted(file: pq.ParquetFile, *given: Any, columns: list[str], **named: Any) -> Any:
        read.extend(columns)
        return iter_batches(file, *given, columns=columns, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    parquet_source(path, {"train": None, "test": None}, "data")
    assert {*read} == {"said", "kind"}
