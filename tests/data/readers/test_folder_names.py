"""Names of classes and clients that differ by nothing but Unicode's normal form are one name, and two folders of one
name side by side are refused."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import build
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.federated.federation import load_federation
from tests.data.columns import read, write

ONE, TWO = (unicodedata.normalize(form, "Gänse") for form in ("NFC", "NFD"))
HERE, THERE = (unicodedata.normalize(form, "Köln") for form in ("NFC", "NFD"))


def put(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(root / name)
    return root


def config(path: Path, layout: str) -> SourceConfig:
    return SourceConfig.model_validate({"name": "imagefolder", "path": path, "layout": layout, "image_size": 8})


def folder(path: Path, layout: str = "classes") -> Dataset:
    return load(config(path, layout), path.parent / "cache")


def test_the_two_spellings_differ() -> None:
    assert ONE != TWO
    assert len(TWO) == len(ONE) + 1


def test_a_class_is_the_same_in_train_and_test(tmp_path: Path) -> None:
    root = put(tmp_path / "d", f"train/{TWO}/0.png", "train/Hund/1.png", f"test/{ONE}/2.png", f"val/{TWO}/3.png")
    data = folder(root)
    assert data.train.class_names == (ONE, "Hund")
    assert data.test.labels.tolist() == [0]
    assert catalogued(config(root, "classes")).class_names == (ONE, "Hund")


@pytest.mark.parametrize("within", [False, True])
def test_clients_and_their_classes_are_the_same_too(tmp_path: Path, within: bool) -> None:
    def at(split: str, client: str) -> str:
        return f"{client}/{split}" if within else f"{split}/{client}"

    train = [f"{at('train', THERE)}/{TWO}/0.png", f"{at('train', 'Bonn')}/{ONE}/1.png"]
    root = put(tmp_path / "d", *train, f"{at('test', THERE if within else HERE)}/{ONE}/2.png")
    data = folder(root, "clients")
    assert (data.train.class_names, data.train.client_names) == ((ONE,), ("Bonn", HERE))
    assert data.train.labels.tolist() == [0, 0]
    assert data.test.clients is not None
    assert data.test.clients.tolist() == [1]


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("classes", (f"train/{ONE}/0.png", f"train/{TWO}/1.png", f"test/{ONE}/2.png")),
        ("classes", (f"train/{ONE}/0.png", f"test/{ONE}/1.png", f"test/{TWO}/2.png")),
        ("classes", (*(f"{ONE}/{number}.png" for number in range(9)), f"{TWO}/9.png")),
        ("clients", (f"train/{HERE}/a/0.png", f"train/{THERE}/a/1.png", "test/a/2.png")),
        ("clients", (f"train/Bonn/{ONE}/0.png", f"train/Bonn/{TWO}/1.png", f"test/{ONE}/2.png")),
        ("clients", (f"{HERE}/train/a/0.png", f"{THERE}/train/a/1.png", f"{HERE}/test/a/2.png")),
        ("clients", (f"Bonn/train/{ONE}/0.png", f"Bonn/train/{TWO}/1.png", f"Bonn/test/{ONE}/2.png")),
    ],
)
def test_two_folders_that_become_one_are_refused(tmp_path: Path, layout: str, names: tuple[str, ...]) -> None:
    root = put(tmp_path / "d", *names)
    if len({path.name for path in root.rglob("*") if path.is_dir()} & {ONE, TWO, HERE, THERE}) < 2:
        pytest.skip("the file system keeps one of the two spellings")
    with pytest.raises(UserError, match=r"^data\.path: .* holds two folders called .*\(NFC and NFD\)") as error:
        folder(root, layout)
    assert "\n" not in str(error.value)


def test_folders_that_name_nothing_may_be_called_as_they_are(tmp_path: Path) -> None:
    flat = put(tmp_path / "flat", f"{ONE}/0.png", f"{TWO}/1.png")
    assert len(folder(flat, "flat").train) == 2
    deep = put(tmp_path / "deep", f"train/a/{ONE}/0.png", f"train/a/{TWO}/1.png", "test/a/2.png")
    assert folder(deep).train.labels.tolist() == [0, 0]


def test_text_in_columns_is_one_name_too(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write(root / "train.parquet", label=[ONE, TWO, "b"], hospital=[HERE, THERE, HERE])
    write(root / "test.parquet", label=[TWO, ONE, "b"], hospital=[THERE, HERE, HERE])
    data = read(root, client="hospital")
    assert (data.train.class_names, data.train.client_names) == ((ONE, "b"), (HERE,))
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 0, 1]


def named(root: Path, names: list[str]) -> Path:
    """A Parquet folder whose schema names the classes."""
    labels = [0, 1, 2, 3] * 6
    for split in ("train", "test"):
        write(root / f"{split}.parquet", label=labels)
        table = pq.read_table(root / f"{split}.parquet")
        pq.write_table(table.replace_schema_metadata({"class_names": json.dumps(names)}), root / f"{split}.parquet")
    return root


def test_tasks_find_a_class_by_either_spelling(tmp_path: Path) -> None:
    for known, asked in ((ONE, TWO), (TWO, ONE), (TWO, TWO)):
        root = named(tmp_path / f"{len(known)}-{len(asked)}", [known, "b", "c", "d"])
        data = {"name": "parquet", "path": str(root), "image_size": 8, "tasks": [[asked, "b"], ["c", "d"]]}
        data["public"] = {"source": "share", "share": 0.2}
        document = {"method": {"name": "fedlinked"}, "data": data, "clients": {"count": 2}}
        federation = load_federation(build(document, {}, origin="a test"), tmp_path / "cache")
        assert federation.tasks == ((0, 1), (2, 3))


def test_two_class_names_of_a_schema_that_become_one_are_refused(tmp_path: Path) -> None:
    root = named(tmp_path / "d", [ONE, TWO, "c", "d"])
    with pytest.raises(UserError, match=r"^data\.path: two classes or clients are called .*\(NFC and NFD\)"):
        read(root)
