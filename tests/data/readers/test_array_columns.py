"""Arrays whose labels are a class each, and an array that says which images train and which test, against the arrays
that the test wrote itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig

SIZE, COUNT = 16, 30
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, SIZE, SIZE), dtype=np.uint8)
LABELS = np.random.default_rng(1).permutation(COUNT) % 3
SPLITS = np.array(["train", "Testing", "val", "train", "train", "holdout"] * 5)


def read(path: Path, **keys: Any) -> Dataset:
    config = SourceConfig(name="arrays", path=path, image_size=SIZE, channels=1, **keys)
    return load(config, path.parent / "cache")


def saved(path: Path, **arrays: np.ndarray) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        path.mkdir()
        for name, values in arrays.items():
            np.save(path / f"{name}.npy", values)
    return path


@pytest.mark.parametrize("kind", ["bool", "uint8", "int64", "float32", "float16", ">f8"])
def test_rows_of_zeros_and_one_1_are_the_label_of_its_place(tmp_path: Path, kind: str) -> None:
    ones = np.eye(3)[LABELS].astype(kind)
    path = saved(tmp_path / "a.npz", x_train=IMAGES[:20], y_train=ones[:20], x_test=IMAGES[20:], y_test=ones[20:])
    data = read(path)
    np.testing.assert_array_equal(data.train.labels, LABELS[:20])
    np.testing.assert_array_equal(data.test.labels, LABELS[20:])
    assert data.train.class_names == ("0", "1", "2")
    assert not [note for note in texts(data.notes) if "label" in note]


@pytest.mark.parametrize("name", ["a.npz", "folder"])
@pytest.mark.parametrize("test_split", [None, "val"])
def test_an_array_says_which_images_train_and_which_test(tmp_path: Path, name: str, test_split: str | None) -> None:
    owner = np.arange(COUNT) % 4
    path = saved(tmp_path / name, images=IMAGES, labels=LABELS, split=SPLITS.astype("S7"), site=owner)
    data = read(path, columns={"split": "split", "client": "site", "group": "site"}, test_split=test_split)
    trains, tests = SPLITS == "train", ("val" if test_split else "Testing") == SPLITS
    np.testing.assert_array_equal(data.train.pixels[..., 0], IMAGES[trains])
    np.testing.assert_array_equal(data.test.pixels[..., 0], IMAGES[tests])
    np.testing.assert_array_equal(data.train.labels, LABELS[trains])
    np.testing.assert_array_equal(data.test.labels, LABELS[tests])
    np.testing.assert_array_equal(data.train.clients, owner[trains])
    np.testing.assert_array_equal(data.train.groups, owner[trains])
    unused = "test" if test_split else "val"
    told = texts(data.notes)
    assert any(f"5 rows of column split of {path}" in note and f"are {unused} and not used" in note for note in told)
    assert any("are of no split and not used" in note for note in told)
    assert not any("not read" in note for note in told)
    assert [int(image.rsplit(" ", 1)[1]) for image in data.names["test"].to_pylist()] == np.flatnonzero(tests).tolist()
    listed = catalogued(SourceConfig(name="arrays", path=path, image_size=SIZE, channels=1, columns={"split": "split"}))
    assert list(listed.said) == [{"Testing": "test", "holdout": None}.get(cell, cell) for cell in SPLITS]
    np.testing.assert_array_equal(listed.labels, LABELS)


def test_without_a_test_split_a_fifth_of_what_trains_is_held_out(tmp_path: Path) -> None:
    said = np.where(np.arange(COUNT) < 15, "train", "")
    data = read(saved(tmp_path / "a.npz", images=IMAGES, labels=LABELS, part=said), columns={"split": "part"})
    assert (len(data.train), len(data.test)) == (12, 3)
    assert {image.tobytes() for part in (data.train, data.test) for image in part.pixels} == {
        image.tobytes() for image in IMAGES[:15]
    }


@pytest.mark.parametrize(
    ("arrays", "columns", "line"),
    [
        ({"images": IMAGES, "split": SPLITS}, {"split": "splits"}, r"found 'splits'; .* has the arrays images, split"),
        ({"x_train": IMAGES, "x_test": IMAGES, "split": SPLITS}, {"split": "split"},
         r"found 'split'; .* has the images x_train, x_test, which are of a split by their names; allowed: null$"),
        ({"images": IMAGES, "split": LABELS}, {"split": "split"}, r"split of .* is of type int64; splits are text"),
        ({"images": IMAGES, "split": SPLITS[:3]}, {"split": "split"}, r"has 3 splits, images 30 images; allowed: as"),
        ({"images": IMAGES, "split": SPLITS[None].repeat(30, 0)}, {"split": "split"},
         r"\(30, 30\) .*; splits are text, \(N,\)"),
        ({"images": IMAGES, "split": np.full(COUNT, "test")}, {"split": "split"}, r"has test; allowed: train for"),
    ],
    ids=range(6),
)  # fmt: skip
def test_an_array_that_says_no_splits_is_refused(tmp_path: Path, arrays: Any, columns: Any, line: str) -> None:
    with pytest.raises(UserError, match=rf"^data\.(columns\.split|path): .*{line}"):
        read(saved(tmp_path / "a.npz", **arrays), columns=columns)
