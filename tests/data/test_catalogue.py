"""Catalogues: every image once, with its id, label and split, from every kind of source."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import Catalogue, catalogued, of_parquet
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.readers.columns import Columns
from rayfed_ssl.data.sources import SourceConfig
from tests.data.files import HUGGING_FACE, pictures, png, put, write_parquet


def rows(images: Catalogue) -> list[tuple[str, int]]:
    """(id, label) of each image, and that as many images as labels are read."""
    ids = [name for name, _ in images.read()]
    return list(zip(ids, images.labels.tolist(), strict=True))


def folder(path: Path, **settings: object) -> Catalogue:
    return catalogued(SourceConfig(name="imagefolder", path=path, **settings))


def parquet(path: Path, id_column: str | None = None, **columns: str) -> Catalogue:
    return catalogued(SourceConfig(name="parquet", path=path, columns=Columns(**columns)), id_column=id_column)


# -- folders -----------------------------------------------------------------------------------------------------------


def test_a_folder_without_train_is_one_split_and_its_folders_are_the_classes(tmp_path: Path) -> None:
    a, b, c = pictures(3)
    put(tmp_path, {"dog/deep/1.png": a, "cat/2.png": b, "3.png": c, "cat/notes/.hidden.png": a})
    (tmp_path / "cat" / "readme.txt").write_text("no image")
    images = folder(tmp_path)
    assert rows(images) == [("3.png", -1), ("cat/2.png", 0), ("dog/deep/1.png", 1)]
    assert images.class_names == ("cat", "dog")
    assert images.splits == ()
    assert [Path(payload).read_bytes() for _, payload in images.read()] == [png(c), png(b), png(a)]


def test_a_folder_of_images_alone_is_unlabelled(tmp_path: Path) -> None:
    put(tmp_path, {"b.png": pictures(1)[0], "a.png": pictures(1)[0]})
    images = folder(tmp_path)
    assert rows(images) == [("a.png", -1), ("b.png", -1)]
    assert not images.labelled
    assert images.class_names is None


@pytest.mark.parametrize("layout", ["classes", "clients"])
def test_a_split_in_every_client_folder_is_a_split_and_no_class(tmp_path: Path, layout: str) -> None:
    put(
        tmp_path,
        {f"{place}/1.png": pictures(1)[0] for place in ("north/train/ill", "north/test/ill", "south/train/ok")},
    )
    images = folder(tmp_path, layout=layout)
    assert rows(images) == [("north/train/ill/1.png", 0), ("south/train/ok/1.png", 1), ("north/test/ill/1.png", 0)]
    assert (images.class_names, images.splits) == (("ill", "ok"), (("train", 2), ("test", 1)))


def test_train_and_test_are_splits_whatever_classes_they_hold(tmp_path: Path) -> None:
    a = pictures(1)[0]
    put(tmp_path, {"train/dog/1.png": a, "train/2.png": a, "val/dog/3.png": a, "val/newt/4.png": a, "other/5.png": a})
    images = folder(tmp_path)
    assert rows(images) == [("train/2.png", -1), ("train/dog/1.png", 0), ("val/dog/3.png", 0), ("val/newt/4.png", 1)]
    assert images.splits == (("train", 2), ("test", 2))
    only = tmp_path / "only"
    put(only, {"train/dog/1.png": a})
    assert folder(only).splits == (("train", 1),)
    put(tmp_path / "held", {"test/dog/1.png": a, "test/2.png": a})
    assert rows(folder(tmp_path / "held")) == [("test/2.png", -1), ("test/dog/1.png", 0)]
    assert folder(tmp_path / "held").splits == (("test", 2),)


def test_folders_of_clients_and_tiny_imagenets_annotations(tmp_path: Path) -> None:
    a = pictures(1)[0]
    put(tmp_path / "clients", {"train/ann/dog/1.png": a, "train/bob/2.png": a, "test/ann/dog/3.png": a})
    images = folder(tmp_path / "clients", layout="clients")
    assert rows(images) == [("train/ann/dog/1.png", 0), ("train/bob/2.png", -1), ("test/ann/dog/3.png", 0)]
    put(tmp_path / "tiny", {"train/n01/images/1.png": a, "train/n02/2.png": a, "val/images/v.png": a})
    (tmp_path / "tiny/val/val_annotations.txt").write_text("v.png\tn02\t0\t0\t9\t9\n")
    assert rows(folder(tmp_path / "tiny"))[-1] == ("val/images/v.png", 1)


def test_a_name_that_is_no_text_is_an_id_all_the_same(tmp_path: Path) -> None:
    put(tmp_path, {"a.png": pictures(1)[0]})
    try:
        os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert rows(folder(tmp_path)) == [("\\xff.png", -1)]


def test_what_is_no_image_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data\.path: found no images below .* \(known suffixes: "):
        folder(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(UserError, match=r"pipe\.png is no regular file"):
        rows(folder(tmp_path))
    (tmp_path / "pipe.png").unlink()
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    assert rows(folder(tmp_path)) == [("gone.png", -1)]  # one that cannot be decoded, like others
    put(tmp_path, {"a.png": pictures(1)[0]})
    for key in ("limit", "test_limit"):
        with pytest.raises(UserError, match=rf"^data\.{key}: found 1; every image is taken, allowed: null"):
            folder(tmp_path, **{key: 1})
    with pytest.raises(UserError, match=r"^--id: found 'x'; imagefolder has no columns"):
        catalogued(SourceConfig(name="imagefolder", path=tmp_path), id_column="x")


# -- Parquet -----------------------------------------------------------------------------------------------------------


def test_rows_of_a_parquet_file_keep_their_order_and_labels(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", pictures(20), list(range(20)))
    images = parquet(tmp_path / "x.parquet")
    assert rows(images) == [(f"x.parquet:{row}", row) for row in range(20)]
    assert images.class_names is None
    assert images.splits == ()
    assert [payload for _, payload in images.read()] == [png(pixels) for pixels in pictures(20)]


def test_ids_are_a_column_or_the_images_path_or_file_and_row(tmp_path: Path) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    encoded = [png(pixels) for pixels in pictures(3)]
    image = pa.array([{"bytes": e, "path": p} for e, p in zip(encoded, ["a.png", None, ""], strict=True)], kind)
    table = {"image": image, "patient": pa.array([7, None, 9])}
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table(table), file)
    assert [name for name, _ in rows(parquet(file))] == ["a.png", "x.parquet:1", "x.parquet:2"]
    assert [name for name, _ in rows(parquet(file, "patient"))] == ["7", "x.parquet:1", "9"]
    pq.write_table(pa.table({**table, "id": pa.array(["p", "q", "r"])}), file)
    assert [name for name, _ in rows(parquet(file))] == ["p", "q", "r"]
    with pytest.raises(UserError, match=r"^--id: found 'nobody'; .*x\.parquet has the columns image, patient, id"):
        parquet(file, "nobody")
    with pytest.raises(UserError, match=r"^--id: found 'Patients'; .*image, patient, id; did you mean patient\?$"):
        parquet(file, "Patients")
    with pytest.raises(UserError, match=r"^--id: found 'image' of type struct<.*allowed: text or integers"):
        parquet(file, "image")


def test_ids_of_tables_in_the_folders_of_splits_begin_at_the_folder(tmp_path: Path) -> None:
    put(tmp_path, {f"{split}/{k}.png": image for split in ("train", "test") for k, image in enumerate(pictures(2))})
    for split in ("train", "test"):
        (tmp_path / split / "metadata.csv").write_text("file_name,label\n0.png,a\n1.png,b\n")
    found = catalogued(SourceConfig(name="table", path=tmp_path))
    assert [name for name, _ in rows(found)] == ["train/0.png", "train/1.png", "test/0.png", "test/1.png"]


def test_labels_may_be_text_or_have_names_or_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    write_parquet(file, pictures(3), ["dog", None, "cat"])
    assert (parquet(file).labels.tolist(), parquet(file).class_names) == ([1, -1, 0], ("cat", "dog"))
    write_parquet(file, pictures(3), pa.array(["dog", None, "cat"]).dictionary_encode())
    assert parquet(file).labels.tolist() == [1, -1, 0]
    write_parquet(file, pictures(2), [1, None], metadata={"huggingface": HUGGING_FACE})
    assert (parquet(file).labels.tolist(), parquet(file).class_names) == ([1, -1], ("cat", "dog"))
    write_parquet(file, pictures(2), [1, 2], metadata={"huggingface": HUGGING_FACE})
    with pytest.raises(UserError, match="names 2 classes, found label 2"):
        parquet(file)
    write_parquet(file, pictures(2), [], label="")
    assert not parquet(file).labelled
    write_parquet(file, pictures(2), [0.5, 1.5])
    with pytest.raises(UserError, match="is of type double; labels are integers"):
        parquet(file)


def test_parts_named_after_splits_are_splits_and_others_are_not(tmp_path: Path) -> None:
    write_parquet(tmp_path / "hf/data/test-0.parquet", pictures(2), [0, 1])
    write_parquet(tmp_path / "hf/data/train-0.parquet", pictures(3), [0, 1, 0])
    write_parquet(tmp_path / "hf/data/train-1.parquet", pictures(1), [1])
    images = parquet(tmp_path / "hf")
    assert images.splits == (("train", 4), ("test", 2))
    assert [name for name, _ in rows(images)][3:5] == ["data/train-1.parquet:0", "data/test-0.parquet:0"]
    assert images.labels.tolist() == [0, 1, 0, 1, 0, 1]
    write_parquet(tmp_path / "hf/data/validation/0.parquet", pictures(1), [1])
    assert parquet(tmp_path / "hf").splits == (("train", 4), ("test", 2), ("validation", 1))
    write_parquet(tmp_path / "hf/data/more.parquet", pictures(1), [1])
    assert parquet(tmp_path / "hf").splits == ()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="found no Parquet files below"):
        parquet(tmp_path / "empty")


@pytest.mark.parametrize("name", ["parquet", "table"])
def test_a_column_of_splits_says_the_split_of_each_image(name: str, tmp_path: Path) -> None:
    cells, wanted = ["test", "Train", "", "valid", "later"], ["test", "train", None, "val", None]
    write_parquet(tmp_path / "x.parquet", pictures(5), [0, 1, 0, 1, 0], fold=cells)
    put(tmp_path, {f"{k}.png": image for k, image in enumerate(pictures(5))})
    lines = [f"{k}.png,{k % 2},{cell}\n" for k, cell in enumerate(cells)]
    (tmp_path / "x.csv").write_text("".join(["file,label,fold\n", *lines]))
    place = tmp_path / ("x.csv" if name == "table" else "x.parquet")
    plain = catalogued(SourceConfig(name=name, path=place))
    assert not plain.divided
    block = SourceConfig(name=name, path=place, columns=Columns(split="fold"), test_split="val")  # as a run has it
    images = catalogued(block)
    assert images.divided
    assert images.split_of(np.arange(5)).to_pylist() == wanted
    assert images.split_of(np.array([3, 0])).to_pylist() == ["val", "test"]
    assert rows(images) == rows(plain)  # all of them, in their own order
    with pytest.raises(UserError, match=r"^data.columns.split: found 'split'; .* has the columns"):
        catalogued(SourceConfig(name=name, path=place, columns=Columns(split="split")))


SPLITS = {  # file -> the split that it is of, as docs/data.md says
    "train.parquet": "train", "train-00000-of-00002.parquet": "train", "train_1.parquet": "train",
    "train 1.parquet": "train", "train2.parquet": "train", "training.parquet": "train",
    "training-0.parquet": "train", "train/0000.parquet": "train", "train/test-0.parquet": "train",
    "test.parquet": "test", "test-00000-of-00001-0123456789abcdef.parquet": "test", "testing.parquet": "test",
    "test/0000.parquet": "test", "validation.parquet": "validation", "validation-0.parquet": "validation",
    "val.parquet": "val", "valid.parquet": "val", "val/0.parquet": "val",
    "trainees.parquet": None, "trainA.parquet": None, "testimonials.parquet": None, "validity.parquet": None,
    "value.parquet": None, "Train.parquet": None, "training_data/a.parquet": None, "tests/a.parquet": None,
}  # fmt: skip


@pytest.mark.parametrize("name", SPLITS)
def test_run_and_embed_agree_on_which_files_are_of_a_split(name: str, tmp_path: Path) -> None:
    """Beside a training file in the folder itself each file, of its own number of rows, is what ``SPLITS`` says."""
    split = SPLITS[name]
    where = tmp_path / "d"
    beside = "test-9.parquet" if split == "train" else "train-9.parquet"
    write_parquet(where / beside, pictures(5), [0, 1, 0, 1, 0])
    write_parquet(where / name, pictures(3, seed=1), [1, 0, 1])
    counted = dict(parquet(where).splits)
    read = load(SourceConfig(name="parquet", path=where, image_size=16), tmp_path / "cache")
    if split is None:
        assert counted == {}
        assert (len(read.train), len(read.test)) == (4, 1)
        assert any(f"{name} (3 rows) is not used" in note for note in texts(read.notes))
    elif split == "train":
        assert counted == {"train": 3, "test": 5}
        assert (len(read.train), len(read.test)) == (3, 5)
    else:
        assert counted == {"train": 5, split: 3}
        assert (len(read.train), len(read.test)) == (5, 3)


def test_text_and_numbers_are_not_mixed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", pictures(2), ["cat", "dog"])
    write_parquet(tmp_path / "b.parquet", pictures(2), [0, 1])
    with pytest.raises(
        UserError, match=r"found labels that are text in one Parquet file \('cat'\), numbers in another"
    ):
        parquet(tmp_path)


def test_files_may_be_named_one_by_one(tmp_path: Path) -> None:
    files = []
    for name in ("b", "a"):
        write_parquet(tmp_path / f"{name}.parquet", pictures(1), [0])
        files.append((name, tmp_path / f"{name}.parquet"))
    assert rows(of_parquet(files, Columns())) == [("b:0", 0), ("a:0", 0)]


# -- every other source ------------------------------------------------------------------------------------------------


def test_digits_are_all_there_under_their_numbers() -> None:
    images = catalogued(SourceConfig(name="digits"))
    digits = load_digits()
    found = {
        int(name.removeprefix("digits ")): (label, pixels)
        for (name, pixels), label in zip(images.read(), images.labels, strict=True)
    }
    assert sorted(found) == list(range(1797))
    assert sum(count for _, count in images.splits) == 1797
    for row in (0, 100, 1796):
        assert found[row][0] == digits.target[row]
        assert np.array_equal(found[row][1], np.round(digits.images[row] * 255 / 16))
