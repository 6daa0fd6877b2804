"""Images in NumPy's arrays, against the arrays that the test wrote itself."""

from __future__ import annotations

import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.partition import Natural, partition
from rayfed_ssl.data.partition_base import NaturalClients
from rayfed_ssl.data.readers.arrays.files import AT_A_TIME
from rayfed_ssl.data.readers.arrays.names import parsed
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.settings.data_argument import parse_data_argument
from tests.data.files import write_parquet
from tests.tiny import run_locally, tiny

SIZE = 16


def grey(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE), dtype=np.uint8)


def colours(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)


def medmnist(path: Path, **changes: Any) -> dict[str, np.ndarray]:
    """A file as MedMNIST's are: three splits of grey images, labels (N, 1)."""
    arrays: dict[str, Any] = {}
    for seed, (split, count) in enumerate((("train", 12), ("val", 4), ("test", 6))):
        arrays |= {
            f"{split}_images": grey(count, seed),
            f"{split}_labels": np.arange(count, dtype=np.uint8)[:, None] % 3,
        }
    arrays |= changes
    arrays = {name: array for name, array in arrays.items() if array is not None}
    np.savez_compressed(path, **arrays)
    return arrays


def read(path: Path, **keys: Any) -> Dataset:
    config = {"name": "arrays", "path": path, "image_size": SIZE, "channels": 1, **keys}
    return load(SourceConfig.model_validate(config), path.parent / "cache")


def refused(match: str, path: Path, **keys: Any) -> None:
    before = set((path.parent / "cache").glob("*"))
    with pytest.raises(UserError, match=match) as error:
        read(path, **keys)
    assert "\n" not in str(error.value)
    made = [file.name for file in set((path.parent / "cache").glob("*")) - before]
    assert not [name for name in made if name.endswith("-train.arrow") or not name.endswith(".arrow")]


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# -- names and splits --------------------------------------------------------------------------------------------------


def test_medmnist_as_published(tmp_path: Path) -> None:
    arrays = medmnist(tmp_path / "m.npz")
    for _ in range(2):  # the second time from the cache
        data = read(tmp_path / "m.npz")
        np.testing.assert_array_equal(data.train.pixels[..., 0], arrays["train_images"])
        np.testing.assert_array_equal(data.test.pixels[..., 0], arrays["test_images"])
        assert data.train.labels.tolist() == arrays["train_labels"][:, 0].tolist()
        assert data.test.labels.tolist() == arrays["test_labels"][:, 0].tolist()
        assert data.train.class_names == ("0", "1", "2")
        assert texts(data.notes) == (
            "val_images (4 images) is not used: test_images is there; data.test_split=val tests on it",
        )
        assert data.names["train"].to_pylist() == [f"m.npz train_images row {row}" for row in range(12)]
    limited = read(tmp_path / "m.npz", limit=5, test_limit=2)
    np.testing.assert_array_equal(limited.train.pixels[..., 0], arrays["train_images"][:5])
    np.testing.assert_array_equal(limited.test.pixels[..., 0], arrays["test_images"][:2])
    assert any(note.startswith("test_limit: 2 of 6 test images") for note in texts(limited.notes))


def test_tests_are_on_val_without_test_and_where_it_is_asked_for(tmp_path: Path) -> None:
    arrays = medmnist(tmp_path / "m.npz")
    first = read(tmp_path / "m.npz")
    asked = read(tmp_path / "m.npz", test_split="validation")  # of the same file: another cache
    np.testing.assert_array_equal(asked.test.pixels[..., 0], arrays["val_images"])
    assert texts(asked.notes) == (
        "test_images (6 images) is not used: val_images is there; data.test_split=test tests on it",
    )
    assert read(tmp_path / "m.npz").digest == first.digest != asked.digest
    medmnist(tmp_path / "v.npz", test_images=None, test_labels=None)
    data = read(tmp_path / "v.npz")
    np.testing.assert_array_equal(data.test.pixels[..., 0], arrays["val_images"])
    assert texts(data.notes) == ()
    for name in ("dev", "train", "test"):
        with pytest.raises(UserError, match=rf"^data\.test_split: found '{name}'; .*v\.npz has val$"):
            read(tmp_path / "v.npz", test_split=name)


@pytest.mark.parametrize("names", ["x_train y_train x_test y_test", "X_train y_train X_valid y_valid"])
def test_keras_and_a_folder_of_npy_files(tmp_path: Path, names: str) -> None:
    values = [colours(8), np.arange(8) % 2, colours(4, 1), np.arange(4) % 2]
    arrays = dict(zip(names.split(), values, strict=True))
    saved(tmp_path / "k.npz", **arrays)
    (tmp_path / "folder").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    one, other = (read(tmp_path / place, channels=3) for place in ("k.npz", "folder"))
    np.testing.assert_array_equal(one.train.pixels, values[0])
    np.testing.assert_array_equal(one.test.pixels, values[2])
    assert one.digest == other.digest
    assert other.names["train"].to_pylist()[1] == f"{names.split()[0]}.npy row 1"
    assert (one.train.labels.tolist(), one.test.labels.tolist()) == (values[1].tolist(), values[3].tolist())


@pytest.mark.parametrize(
    ("images", "labels"), [("images", "labels"), ("x", "y"), ("data", "labels"), ("x_train", "y_train")]
)
def test_without_a_test_split_the_same_fifth_is_held_out_as_of_a_parquet_file(
    tmp_path: Path, images: str, labels: str
) -> None:
    pixels, numbers = colours(50), np.arange(50) % 5
    write_parquet(tmp_path / "all.parquet", pixels, numbers)
    parquet = read(tmp_path / "all.parquet", name="parquet", channels=3)
    data = read(saved(tmp_path / "a.npz", **{images: pixels, labels: numbers}), channels=3)
    for mine, theirs in ((data.train, parquet.train), (data.test, parquet.test)):
        np.testing.assert_array_equal(mine.pixels, theirs.pixels)
        np.testing.assert_array_equal(mine.labels, theirs.labels)
    held = "a fifth of each class, 10 of 50 images, is held out as test images"
    assert texts(data.notes) == (f"arrays without a test split: {held}",)
    alone = load(
        SourceConfig(name="arrays", path=tmp_path / "a.npz", image_size=SIZE), tmp_path / "cache", splits=("train",)
    )
    assert len(alone.train) == (50 if images == "x_train" else 40)  # as of Parquet parts, and of one Parquet file


def test_images_need_no_labels(tmp_path: Path) -> None:
    data = read(saved(tmp_path / "a.npz", images=grey(5)))
    assert (data.train.labels.tolist(), len(data.test), data.train.class_names) == ([-1] * 5, 0, ())
    data = read(saved(tmp_path / "b.npz", images=grey(5), labels=np.arange(5)), columns={"label": False})
    assert (data.train.labels.tolist(), len(data.test)) == ([-1] * 5, 0)
    assert texts(data.notes) == ("labels is not read; data.columns says which arrays are",)
    one_of_each = saved(tmp_path / "c.npz", images=grey(3), labels=np.arange(3))
    refused(r"c\.npz has no test images, and of no class enough images to hold a fifth out", one_of_each)


def test_columns_name_arrays_by_their_whole_name_or_beside_their_split(tmp_path: Path) -> None:
    pixels, numbers = grey(10), np.arange(10) % 2
    path = saved(tmp_path / "a.npz", arr_0=pixels, arr_1=numbers, mask=grey(10, 1))
    refused(
        r"^data\.path: .*a\.npz has no array of images; it has arr_0, arr_1, mask; allowed: train_images, val_images, "
        r"test_images; x_train, x_test; or images, x or data alone; or name them in data\.columns\.image$",
        path,
    )
    data = read(path, columns={"image": "arr_0", "label": "arr_1"})
    assert sorted(data.names["train"].to_pylist() + data.names["test"].to_pylist()) == [
        f"a.npz arr_0 row {row}" for row in range(10)
    ]
    assert texts(data.notes)[0] == "mask is not read; data.columns says which arrays are"
    refused(
        r"^data\.columns\.image: found 'scan'; .*a\.npz has the arrays arr_0, arr_1", path, columns={"image": "scan"}
    )
    both = saved(tmp_path / "b.npz", train_scan=pixels, test_scan=grey(4, 2), train_ill=numbers, test_ill=numbers[:4])
    data = read(both, columns={"image": "scan", "label": "ill"})
    np.testing.assert_array_equal(data.train.pixels[..., 0], pixels)
    np.testing.assert_array_equal(data.test.pixels[..., 0], grey(4, 2))
    assert data.test.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("images x", r"several arrays that may be its images: images, x; name those that are in data\.columns\.image"),
        ("train_images x_test", r"several arrays that may be its images: train_images, x_test"),
        ("train_images images_train", r"several arrays that may be its images: train_images, images_train"),
        ("x_train X_train", r"several arrays that may be its images: x_train, X_train"),
        ("images train_images", r"has the images images, train_images: in splits, and in none"),
        ("test_images val_images", r"has the images test_images, val_images, and none to train on"),
        ("images labels y", r"several arrays that may be its labels: labels, y; name .* data\.columns\.label"),
        ("images train_labels", r"has train_labels \(labels\) without images of the same split; it has the images i"),
        ("train_images labels", r"has labels \(labels\) without images of the same split"),
        ("train_images train_labels val_labels", r"has val_labels \(labels\) without images of the same split"),
    ],
)  # fmt: skip
def test_names_that_may_mean_two_things_are_refused(tmp_path: Path, names: str, line: str) -> None:
    path = tmp_path / "a.npz"
    saved(path, **{name: np.arange(4) if "label" in name or name == "y" else grey(4) for name in names.split()})
    refused(rf"^data\.path: .*a\.npz (has )?{line}", path)


def test_names_in_parts() -> None:
    told = {
        name: parsed(name) for name in ("train_images", "x_Test", "validation_y", "images", "train", "_train", "a_b")
    }
    assert told == {
        "train_images": ("images", "train"), "x_Test": ("x", "test"), "validation_y": ("y", "val"),
        "images": ("images", "all"), "train": ("train", "all"), "_train": ("_train", "all"), "a_b": ("a_b", "all"),
    }  # fmt: skip


# -- pixels ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", ["C", "F", "mapped"])
@pytest.mark.parametrize("axes", ["NHW", "NHW1", "N1HW", "NHW3", "N3HW"])
def test_pixels_of_every_order_of_axes(tmp_path: Path, axes: str, kind: str) -> None:
    """Rows of several blocks: more than are read at a time."""
    count = 2 * AT_A_TIME // (SIZE * SIZE) + 3
    truth = np.random.default_rng(0).integers(0, 256, (count, SIZE, SIZE, 3 if "3" in axes else 1), dtype=np.uint8)
    stored = {"NHW": truth[..., 0], "N1HW": truth.transpose(0, 3, 1, 2), "N3HW": truth.transpose(0, 3, 1, 2)}.get(
        axes, truth
    )
    stored = np.asfortranarray(stored) if kind == "F" else np.ascontiguousarray(stored)
    if kind == "mapped":
        (tmp_path / "d").mkdir()
        np.save(tmp_path / "d/x.npy", stored)
    else:
        saved(tmp_path / "d.npz", x=stored)
    data = read(tmp_path / ("d" if kind == "mapped" else "d.npz"), channels=truth.shape[3])
    np.testing.assert_array_equal(data.train.pixels, truth)


def test_transparency_and_truth_are_as_of_png_files(tmp_path: Path) -> None:
    rgba = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 4), dtype=np.uint8)
    marks = np.random.default_rng(1).random((3, SIZE, SIZE)) < 0.5
    folder = tmp_path / "png"
    for name, images in (("rgba", rgba), ("marks", marks)):
        (folder / name).mkdir(parents=True)
        for row, pixels in enumerate(images):
            Image.fromarray(pixels).save(folder / name / f"{row}.png")
        keys = {"channels": 3, "background": "white"}
        theirs = read(folder / name, name="imagefolder", **keys)
        mine = read(saved(tmp_path / f"{name}.npz", images=images), **keys)
        np.testing.assert_array_equal(mine.train.pixels, theirs.train.pixels)
        own = [note for note in mine.notes if note not in theirs.notes]
        assert [note for note in mine.notes if note in theirs.notes] == list(theirs.notes)
        assert len(own) == (name == "rgba")  # of satellites the fourth channel is not transparency
        assert all("has four channels: the fourth is taken for transparency" in note.text for note in own)
    np.testing.assert_array_equal(read(tmp_path / "marks.npz").train.pixels[..., 0], np.where(marks, 255, 0))


@pytest.mark.parametrize("kind", ["<u2", ">u2", "<i2", "<i4", "<f2", "<f4", ">f4", "<f8"])
def test_grey_images_of_high_bit_depth_are_scaled_as_such_files_are(tmp_path: Path, kind: str) -> None:
    values = np.random.default_rng(0).integers(0, 2001, (6, SIZE, SIZE)).astype(kind)
    path = saved(tmp_path / "a.npz", images=values)
    low, high = (
        values.astype(float).min(axis=(1, 2), keepdims=True),
        values.astype(float).max(axis=(1, 2), keepdims=True),
    )
    own = np.rint((values.astype(float) - low) * (255 / (high - low)))
    data = read(path)
    np.testing.assert_array_equal(data.train.pixels[..., 0], own)
    assert texts(data.notes) == (
        "6 images of more than 8 bits were scaled to 0..255, each by its own smallest and largest value",
    )
    ranged = read(path, range=[0, 1000])
    np.testing.assert_array_equal(ranged.train.pixels[..., 0], np.rint(np.clip(values.astype(float), 0, 1000) * 0.255))
    assert texts(ranged.notes)[1].startswith("6 of them have over 1% of their pixels outside data.range=[0.0, 1000.0]")
    trailing = saved(tmp_path / "b.npz", images=values[..., None])
    np.testing.assert_array_equal(read(trailing).train.pixels, data.train.pixels)


@pytest.mark.parametrize(("kind", "range"), [("float32", (0, 1)), ("uint16", (0, 65535)), ("float64", (-1, 1))])
def test_colours_of_high_bit_depth_need_a_range_that_all_channels_share(
    tmp_path: Path, kind: str, range: tuple[int, int]
) -> None:
    low, high = range
    truth = colours(4)
    values = (low + truth / 255 * (high - low)).astype(kind) if kind != "uint16" else truth.astype(kind) * 257
    path = saved(tmp_path / "a.npz", x_train=values.transpose(0, 3, 1, 2))
    line = rf"array x_train of .*a\.npz holds colours of type {kind}, of which the range cannot be told; set "
    refused(
        rf"^data\.path: {line}data\.range=percentiles, or \[low, high\], such as \[0, 1\], or convert to uint8$",
        path,
        channels=3,
    )
    spread = tuple(np.percentile(values, (0.5, 99.5), method="inverted_cdf"))
    assert read(path, channels=3, range="percentiles").range == pytest.approx(spread)
    data = read(path, channels=3, range=range)
    np.testing.assert_array_equal(data.train.pixels, truth)
    assert texts(data.notes)[0].startswith("4 images of more than 8 bits were scaled to 0..255, each by data.range=")
    half = read(path, channels=3, range=(low, (low + high) / 2))
    np.testing.assert_array_equal(half.train.pixels.max(axis=(1, 2, 3)), [255] * 4)
    assert any(
        note.startswith("4 of them have over 1% of their pixels outside data.range") for note in texts(half.notes)
    )
    with pytest.raises(UserError, match=r"data\.public\.images\.range="):
        load(SourceConfig(name="arrays", path=path), tmp_path / "cache", "data.public.images", ("train",))


@pytest.mark.parametrize(
    ("images", "line"),
    [
        (np.zeros((3, 28, 28, 28), np.uint8), r"is of shape \(3, 28, 28, 28\); .*; volumes are not read: save slices"),
        (np.zeros((3, 1, 28, 28, 28), np.uint8), r"volumes are not read"),
        (np.zeros((3, 4, 28, 28), np.uint8), r"volumes are not read"),
        (np.zeros((3, 28, 28, 2), np.uint8), r"volumes are not read"),
        (np.zeros((3, 28, 28, 8), np.uint8), r"save slices of them; data\.channels=8 reads images of 8 bands$"),
        (np.zeros((3, 784), np.uint8), r"shape \(3, 784\); .*flattened images .*images\.reshape\(-1, H, W\)"),
        (np.zeros(3, np.uint8), r"shape \(3,\); images are \(N, H, W\), "),
        (np.uint8(3), r"shape \(\); images are"),
        (np.zeros((28, 28, 3), np.uint8), r"may be one image, \(H, W, C\), or narrow grey ones"),
        (np.zeros((5, 3, 28, 3), np.uint8), r"channels may be the second axis or the last"),
        (np.zeros((0, 28, 28), np.uint8), r"shape \(0, 28, 28\): it holds no pixels"),
        (np.zeros((3, 0, 28), np.uint8), r"it holds no pixels"),
        (np.zeros((3, 28, 28), np.int64), r"is of type int64; images are uint8, bool, .*images\.astype\('uint8'\)$"),
        (np.zeros((3, 28, 28), np.int8), r"is of type int8; .*astype"),
        (np.zeros((3, 28, 28), np.complex64), r"is of type complex64; images are uint8, bool, uint16, .*float64$"),
        (np.zeros((3, 28, 28), "U3"), r"is of type str96; images are"),
        (np.zeros((3, 28, 28), "M8[s]"), r"is of type datetime64\[s\]; images are"),
        (np.zeros(3, [("a", "u1", (8, 8))]), r"is of type void512; images are"),
        (np.zeros((3, 28, 28, 4), np.float32), r"has 4 channels of type float32; transparency is read of uint8"),
        (np.array([np.zeros((2, 2)), np.zeros((3, 3))], object), r"holds Python objects, and pickles are never loaded"),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray | np.generic) else "",
)  # fmt: skip
def test_arrays_that_are_no_images_are_refused(tmp_path: Path, images: np.ndarray, line: str) -> None:
    refused(rf"^data\.path: array images of .*a\.npz .*{line}", saved(tmp_path / "a.npz", images=images))


def test_values_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((4, SIZE, SIZE)).astype(np.float32)
    values[2, 0, 0] = np.nan
    path = saved(tmp_path / "a.npz", images=values)
    refused(r"^data\.on_bad_image: .*a\.npz images row 2 cannot be decoded \(holds NaN or infinity\)", path)
    assert read(path, on_bad_image="skip").skipped == (f"{path} images row 2",)


# -- what lies beside the images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_labels_are_read_as_a_parquet_columns_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    def of(labels: np.ndarray) -> Dataset:
        path = saved(
            tmp_path / "a.npz", train_images=grey(4), train_labels=labels.reshape(shape), test_images=grey(1, 1)
        )
        return read(path)

    for kind in ("int64", ">i4", "int8"):
        assert of(np.array([0, 2, -1, 1], kind)).train.labels.tolist() == [0, 2, -1, 1]
    for kind in ("float64", "float16", ">f4"):
        assert of(np.array([0, 2, np.nan, 1], kind)).train.labels.tolist() == [0, 2, -1, 1]
    assert of(np.array([True, False, True, True])).train.labels.tolist() == [1, 0, 1, 1]
    for kind in ("U8", "S8"):
        data = of(np.array(["nevus", "", "melanoma", "nevus"], kind))
        assert (data.train.class_names, data.train.labels.tolist()) == (("melanoma", "nevus"), [1, -1, 0, 1])
        assert texts(data.notes) == ("1 image has an empty label: unlabelled",)
    assert texts(of(np.array([0, 5, 9, 9])).notes)[0].startswith("labels are 3 of the numbers 0 to 9")


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (np.zeros((4, 14), int), r"is of shape \(4, 14\) and type int64; labels are integers from 0, or text \(several "
                                 r"labels per image and targets of a regression are not measured\): of several "
                                 r"columns each row has one 1 and zeros, unlike row 0; name another array in "
                                 r"data\.columns\.label, or read none, data\.columns\.label=false$"),
        (np.eye(4)[[0, 1, 1, 2]] + np.eye(4)[[0, 1, 3, 2]] * 0.5, r".*one 1 and zeros, unlike row 0; name"),
        (np.eye(4, dtype=int)[[0, 1, 1, 2]] | np.eye(4, dtype=int)[[0, 1, 3, 2]], r".*unlike row 2; name"),
        (np.full((4, 2), np.nan), r".*one 1 and zeros, unlike row 0; name"),
        (np.array([0.5, 1, 1, 1]), r"is of type double; labels are integers from 0, or text \(several labels per"),
        (np.array([0, -2, 1, 1]), r"holds the label -2; allowed: 0 to 1048575"),
        (np.array([0, 2**63, 1, 1], np.uint64), r"holds the label 9223372036854775808; allowed"),
        (np.zeros(3, int), r"has 3 labels, train_images 4 images; allowed: as many$"),
        (np.int64(3), r"is of shape \(\) and type int64; labels are"),
        (np.zeros(4, complex), r"is of shape \(4,\) and type complex128; labels are"),
        (np.zeros(4, "M8[D]"), r"is of shape \(4,\) and type datetime64\[D\]; labels are"),
        (np.array([b"\xff"] * 4), r"holds text that is not UTF-8"),
        (np.array(["a", "b", None, "a"], object), r"holds Python objects, and pickles are never loaded; save numbers "
                                                  r"or text: .*labels\.astype\(str\)"),
    ],
    ids=range(13),
)  # fmt: skip
def test_labels_that_are_none_are_refused(tmp_path: Path, labels: np.ndarray, line: str) -> None:
    path = saved(tmp_path / "a.npz", train_images=grey(4), train_labels=labels, test_images=grey(2))
    refused(rf"^data\.path: array train_labels of .*a\.npz {line}", path)
    if labels.dtype != object:
        assert len(read(path, columns={"label": False}).train) == 4


def test_labels_of_tests_fit_those_of_training(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    medmnist(path, test_labels=np.array([0, 1, 2, 3, 0, 1]))
    refused(r"array test_images of .*m\.npz holds the label 3, which no training image has", path)
    medmnist(path, test_labels=np.array(list("aabbcc")))
    told = (
        r"labels that are text in one array \('a'\), numbers in another \(2\); allowed: text in all, or numbers in all$"
    )
    refused(rf"^data\.path: found {told}", path)
    medmnist(path, val_labels=np.array(list("abcd")))
    assert len(read(path).train) == 12  # nobody reads it


def test_an_array_says_who_holds_an_image(tmp_path: Path) -> None:
    clients = np.array(["west", "east", "", "east"] * 3)
    path = tmp_path / "m.npz"
    medmnist(path, train_clients=clients, test_clients=np.array(["east", "west", "", "east", "east", "west"]))
    assert read(path).train.clients is None
    data = read(path, columns={"client": "clients"})
    assert data.train.client_names == data.test.client_names == ("east", "west")
    assert data.train.clients is not None
    assert data.test.clients is not None
    assert data.train.clients.tolist() == [1, 0, -1, 0] * 3
    assert data.test.clients.tolist() == [0, 1, -1, 0, 0, 1]
    assert "4 images have an empty client: nobody's" in texts(data.notes)
    assert [*map(len, partition(Natural(), data.train.labels, 2, 0, NaturalClients(data.train.clients)))] == [6, 3]
    refused(r"^data\.columns\.client: found 'clinic'; .* has the arrays", path, columns={"client": "clinic"})
    refused(r"^data\.columns\.label: found 'lables'; .*; did you mean labels\?$", path, columns={"label": "lables"})
    medmnist(path, train_clients=np.arange(12) / 7)
    refused(
        r"^data\.columns\.client: array train_clients of .* is of type double; clients are text or integers",
        path,
        columns={"client": "clients"},
        test_split="test",
    )


def test_a_split_without_clients_is_refused_and_one_of_tests_needs_no_groups(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    medmnist(path, train_clients=np.arange(12) % 2, train_groups=np.arange(12) // 2)
    refused(
        r"^data\.columns\.client: found 'clients', of which test_images has none; it has train_clients$",
        path,
        columns={"client": "clients"},
    )
    data = read(path, columns={"group": "groups"})
    assert data.train.groups is not None
    assert data.train.groups.tolist() == (np.arange(12) // 2).tolist()
    assert (
        "no test image has a group (data.columns.group): how many show one with training images is not known"
        in texts(data.notes)
    )


def test_images_of_one_patient_are_held_out_together(tmp_path: Path) -> None:
    patients = np.random.default_rng(0).permutation(np.repeat(np.arange(20), 4))
    path = saved(tmp_path / "a.npz", images=grey(80), labels=np.arange(80) % 2, patient=patients)
    note = (
        "array patient is not read as a group: images of one may train and test; data.columns.group=patient forbids it"
    )
    assert note in texts(read(path).notes)
    data = read(path, columns={"group": "patient"})
    rows = {split: [int(name.split()[-1]) for name in data.names[split].to_pylist()] for split in ("train", "test")}
    assert not set(patients[rows["train"]].tolist()) & set(patients[rows["test"]].tolist())
    assert len(set(patients[rows["test"]].tolist())) == 4
    assert "is held out as test images, as near as whole groups of data.columns.group allow" in texts(data.notes)[0]
    of = {str(patient): number for number, patient in enumerate(sorted(map(str, range(20))))}
    for split in ("train", "test"):
        assert getattr(data, split).groups.tolist() == [of[str(patient)] for patient in patients[rows[split]]]


# -- files -------------------------------------------------------------------------------------------------------------


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    medmnist(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(r"^data\.path: .*m\.npz as \.npz cannot be read \(File is not a zip file\); is it whole\?$", path)
    path.write_bytes(b"")
    refused(r"m\.npz as \.npz cannot be read", path)
    damaged = bytearray(whole)
    damaged[2000:2040] = bytes(40)  # within the first images
    path.write_bytes(damaged)
    refused(r"^data\.path: array train_images of .*m\.npz cannot be read \(.*\); is it whole\?$", path)
    np.savez(path, x=grey(40))
    stored = bytearray(path.read_bytes())
    stored[5000] ^= 255  # of an array that is not compressed: known by its checksum alone
    path.write_bytes(stored)
    refused(r"array x of .*m\.npz cannot be read \(Bad CRC-32", path)


@pytest.mark.parametrize("member", ["x.npy", "x"])
def test_members_that_are_no_arrays_as_they_say(tmp_path: Path, member: str) -> None:
    path = tmp_path / "a.npz"
    for content in (b"", b"text", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00" + bytes(200)):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)
        if member == "x":
            refused(r"a\.npz has no array of images; it has none", path)
        else:
            refused(r"^data\.path: array x of .*a\.npz cannot be read \(.*\); is it whole\?$", path)
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(member, b"1")
        archive.writestr(member, b"2")
    refused(rf"a\.npz has {member} twice; allowed: each name once", path)


def test_lengths_are_those_that_headers_say(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    file = tmp_path / "d/images.npy"
    np.save(file, grey(5))
    whole = file.read_bytes()
    for content in (whole[:-1], whole + b"\0", whole.replace(b"(5, 16, 16)", b"(-5,16, 16)")):
        file.write_bytes(content)
        refused(
            r"^data\.path: array images of .*images\.npy cannot be read \(.* bytes are not those of shape",
            tmp_path / "d",
        )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", whole[:-1])
    refused(r"array images of .*a\.npz cannot be read \(.* bytes are not those of shape", tmp_path / "a.npz")


def test_other_parts_of_a_file_are_noted_and_a_pickle_among_them_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    medmnist(path, info=np.array([{"a": 1}], object))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README\x1b.txt", "words")
    assert texts(read(path).notes)[1] == ("info, README\\x1b.txt are not read; data.columns says which arrays are")


def test_places_that_are_no_arrays(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(r"empty holds no \.npy files; allowed: an \.npz file, or a folder of them$", tmp_path / "empty")
    medmnist(tmp_path / "empty/m.npz")
    refused(r"; give one of its \.npz files: .*empty/m\.npz$", tmp_path / "empty")
    np.save(tmp_path / "scans.npy", grey(4))
    refused(
        r"scans\.npy is one array; allowed: an \.npz file, or a folder of \.npy files: give .*, and name the images in "
        r"data\.columns\.image=scans$",
        tmp_path / "scans.npy",
    )
    assert len(read(tmp_path, columns={"image": "scans"}).train) == 4
    refused(r"^data\.path: .*nowhere\.npz does not exist", tmp_path / "nowhere.npz")


PEAK = """
import sys, tracemalloc
from pathlib import Path
import numpy as np
from rayfed_ssl.data.readers.arrays.files import arrays_at, header

array = header("images", arrays_at(Path(sys.argv[1]), "data")[0]["images"], "data")
chosen = np.arange(0, array.shape[0], 3)
tracemalloc.start()
total = sum(int(pixels[0, 0]) for pixels in array.rows(chosen, "data"))
print(total, tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.long
def test_rows_are_mapped_or_streamed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 MB of images less than a quarter is in memory while they are read, whichever rows are wanted."""
    images = np.random.default_rng(0).integers(0, 256, (32 * 2**10, 32, 32), dtype=np.uint8)
    np.savez_compressed(tmp_path / "a.npz", images=images)
    np.save(tmp_path / "images.npy", images)
    for place in (tmp_path / "a.npz", tmp_path):
        # In a process of its own: other tests' threads allocate, too.
        ended = subprocess.run([sys.executable, "-c", PEAK, place], capture_output=True, text=True, check=True)
        total, peak = map(int, ended.stdout.split())
        assert total == images[::3, 0, 0].sum(dtype=int)
        assert peak < images.nbytes / 4
    reads = 0
    opened = zipfile.ZipFile.open

    def counted(self: zipfile.ZipFile, name: Any, *rest: Any, **more: Any) -> Any:
        nonlocal reads
        reads += name == "images.npy"
        return opened(self, name, *rest, **more)

    monkeypatch.setattr(zipfile.ZipFile, "open", counted)
    read(tmp_path / "a.npz", image_size=8)
    assert reads == 2  # its header, and its images


def test_the_cache_knows_what_changes_the_images(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d/images.npy", grey(6))
    np.save(tmp_path / "d/labels.npy", np.arange(6) % 2)
    np.save(tmp_path / "d/other_labels.npy", np.zeros(6, int))
    first = read(tmp_path / "d", columns={"label": "labels"})
    assert read(tmp_path / "d", columns={"label": "other_labels"}).digest != first.digest
    np.save(tmp_path / "d/labels.npy", 1 - np.arange(6) % 2)
    assert read(tmp_path / "d", columns={"label": "labels"}).digest != first.digest


# -- elsewhere ---------------------------------------------------------------------------------------------------------


def test_a_place_in_one_word(tmp_path: Path) -> None:
    medmnist(tmp_path / "m.npz")
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d/x_train.npy", grey(3))
    (tmp_path / "features").mkdir()
    np.save(tmp_path / "features/embeddings.npy", np.zeros((3, 8)))
    named = {place: parse_data_argument(str(tmp_path / place)).name for place in ("m.npz", "d", "features")}
    assert named == {"m.npz": "arrays", "d": "arrays", "features": "imagefolder"}
    assert parse_data_argument(f"arrays:{tmp_path / 'm.npz'}").path == tmp_path / "m.npz"


@pytest.mark.parametrize("name", ["imagefolder", "parquet"])
def test_other_sources_point_to_this_one(tmp_path: Path, name: str) -> None:
    medmnist(tmp_path / "m.npz")
    refused(r"m\.npz .*; data\.name=arrays reads it", tmp_path / "m.npz", name=name)
    (tmp_path / "d").mkdir()
    medmnist(tmp_path / "d/m.npz")
    if name == "imagefolder":
        refused(r"1 file is not read: 1 \.npz; NumPy's arrays are read with name=arrays", tmp_path / "d", name=name)


def test_every_image_is_in_the_catalogue_by_the_name_that_a_run_gives_it(tmp_path: Path) -> None:
    arrays = medmnist(tmp_path / "m.npz", train_labels=np.array(list("abc") * 4), test_labels=None, val_labels=None)
    images = catalogued(SourceConfig(name="arrays", path=tmp_path / "m.npz"))
    assert images.splits == (("train", 12), ("test", 6), ("val", 4))
    assert images.class_names == ("a", "b", "c")
    assert images.labels.tolist() == [0, 1, 2] * 4 + [-1] * 10
    found = dict(images.read())
    np.testing.assert_array_equal(np.asarray(found["m.npz val_images row 3"]), arrays["val_images"][3])
    data = read(tmp_path / "m.npz")
    assert {*data.names["train"].to_pylist(), *data.names["test"].to_pylist()} < set(found)
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d/images.npy", grey(2))
    alone = catalogued(SourceConfig(name="arrays", path=tmp_path / "d"))
    assert ([name for name, _ in alone.read()], alone.splits) == (["images.npy row 0", "images.npy row 1"], ())
    with pytest.raises(UserError, match=r"^--id: found 'id'; arrays has no columns, allowed: nothing"):
        catalogued(SourceConfig(name="arrays", path=tmp_path / "d"), id_column="id")


def test_broken_images_are_named_array_by_array(tmp_path: Path) -> None:
    bad = np.full((3, SIZE, SIZE), np.nan, np.float32)
    path = saved(tmp_path / "a.npz", train_images=bad, test_images=bad[:1])
    rows = ["train_images row 0", "train_images row 1", "train_images row 2", "test_images row 0"]
    refused("4 images cannot be decoded: " + ", ".join(rf".*a\.npz {row}" for row in rows), path)


def test_a_run_from_end_to_end(tmp_path: Path) -> None:
    """Two hospitals in one file, each a client: who held which image is what the file says."""
    clients = np.array(["north", "south"] * 40)
    arrays = {"images": colours(80), "labels": np.arange(80) // 2 % 2, "clients": clients}
    saved(tmp_path / "a.npz", **arrays)
    data = {"name": "arrays", "path": str(tmp_path / "a.npz"), "image_size": SIZE, "columns": {"client": "clients"}}
    config = tiny(
        "fedsimclr", data={**data, "partition": {"name": "natural"}}, clients__count=2, train__rounds=1,
        train__batch_size=8,
    )  # fmt: skip
    run_locally(config, tmp_path / "run")
    images = {
        (row["split"], row["index"]): row["name"] for row in pq.read_table(tmp_path / "run/images.parquet").to_pylist()
    }
    assert sorted(images.values()) == sorted(f"a.npz images row {row}" for row in range(80))
    held = pq.read_table(tmp_path / "run/partition.parquet").to_pylist()
    assert len(held) == 64
    for row in held:
        assert row["client_name"] == clients[int(images["train", row["index"]].split()[-1])]


@pytest.mark.parametrize("kind", ["<f2", ">f2", "<f4", ">f4"])
def test_floats_of_either_byte_order_are_scaled(tmp_path: Path, kind: str) -> None:
    values = grey(6).astype(kind)
    np.savez(tmp_path / "a.npz", x_train=values[:4], x_test=values[4:])
    keys = {"name": "arrays", "path": tmp_path / "a.npz", "image_size": SIZE, "channels": 1, "range": [0, 255]}
    data = load(SourceConfig.model_validate(keys), tmp_path / "cache")
    np.testing.assert_array_equal(data.train.pixels[..., 0], grey(6)[:4])
