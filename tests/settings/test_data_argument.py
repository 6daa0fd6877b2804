"""A data set named in one word."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.sources import SOURCES
from rayfed_ssl.settings.data_argument import NEED_A_PATH, layout_in_block, parse_data_argument, title


def made(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x")
    return root


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["train/cat/x.jpg", "test/cat/y.jpg"], "imagefolder"),
        (["train.parquet", "test.parquet"], "parquet"),
        (["data/train-00000-of-00002.parquet"], "parquet"),
        (["plain_text/train.parquet"], "parquet"),
        (["train/0.parquet"], "parquet"),
        (["cat/x.jpg"], "imagefolder"),
        (["x_train.npy", "y_train.npy"], "arrays"),
        (["embeddings.npy", "cat/x.jpg"], "imagefolder"),
    ],
)
def test_a_folder_is_what_lies_in_it(files: list[str], name: str, tmp_path: Path) -> None:
    found = parse_data_argument(str(made(tmp_path / "d", *files)))
    assert (found.name, found.path) == (name, tmp_path / "d")


def test_files_names_and_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "x.parquet", "x.npz", "x.CSV", "x.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    cases: dict[str, dict[str, Any]] = {
        "x.parquet": {"name": "parquet", "path": Path("x.parquet")},
        "~/x.parquet": {"name": "parquet", "path": Path("~/x.parquet")},
        "x.npz": {"name": "arrays", "path": Path("x.npz")},
        "x.CSV": {"name": "table", "path": Path("x.CSV")},
        "x.jsonl": {"name": "table", "path": Path("x.jsonl")},
        "digits": {"name": "digits", "path": None},
        " cifar10 ": {"name": "cifar10", "path": None},
        "svhn:/data": {"name": "svhn", "path": Path("/data")},
        "hub:someone/scans": {"name": "hub", "path": Path("someone/scans")},
        "{name: parquet, path: x.parquet, columns: {label: disease}}": {"name": "parquet", "path": Path("x.parquet")},
    }
    for text, expected in cases.items():
        found = parse_data_argument(text)
        assert {"name": found.name, "path": found.path} == expected, text
    assert parse_data_argument("{name: parquet, path: x.parquet, columns: {label: disease}}").columns.label == "disease"
    made(tmp_path, "digits/train/0/x.png")
    assert parse_data_argument("digits").name == "imagefolder"  # what lies there comes before a name


def test_the_layout_of_a_note_stands_in_a_block() -> None:
    """Which is read back as that key."""
    note = "a and b are taken for classes: if they are clients, data.layout=clients"
    block = {"name": "imagefolder", "path": "my scans"}
    said, _, command = layout_in_block(note, block, "--data ").partition("clients, --data ")
    assert said == "a and b are taken for classes: if they are "
    found = parse_data_argument(*shlex.split(command))
    assert (found.layout, found.path) == ("clients", Path("my scans"))
    for other in ("scaled by data.range=[[0.0, 100.0], [2.0, 3.0]]", "the path of metadata.csv, data.group"):
        assert layout_in_block(other, block, "") == other


def test_a_title_is_read_back(tmp_path: Path) -> None:
    for text in ("digits", "hub:a/b", f"imagefolder:{tmp_path}"):
        assert title(parse_data_argument(text)) == text
        assert parse_data_argument(title(parse_data_argument(text))) == parse_data_argument(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nowhere", r"--data: found 'nowhere', which does not exist .*; must be a folder of images, a Parquet, "
                    r"\.csv, \.jsonl or \.npz file, one of digits, cifar10, .*, SOURCE:PATH such as hub:OWNER/NAME, or "
                    r"a block"),
        ("x" * 5000, r"--data: found 'xxx.*', which does not exist"),
        ("hub", r"--data: found 'hub', which does not exist"),
        ("hub:", r"--data: found 'hub:', which does not exist"),
        ("nosuch:x", r"--data: found 'nosuch:x', which does not exist"),
        ("", r"--data: found '', which does not exist"),
        ("{name: digits", r"--data: found '\{name: digits'; must be YAML"),
        ("{name:digits}", r"data\.name:digits: .*; with a blank after the colon: 'name: digits'$"),
        ("{nme: digits}", r"data\.nme: .*did you mean name\?"),
        ("{name: digit}", r"data\.name: found 'digit'; must be one of digits, .*did you mean digits\?"),
        ("{name: digits, path: x}", r"data\.path: found a value; digits reads none"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(text: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{line}") as refused:
        parse_data_argument(text, "--data")
    assert "\n" not in str(refused.value)


def test_which_sources_need_a_path_is_what_they_say() -> None:
    assert set(SOURCES) >= NEED_A_PATH
    assert "path" in SOURCES["parquet"].reads
