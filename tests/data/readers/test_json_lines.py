"""Tables in JSON Lines, against the rows that the test wrote, and against pandas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rayfed_ssl.data.readers.tables.cells import read_table, typed
from tests.data.files import fetch, pictures, png, refused

PIXELS = pictures(10)
CLASSES = ("cat", "dög")


def images(folder: Path, names: Sequence[str]) -> None:
    for name, pixels in zip(names, PIXELS, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(pixels))


def test_json_lines_are_tables(tmp_path: Path) -> None:
    """``metadata.jsonl`` as of the Hugging Face Hub, read as ``pandas`` reads it."""
    images(tmp_path, [f"train/{k}.png" for k in range(6)] + [f"test/{k}.png" for k in range(4)])
    for split, count in (("train", 6), ("test", 4)):
        rows = [{"file_name": f"{k}.png", "label": CLASSES[k % 2], "boxes": [[k, 1.5]]} for k in range(count)]
        if split == "train":
            rows[4] |= {"label": None, "hospital": 7}
            rows[5] = {"hospital": 8, "file_name": "5.png"}
        text = "\n\n".join(json.dumps(row, ensure_ascii=row["file_name"] == "0.png") for row in rows)
        (tmp_path / split / "metadata.jsonl").write_text(text, encoding="utf-8")
    data = fetch(tmp_path, "table")
    assert np.array_equal(data.train.pixels, PIXELS[:6])
    assert np.array_equal(data.test.pixels, PIXELS[6:])
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 0, 1, -1, -1], [0, 1, 0, 1])
    file = tmp_path / "train" / "metadata.jsonl"
    read, truth = read_table(file, "data"), pd.read_json(file, lines=True)
    assert sorted(read.names) == sorted(truth.columns)
    assert read.lines == [1, 3, 5, 7, 9, 11]
    assert read.cells("label") == truth["label"].fillna("").tolist()
    assert typed(read.cells("hospital"))[0].to_pylist() == [None] * 4 + [7, 8]
    assert read.cells("boxes")[1] == "[[1, 1.5]]"
    owned = fetch(tmp_path, "table", path=file, columns={"client": "hospital", "label": False})
    assert owned.train.client_names == ("7", "8")
    (tmp_path / "train" / "metadata.csv").write_text("file_name\n0.png\n1.png\n")
    (tmp_path / "test" / "metadata.jsonl").unlink()
    assert len(fetch(tmp_path, "table", columns={"label": False}).train) == 2  # the CSV file where both are there


def test_a_folder_of_json_lines_is_one_of_tables_unless_it_has_csv_files(tmp_path: Path) -> None:
    images(tmp_path, [f"{k}.png" for k in range(6)])
    for split, rows in (("train", range(4)), ("test", range(4, 6))):
        (tmp_path / f"{split}.jsonl").write_text("".join(f'{{"file": "{k}.png"}}\n' for k in rows))
    data = fetch(tmp_path, "table")
    assert (len(data.train), len(data.test)) == (4, 2)
    (tmp_path / "train.csv").write_text("file\n0.png\n1.png\n2.png\n3.png\n4.png\n")
    assert len(fetch(tmp_path, "table").train) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; each of its lines is an image, as a JSON object"),
        ('{"file": "0.png"}\n["1.png"]', r"line 2 of .*\.jsonl is \[\"1\.png\"\]; allowed: a JSON object"),
        ('{"file": "0.png"}\n\n{"file": ', r"line 3 of .*\.jsonl is no JSON object \(Expecting value"),
        ('{"file": "\\ud800.png"}', "line 1 of .* is no JSON object .*surrogates not allowed"),
        ("[" * 100_000, "line 1 of .* is no JSON object"),
        ('{"label": 0}', r"has no column of images; it has label"),
    ],
)
def test_what_are_no_json_lines_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    images(tmp_path, ["0.png", "1.png"])
    (tmp_path / "x.jsonl").write_text(text)
    refused(said, tmp_path, "table", path=tmp_path / "x.jsonl")


@pytest.mark.parametrize("label", [[0, 3], {"left": 1}, []], ids=str)
def test_several_labels_of_an_image_are_no_class(tmp_path: Path, label: object) -> None:
    images(tmp_path, [f"{k}.png" for k in range(10)])
    lines = [json.dumps({"file": f"{k}.png", "label": label if k == 3 else "[sic] cat"}) for k in range(10)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    refused(
        r"^data\.path: column label of .*all\.jsonl is of lists or objects; .* data\.columns\.label=false$",
        tmp_path,
        "table",
        path=tmp_path / "all.jsonl",
    )


def test_text_that_reads_like_a_list_is_a_class(tmp_path: Path) -> None:
    images(tmp_path, [f"{k}.png" for k in range(10)])
    names = ("[0, 3]", "{}")
    lines = [json.dumps({"file": f"{k}.png", "label": names[k % 2]}) for k in range(10)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    assert fetch(tmp_path, "table", path=tmp_path / "all.jsonl").train.class_names == names
