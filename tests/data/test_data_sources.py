"""Every source on small files written in its exact format, against pixels and labels the test wrote itself."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import socket
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pydantic import ValidationError
from torchvision import datasets

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.folder_images import every_image
from rayfed_ssl.data.sources import SourceConfig, load
from rayfed_ssl.data.store import FORMAT

SHARED = Path(__file__).parents[3] / "shared" / "data"


def pictures(count: int, size: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def fetch(tmp_path: Path, name: str, **settings):
    settings = {"image_size": 16, "path": tmp_path} | settings
    return load(SourceConfig(name=name, **settings), tmp_path / "cache")


def refused(match: str, tmp_path: Path, name: str, **settings) -> None:
    with pytest.raises(UserError, match=match) as error:
        fetch(tmp_path, name, **settings)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------------------- digits


def test_digits_are_scikit_learns(tmp_path):
    from sklearn.datasets import load_digits

    data = load(SourceConfig(name="digits"), tmp_path)
    bunch = load_digits()
    assert data.train.pixels.shape[1:] == (32, 32, 3)
    assert len(data.train) + len(data.test) == 1797
    together = np.bincount(np.concatenate([data.train.labels, data.test.labels]))
    assert np.array_equal(together, np.bincount(bunch.target))
    assert np.abs(np.bincount(data.test.labels) - 0.2 * together).max() <= 0.5
    assert data.train.class_names == tuple("0123456789")
    small = load(SourceConfig(name="digits", image_size=8), tmp_path)
    seen = {
        (*np.round(image[..., 0].ravel() * (16 / 255)).astype(int), int(label))
        for half in (small.train, small.test)
        for image, label in zip(half.pixels, half.labels, strict=True)
    }
    assert seen == {
        (*image.ravel().astype(int), int(label)) for image, label in zip(bunch.images, bunch.target, strict=True)
    }


def test_digests_tell_data_sets_apart(tmp_path):
    digests = [
        load(SourceConfig(name="digits", limit=n, image_size=8), tmp_path / where).digest
        for n, where in ((50, "a"), (50, "b"), (51, "a"))
    ]
    assert digests[0] == digests[1] != digests[2]


# --------------------------------------------------------------------------------------------------------- parquet


def write_parquet(
    path: Path, pixels, labels, column="img", label="label", metadata=None, plain=False, **beside
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = [p if isinstance(p, bytes | None) else png(p) for p in pixels]
    images = (
        pa.array(encoded, pa.binary())
        if plain
        else pa.array(
            [{"bytes": e, "path": None} for e in encoded], pa.struct({"bytes": pa.binary(), "path": pa.string()})
        )
    )
    columns = {column: images} | {name: pa.array(values) for name, values in beside.items()}
    if label:
        columns[label] = pa.array(labels)
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path, row_group_size=7)


HUGGING_FACE = json.dumps(
    {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
)


def test_parquet_in_the_hugging_face_layout(tmp_path):
    train, test = pictures(20), pictures(6, seed=1)
    for part, rows in enumerate((slice(0, 12), slice(12, 20))):
        write_parquet(
            tmp_path / f"data/train-0000{part}-of-00002.parquet",
            train[rows],
            np.arange(20)[rows] % 2,
            "image",
            metadata={"huggingface": HUGGING_FACE},
        )
    write_parquet(tmp_path / "data/validation-00000-of-00001.parquet", test, [1] * 6, "image")
    data = fetch(tmp_path, "parquet")
    assert np.array_equal(data.train.pixels, train)
    assert np.array_equal(data.test.pixels, test)
    assert data.train.labels.tolist() == [0, 1] * 10
    assert data.test.labels.tolist() == [1] * 6
    assert data.train.class_names == data.test.class_names == ("cat", "dog")
    limited = fetch(tmp_path, "parquet", limit=13, test_limit=2)
    assert np.array_equal(limited.train.pixels, train[:13])
    assert np.array_equal(limited.test.pixels, test[:2])


def test_parquet_with_plain_names_and_bytes(tmp_path):
    write_parquet(
        tmp_path / "train.parquet",
        pictures(5),
        np.array([0, 1, 2, 1, 0], np.int8),
        label="fine_label",
        metadata={"class_names": '["x", "y", "z"]'},
        plain=True,
    )
    write_parquet(tmp_path / "test.parquet", pictures(2), [2, None], label="fine_label")
    data = fetch(tmp_path, "parquet")
    assert data.train.class_names == ("x", "y", "z")
    assert data.test.labels.tolist() == [2, -1]


TEXT_TYPES = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_parquet_labels_may_be_text(tmp_path, kind):
    """Classes are numbered as folders of these names are: sorted, over both splits; null is unlabelled."""
    diagnoses, pixels = ["nevus", "Melanoma", None, "wart", "nevus"], pictures(8)
    write_parquet(tmp_path / "train-0.parquet", pixels[:3], pa.array(diagnoses[:3]).cast(kind), label="diagnosis")
    write_parquet(tmp_path / "train-1.parquet", pixels[3:5], pa.array(diagnoses[3:]).cast(kind), label="diagnosis")
    write_parquet(
        tmp_path / "test.parquet", pixels[5:], pa.array(["wart", None, "nevus"]).cast(kind), label="diagnosis"
    )
    data = fetch(tmp_path, "parquet", columns={"label": "diagnosis"})
    put(
        tmp_path / "folders",
        {f"train/{name or ''}/{n}.png": pixels[n] for n, name in enumerate(diagnoses)}
        | {"test/wart/5.png": pixels[5], "test/6.png": pixels[6], "test/nevus/7.png": pixels[7]},
    )
    folders = fetch(tmp_path, "imagefolder", path=tmp_path / "folders")
    assert data.train.class_names == data.test.class_names == folders.train.class_names == ("Melanoma", "nevus", "wart")
    assert data.train.labels.tolist() == [1, 0, -1, 2, 1]
    assert data.test.labels.tolist() == [2, -1, 1]
    for mine, theirs in ((data.train, folders.train), (data.test, folders.test)):
        assert {(image.tobytes(), int(label)) for image, label in zip(mine.pixels, mine.labels, strict=True)} == {
            (image.tobytes(), int(label)) for image, label in zip(theirs.pixels, theirs.labels, strict=True)
        }
    limited = fetch(tmp_path, "parquet", columns={"label": "diagnosis"}, limit=1)
    assert (limited.train.labels.tolist(), limited.train.class_names) == ([1], data.train.class_names)


def test_text_labels_of_a_single_parquet_file_are_split_as_their_numbers_are(tmp_path):
    pixels, numbers = pictures(50), np.arange(50) % 5
    for name, labels in (("text", [f"kind {number}" for number in numbers]), ("numbers", numbers)):
        write_parquet(tmp_path / f"{name}.parquet", pixels, labels)
    text, plain = (fetch(tmp_path, "parquet", path=tmp_path / f"{name}.parquet") for name in ("text", "numbers"))
    assert text.train.class_names == tuple(f"kind {number}" for number in range(5))
    for mine, theirs in ((text.train, plain.train), (text.test, plain.test)):
        assert np.array_equal(mine.pixels, theirs.pixels)
        assert np.array_equal(mine.labels, theirs.labels)
    write_parquet(tmp_path / "none.parquet", pixels, pa.array([None] * 50, pa.string()))
    nobody = fetch(tmp_path, "parquet", path=tmp_path / "none.parquet")
    assert (set(nobody.train.labels.tolist()), nobody.train.class_names, len(nobody.test)) == ({-1}, (), 0)


def test_a_single_parquet_file_gives_a_fixed_fifth_per_class_to_test(tmp_path):
    pixels, labels = pictures(50), np.arange(50) % 5
    write_parquet(tmp_path / "all.parquet", pixels, labels)
    data = fetch(tmp_path, "parquet", path=tmp_path / "all.parquet")
    assert np.bincount(data.train.labels).tolist() == [8] * 5
    assert np.bincount(data.test.labels).tolist() == [2] * 5
    row = {image.tobytes(): number for number, image in enumerate(pixels)}
    order = [row[image.tobytes()] for half in (data.train, data.test) for image in half.pixels]
    assert sorted(order) == list(range(50))
    assert order[:40] == sorted(order[:40])
    assert labels[order].tolist() == [*data.train.labels, *data.test.labels]
    assert data.train.class_names == tuple("01234")


def test_parquet_rows_that_cannot_be_decoded(tmp_path):
    rows = [*pictures(9), png(pictures(1, 64)[0], "JPEG")[:-300], None, *pictures(3, seed=2)]
    write_parquet(tmp_path / "train.parquet", rows, [0] * 14)
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    refused(
        r"data\.on_bad_image: 2 images cannot be decoded: .*train\.parquet row 9, .*row 10 \(the first: .*truncated",
        tmp_path,
        "parquet",
    )
    data = fetch(tmp_path, "parquet", on_bad_image="skip")
    assert len(data.train) == 12
    assert [name.rsplit("/")[-1] for name in data.skipped] == ["train.parquet row 9", "train.parquet row 10"]


@pytest.mark.parametrize("labels", ["absent", "null", "nulls"])
def test_parquet_images_need_no_labels(tmp_path, labels):
    pixels = pictures(10)
    column = {"absent": [], "null": [None] * 10, "nulls": pa.array([None] * 10, pa.int32())}[labels]
    write_parquet(tmp_path / "all.parquet", pixels, column, label="" if labels == "absent" else "label")
    data = fetch(tmp_path, "parquet", path=tmp_path / "all.parquet")
    assert data.train.labels.tolist() == [-1] * 10
    assert (data.train.class_names, len(data.test)) == ((), 0)
    assert np.array_equal(data.train.pixels, pixels)


def test_parquet_errors_name_the_file(tmp_path):
    refused(r"data\.path: not set", tmp_path, "parquet", path=None)
    refused(r"data\.path: .*nowhere does not exist", tmp_path, "parquet", path=tmp_path / "nowhere")
    refused(r"lacks its train split.*no Parquet file", tmp_path, "parquet")
    (tmp_path / "train.parquet").write_text("label,image\n0,x\n")
    refused(r"train\.parquet cannot be read as Parquet", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), [0, 0])
    refused(r"has no test images, and of no class enough images to hold a fifth out", tmp_path, "parquet")
    (tmp_path / "train.parquet").rename(tmp_path / "all.parquet")
    alone = r"; data\.path=.*/all\.parquet reads it alone, and a fifth of each class is held out as test images"
    refused(rf"lacks its train split: wanted train\*\.parquet, found all\.parquet{alone}", tmp_path, "parquet")
    write_parquet(tmp_path / "more.parquet", pictures(2), [0, 0])
    refused(r"more\.parquet; name the parts train\*\.parquet, and a fifth of each class", tmp_path, "parquet")
    for part in ("all", "more"):
        (tmp_path / f"{part}.parquet").unlink()
    (tmp_path / "train.parquet").write_text("label,image\n0,x\n")
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    refused(r"train\.parquet cannot be read as Parquet", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), [0, 0], column="photo")
    refused(r"train\.parquet has no image column \(img, image\); it has photo, label", tmp_path, "parquet")
    pq.write_table(pa.table({"img": [1, 2], "label": [0, 0]}), tmp_path / "train.parquet")
    refused(r"column img of .* is of type int64; an image is encoded bytes", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), [0.5, 1.0])
    refused(r"column label of .* is of type double; labels are integers from 0, or text", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), ["cat", "dog"])
    refused(r"labels that are text in one Parquet file, numbers in another", tmp_path, "parquet")
    write_parquet(tmp_path / "test.parquet", pictures(2), ["cat", "emu\x1b"])
    refused(r"test\.parquet holds the class emu\\x1b, which no training image has", tmp_path, "parquet")
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    write_parquet(tmp_path / "train.parquet", pictures(2), [0, 2], metadata={"class_names": '["a", "b"]'})
    refused(r"names 2 classes but holds the label 2", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), [0, 1], metadata={"class_names": "cat, dog"})
    refused(r"class names in the metadata", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", [], pa.array([], pa.int64()))
    refused(r"no training images", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), [0, 0])
    write_parquet(tmp_path / "test.parquet", [None], [0])
    refused(r"no test images .*1 cannot be decoded", tmp_path, "parquet", on_bad_image="skip")
    whole = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole[: len(whole) // 2])
    refused(r"train\.parquet cannot be read as Parquet", tmp_path, "parquet")


def test_the_cache_follows_the_files_content_and_the_settings(tmp_path):
    write_parquet(tmp_path / "train.parquet", pictures(4), [0] * 4)
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    first = fetch(tmp_path, "parquet")
    cached = set((tmp_path / "cache").glob("*.arrow"))
    times = {file: file.stat().st_mtime_ns for file in cached}
    assert len(cached) == 2
    (tmp_path / "train.parquet").touch()
    assert fetch(tmp_path, "parquet").digest == first.digest
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").glob("*.arrow")} == times
    assert fetch(tmp_path, "parquet", image_size=8).train.pixels.shape == (4, 8, 8, 3)
    write_parquet(tmp_path / "train.parquet", pictures(4, seed=9), [0] * 4)
    changed = fetch(tmp_path, "parquet")
    assert changed.digest != first.digest
    assert np.array_equal(changed.train.pixels, pictures(4, seed=9))
    for file in (tmp_path / "cache").glob("*.arrow"):  # a cut file is built again
        file.write_bytes(file.read_bytes()[:-100])
    assert fetch(tmp_path, "parquet").digest == changed.digest


# Columns by key, clients by column, and what is refused


def write_columns(path: Path, count: int, seed: int = 0, **columns) -> np.ndarray:
    pixels = pictures(count, seed=seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"scan": [png(image) for image in pixels], **columns}), path)
    return pixels


def test_a_column_says_who_holds_an_image(tmp_path):
    columns = {"image": "scan", "label": "sick", "client": "hospital"}
    write_columns(
        tmp_path / "train.parquet",
        6,
        sick=[0, 1, 0, 1, 1, 0],
        hospital=["west", "east", None, "east", "west", "\x1b[2J"],
    )
    write_columns(tmp_path / "test.parquet", 3, 1, sick=[0, 1, 1], hospital=["east", None, "west"])
    data = fetch(tmp_path, "parquet", columns=columns)
    assert data.train.group_names == data.test.group_names == ("\\x1b[2J", "east", "west")
    assert data.train.groups.tolist() == [2, 1, -1, 1, 2, 0]
    assert data.test.groups.tolist() == [1, -1, 2]
    assert data.train.labels.tolist() == [0, 1, 0, 1, 1, 0]
    assert fetch(tmp_path, "parquet", columns=columns, limit=2).train.groups.tolist() == [2, 1]
    numbers = pa.array([10, 9, 9, 10, 2, 2], pa.int16())
    write_columns(tmp_path / "one.parquet", 6, label=[0] * 6, hospital=numbers)
    data = fetch(tmp_path, "parquet", path=tmp_path / "one.parquet", columns=columns | {"label": None})
    assert data.train.group_names == ("2", "9", "10")  # by value
    rows = np.concatenate([data.train.groups, data.test.groups])
    assert np.bincount(rows).tolist() == [2, 2, 2]


def test_columns_that_are_not_there_or_do_not_fit_are_named(tmp_path):
    write_columns(tmp_path / "train.parquet", 2, label=[0, 1], hospital=["a", "b"], weight=[0.5, 1.0])
    write_columns(tmp_path / "test.parquet", 2, 1, label=[0, 1], hospital=["a", "c"], weight=[0.5, 1.0])

    def wrong(match: str, **columns: str) -> None:
        refused(match, tmp_path, "parquet", columns={"image": "scan"} | columns)

    refused(r"name one in data\.columns\.image", tmp_path, "parquet")
    wrong(r"data\.columns\.image: found 'photo'; .* has the columns scan, label, hospital, weight", image="photo")
    wrong(r"data\.columns\.label: found 'lable'", label="lable")
    wrong(r"data\.columns\.client: found 'clinic'", client="clinic")
    wrong(r"data\.columns\.client: column weight .* is of type double; clients are text or integers", client="weight")
    wrong(r"data\.columns\.client: .*test\.parquet holds the client c, which has no training image", client="hospital")
    wrong(r"column weight .* is of type double; labels are integers", label="weight")


def test_parquet_labels_are_checked_before_anything_is_as_large_as_they_are(tmp_path):
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    for labels, found in (
        (pa.array([0, 10**8]), "100000000"),
        (pa.array([0, 2**64 - 1], pa.uint64()), "18446744073709551615"),
        (pa.array([0, -2]), "-2"),
    ):
        write_parquet(tmp_path / "train.parquet", pictures(2), labels)
        refused(rf"label of .*train\.parquet holds the label {found}; allowed: 0 to 1048575", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), pa.array([0, 1], pa.uint64()))
    assert fetch(tmp_path, "parquet").train.labels.tolist() == [0, 1]


def test_parquet_test_labels_that_training_never_saw_are_refused(tmp_path):
    write_parquet(tmp_path / "train.parquet", pictures(3), [0, 2, None])
    write_parquet(tmp_path / "test.parquet", pictures(3), [0, None, 1])
    refused(r"test\.parquet holds the label 1, which no training image has", tmp_path, "parquet")


def test_a_parquet_column_twice_is_refused(tmp_path):
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    image, label = pa.array([png(p) for p in pictures(2)]), pa.array([0, 0])
    for names in (["img", "img", "label"], ["img", "label", "label"]):
        arrays = [image if name == "img" else label for name in names]
        pq.write_table(pa.Table.from_arrays(arrays, names=names), tmp_path / "train.parquet")
        refused(r"train\.parquet has the column (img|label) twice", tmp_path, "parquet")


@pytest.mark.parametrize(
    "metadata",
    [
        {"class_names": "3"},
        {"class_names": '{"a": 1, "b": 2}'},
        {"class_names": '[["a"], ["b"]]'},
        {"class_names": '"ab"'},
        {"class_names": b"\xff\xfe"},
        {"class_names": "[" * 100_000},
        {"huggingface": "[]"},
        {"huggingface": '{"info": null}'},
        {"huggingface": '{"info": {"features": {"label": {"names": 7}}}}'},
        {"huggingface": '{"info": {"features": ["label"]}}'},
    ],
)
def test_wrong_parquet_metadata_is_one_line(tmp_path, metadata):
    write_parquet(tmp_path / "train.parquet", pictures(2), [0, 1], metadata=metadata)
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 1])
    refused(r"class names in the metadata of .*train\.parquet cannot be read", tmp_path, "parquet")


def test_parquet_that_names_files_and_holds_none_is_one_line(tmp_path):
    rows = [{"bytes": None, "path": f"scans/{row}.png"} for row in range(3)]
    for split in ("train", "test"):
        table = pa.table({"image": pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))})
        pq.write_table(table.append_column("label", pa.array([0, 1, 0])), tmp_path / f"{split}.parquet")
    refused(
        r"data\.path: column image of .*train\.parquet holds paths \(scans/0\.png, \.\.\) and no bytes; write",
        tmp_path,
        "parquet",
    )


def test_the_last_row_of_parquet_may_lack_its_bytes(tmp_path):
    """It is read by itself, after 512 others: one broken image, of a column that holds bytes."""
    encoded = png(pictures(1)[0])
    rows = [{"bytes": encoded if row < 512 else None, "path": f"{row}.png"} for row in range(513)]
    for split in ("train", "test"):
        table = pa.table({"image": pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))})
        pq.write_table(table.append_column("label", pa.array([0, 1, 0] * 171)), tmp_path / f"{split}.parquet")
    refused(r"data\.on_bad_image: 2 images cannot be decoded: .*train\.parquet row 512, .*", tmp_path, "parquet")
    config = SourceConfig(name="parquet", path=tmp_path, image_size=8, on_bad_image="skip")
    found = load(config, tmp_path / "cache")
    assert (len(found.train), len(found.test), len(found.skipped)) == (512, 512, 2)


def test_bytes_in_parquet_choose_no_other_decoder(tmp_path):
    """EPS would start Ghostscript, with the file's own program."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    write_parquet(tmp_path / "train.parquet", [eps, *pictures(2)], [0, 0, 0])
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    refused(r"train\.parquet row 0 cannot be decoded .*cannot identify", tmp_path, "parquet")


@pytest.mark.parametrize("layout", ["clients", "classes"])
def test_images_beyond_the_range_are_counted_by_client(tmp_path, layout):
    """Hospital b writes 14 bits; the counts hold both splits, also when they come from the cache."""
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16
    images = {f"train/a/x/{n}.png": ramp + n for n in range(3)} | {"test/a/x/0.png": ramp, "test/b/x/0.png": ramp * 2}
    images |= {"train/b/x/0.png": ramp * 4 + 5, "train/b/x/1.png": ramp}
    images |= {"train/c/x/0.png": ramp * 2, "train/c/x/1.png": ramp * 2 + 1} if layout == "clients" else {}
    put(tmp_path, images)
    whose = "; by client: b 2, c 2" if layout == "clients" else ""
    count, scaled = (4, 9) if layout == "clients" else (2, 7)
    for _ in range(2):
        data = fetch(tmp_path, "imagefolder", channels=1, layout=layout, range=(0, 4095))
        assert data.notes == (
            f"{scaled} images of more than 8 bits were scaled to 0..255, each by data.range=[0.0, 4095.0]",
            f"{count} of them have over 1% of their pixels outside data.range=[0.0, 4095.0], and these are clipped: "
            f"their values go from 0 to {255 * 16 * 4 + 5}{whose}",
        )
    wide = fetch(tmp_path, "imagefolder", channels=1, layout=layout, range=(0, 65535))
    assert len(wide.notes) == 1


def test_deep_images_say_how_they_were_scaled(tmp_path):
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16
    put(tmp_path, {f"train/a/{n}.png": ramp + n for n in range(3)} | {"test/a/0.tif": ramp})
    data = fetch(tmp_path, "imagefolder", channels=1)
    assert data.train.pixels.shape == (3, 16, 16, 1)
    assert data.train.pixels[1].ravel().tolist() == list(range(256))
    assert data.notes == (
        "4 images of more than 8 bits were scaled to 0..255, each by its own smallest and largest value",
    )
    ranged = fetch(tmp_path, "imagefolder", channels=1, range=(0, 2 * 4080))
    assert ranged.train.pixels.max() == 128
    assert ranged.notes[0].endswith("each by data.range=[0.0, 8160.0]")
    assert ranged.digest != data.digest
    put(tmp_path / "flat", {"train/a/1.png": ramp * 0 + 5, "test/a/1.png": ramp})
    refused(
        r"train/a/1\.png cannot be decoded \(.*range cannot be told", tmp_path, "imagefolder", path=tmp_path / "flat"
    )
    put(tmp_path / "shallow", {"train/a/1.png": pictures(1)[0], "test/a/1.png": pictures(1)[0]})
    assert fetch(tmp_path, "imagefolder", path=tmp_path / "shallow").notes == ()
    refused(
        r"data\.range: found \[0\.0, 4095\.0\], but no image has more than 8 bits",
        tmp_path,
        "imagefolder",
        path=tmp_path / "shallow",
        range=(0, 4095),
    )


@pytest.mark.skipif(not SHARED.exists(), reason="the shared image files are absent")
def test_real_cifar10(tmp_path):
    data = load(SourceConfig(path=SHARED / "cifar10", limit=6000, test_limit=500), tmp_path)
    assert data.train.pixels.shape == (6000, 32, 32, 3)
    assert data.test.pixels.shape == (500, 32, 32, 3)
    counts = np.bincount(data.train.labels[:5000])
    assert (counts.min(), counts.max()) == (479, 514)  # as the files' README says of their first 5,000 rows
    assert data.train.class_names[:4] == ("airplane", "automobile", "bird", "cat")
    scaled = data.train.pixels.reshape(-1, 3).mean(axis=0) / 255
    assert scaled == pytest.approx([0.4913, 0.4821, 0.4465], abs=0.01)  # the README's means of all 50,000
    rows = pq.read_table(SHARED / "cifar10" / "train.parquet").slice(5990, 3).to_pylist()
    for offset, row in enumerate(rows):
        expected = np.asarray(Image.open(io.BytesIO(row["img"]["bytes"])).convert("RGB"))
        assert np.array_equal(data.train.pixels[5990 + offset], expected)
        assert data.train.labels[5990 + offset] == row["label"]


# --------------------------------------------------------------------------------------------------------- folders


def put(root: Path, files: dict[str, np.ndarray]) -> None:
    for name, pixels in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def test_folders_of_classes(tmp_path):
    p = pictures(8)
    put(
        tmp_path,
        {
            "train/dog/1.png": p[0],
            "train/cat/b.PNG": p[1],
            "train/cat/a.bmp": p[2],
            "train/dog/deep/2.png": p[3],
            "train/stray.png": p[4],
            "train/.hidden/x.png": p[5],
            "test/dog/t.png": p[6],
            "val/cat/t.png": p[7],
        },
    )
    (tmp_path / "train/cat/notes.txt").write_text("no image")
    data = fetch(tmp_path, "imagefolder")
    assert data.train.class_names == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 1, 1, -1]
    assert np.array_equal(data.train.pixels, p[[2, 1, 0, 3, 4]])
    assert data.train.groups is None
    assert data.test.labels.tolist() == [1]  # test/ goes before val/
    reference = datasets.ImageFolder(str(tmp_path / "train"), allow_empty=True)
    assert {"cat", "dog"} <= set(reference.classes)


def test_folders_of_clients(tmp_path):
    p = pictures(5)
    put(
        tmp_path,
        {
            "train/hospital_b/sick/1.png": p[0],
            "train/hospital_a/well/1.png": p[1],
            "train/hospital_a/sick/2.png": p[2],
            "train/hospital_b/3.png": p[3],
            "val/well/1.png": p[4],
        },
    )
    data = fetch(tmp_path, "imagefolder", layout="clients")
    assert data.train.group_names == ("hospital_a", "hospital_b")
    assert data.train.class_names == ("sick", "well")
    assert data.train.groups.tolist() == [0, 0, 1, 1]
    assert data.train.labels.tolist() == [0, 1, -1, 0]
    assert np.array_equal(data.train.pixels, p[[2, 1, 3, 0]])
    assert data.test.labels.tolist() == [1]


def test_unlabelled_folders_need_no_test_images(tmp_path):
    put(tmp_path, {f"train/{name}.jpg": image for name, image in zip("abc", pictures(3), strict=True)})
    data = fetch(tmp_path, "imagefolder")
    assert data.train.labels.tolist() == [-1] * 3
    assert data.train.class_names == ()
    assert data.test.pixels.shape == (0, 16, 16, 3)
    put(tmp_path / "by_client", {"train/x/a.png": pictures(1)[0], "train/y/b.png": pictures(1)[0]})
    data = fetch(tmp_path, "imagefolder", path=tmp_path / "by_client", layout="clients")
    assert data.train.labels.tolist() == [-1, -1]
    assert data.train.groups.tolist() == [0, 1]


def test_folders_that_are_no_classes_have_a_way_out(tmp_path):
    """Images on one level and deeper ones, of which nobody meant the folders to be classes."""
    p = pictures(6)
    put(tmp_path, {f"train/{n}.png": p[n] for n in range(4)} | {"train/nested/deep/4.png": p[4]})
    refused(
        r"has no images in test/ or val/, and labelled images need a test split; the folders in train/ are taken for "
        r"classes \(nested\), with 4 unlabelled images beside them; if they are none: data\.layout=flat; "
        r"data\.path=.*/train holds a fifth of each class out; found ",
        tmp_path,
        "imagefolder",
    )
    data = fetch(tmp_path, "imagefolder", layout="flat")
    assert np.array_equal(data.train.pixels, p[[0, 1, 2, 3, 4]])
    assert (data.train.labels.tolist(), data.train.class_names, data.train.groups) == ([-1] * 5, (), None)
    assert len(data.test) == 0
    put(tmp_path, {"test/elsewhere/5.png": p[5]})
    data = fetch(tmp_path, "imagefolder", layout="flat")
    assert (data.test.labels.tolist(), data.test.pixels.tobytes()) == ([-1], p[5].tobytes())
    put(tmp_path / "clients", {"train/north/raw/1.png": p[0], "train/north/2.png": p[1]})
    refused(
        r"the folders in the client folders of train/ are taken for classes \(raw\), with 1 unlabelled images beside "
        r"them; if they are none: data\.layout=clients_flat; ",
        tmp_path / "clients",
        "imagefolder",
        layout="clients",
    )


def test_folders_below_clients_may_mean_nothing(tmp_path):
    """Patients within hospitals: with ``clients`` they would be classes, of which a fifth is held out."""
    p = pictures(7)
    tree = {"north/p1/0.png": p[0], "north/p1/1.png": p[1], "north/p2/2.png": p[2], "south/3.png": p[3]}
    seen = {}
    for name, within in {"bare": "{}", "train": "train/{}"}.items():
        put(tmp_path / name, {within.format(file): image for file, image in tree.items()})
        data = fetch(tmp_path, "imagefolder", path=tmp_path / name, layout="clients_flat")
        assert np.array_equal(data.train.pixels, p[:4])
        assert (data.train.labels.tolist(), data.train.class_names) == ([-1] * 4, ())
        assert (data.train.groups.tolist(), data.train.group_names) == ([0, 0, 0, 1], ("north", "south"))
        assert (len(data.test), data.notes) == (0, ())
        table = every_image(tmp_path / name, "clients_flat", "data")[0]
        seen[name] = [(file.name, split, label) for file, split, label in table]
    assert seen["bare"] == [(f"{n}.png", None, None) for n in range(4)]
    assert seen["train"] == [(f"{n}.png", "train", None) for n in range(4)]
    put(tmp_path / "train", {"test/north/p9/4.png": p[4], "test/elsewhere/5.png": p[5]})
    tests = fetch(tmp_path, "imagefolder", path=tmp_path / "train", layout="clients_flat").test
    assert (tests.groups.tolist(), tests.labels.tolist()) == ([-1, 0], [-1, -1])
    put(tmp_path / "own", {"north/train/p1/0.png": p[0], "north/test/p1/1.png": p[1], "south/train/2.png": p[2]})
    data = fetch(tmp_path, "imagefolder", path=tmp_path / "own", layout="clients_flat")
    assert (data.train.groups.tolist(), data.test.groups.tolist()) == ([0, 1], [0])
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([-1, -1], [-1])
    assert {row[2] for row in every_image(tmp_path / "own", "clients_flat", "data")[0]} == {None}


def training_images(tmp_path: Path, name: str, **settings):
    config = SourceConfig(**{"name": name, "image_size": 16, "path": tmp_path} | settings)
    return load(config, tmp_path / "cache", splits=("train",))


def test_training_images_alone_need_no_test_images(tmp_path):
    """As public images: neither their labels nor a test split is read, and the whole is refused as ever."""
    p = pictures(4)
    put(tmp_path, {"train/1.png": p[0], "train/a/2.png": p[1], "train/nested/deep/3.png": p[2]})
    for _ in range(2):  # the second time from the cache
        alone = training_images(tmp_path, "imagefolder")
        assert np.array_equal(alone.train.pixels, p[:3])
        assert alone.test.pixels.shape == (0, 16, 16, 3)
        refused(r"labelled images need a test split", tmp_path, "imagefolder")
    put(tmp_path, {"test/stranger/4.png": p[3]})
    assert len(training_images(tmp_path, "imagefolder").train) == 3
    refused(r"holds the class stranger", tmp_path, "imagefolder")
    put(tmp_path, {"test/a/4.png": p[3], "test/nested/4.png": p[3]})
    (tmp_path / "test/stranger/4.png").unlink()
    assert np.array_equal(
        training_images(tmp_path, "imagefolder").train.pixels, fetch(tmp_path, "imagefolder").train.pixels
    )

    folder = tmp_path / "parquet"
    write_parquet(folder / "train.parquet", p[:3], ["b", "a", None])
    for _ in range(2):
        alone = training_images(folder, "parquet")
        assert np.array_equal(alone.train.pixels, p[:3])
        assert (alone.train.labels.tolist(), alone.train.class_names, len(alone.test)) == ([1, 0, -1], ("a", "b"), 0)
        refused(r"of no class enough images to hold a fifth out", folder, "parquet")
    write_parquet(tmp_path / "many/train.parquet", pictures(10), [0] * 10)
    assert len(fetch(tmp_path, "parquet", path=tmp_path / "many").train) == 8
    for _ in range(2):  # nothing is held out of them
        alone = training_images(tmp_path / "many", "parquet")
        assert np.array_equal(alone.train.pixels, pictures(10))
        assert alone.notes == ()
    write_parquet(folder / "test.parquet", p[3:], ["c"])
    assert np.array_equal(training_images(folder, "parquet").train.pixels, p[:3])
    refused(r"holds the class c, which no training image has", folder, "parquet")


def test_clients_may_have_test_images_of_their_own(tmp_path):
    p = pictures(8)
    put(
        tmp_path,
        {
            "train/north/sick/1.png": p[0],
            "train/south/well/1.png": p[1],
            "test/north/sick/1.png": p[2],
            "test/north/well/1.png": p[3],
            "test/south/well/deep/1.png": p[4],
            "test/sick/1.png": p[5],
            "test/south/2.png": p[6],
            "test/3.png": p[7],
        },
    )
    data = fetch(tmp_path, "imagefolder", layout="clients")
    assert data.test.group_names == ("north", "south")
    seen = {
        (int(group), int(label)): image
        for group, label, image in zip(data.test.groups, data.test.labels, data.test.pixels, strict=True)
    }
    expected = {(0, 0): p[2], (0, 1): p[3], (1, 1): p[4], (-1, 0): p[5], (1, -1): p[6], (-1, -1): p[7]}
    assert seen.keys() == expected.keys()
    assert all(np.array_equal(seen[place], expected[place]) for place in expected)
    put(tmp_path, {"test/west/sick/1.png": p[0]})
    refused(
        r"test holds the class or client west, which no training image has; train/ has sick, well, north, south; "
        r"take it out of test/, or put images of it into train/; accepted: train/<client>/<class>/x\.jpg",
        tmp_path,
        "imagefolder",
        layout="clients",
    )


def tree_of(names: dict[str, int], suffix: str = "png") -> dict[str, np.ndarray]:
    """So many different images in each folder."""
    images = iter(pictures(sum(names.values())))
    return {f"{folder}/{n}.{suffix}": next(images) for folder, count in names.items() for n in range(count)}


def test_class_folders_without_a_split_lose_a_fifth_of_each_class_to_the_test_images(tmp_path):
    files = tree_of({"cats": 10, "dogs": 20, "owls": 1, ".": 5})
    put(tmp_path, files)
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    data = fetch(tmp_path, "imagefolder")
    assert data.train.class_names == ("cats", "dogs", "owls")
    counted = {split: np.bincount(getattr(data, split).labels + 1, minlength=4).tolist() for split in ("train", "test")}
    assert counted == {"train": [5, 8, 16, 1], "test": [0, 2, 4, 0]}  # the unlabelled ones first
    both = [image.tobytes() for image in (*data.train.pixels, *data.test.pixels)]
    assert len(set(both)) == 36  # every image is in one split, once
    assert fetch(tmp_path, "imagefolder").digest == data.digest
    note, untested = data.notes
    assert untested == "class owls has no test image: too few images to hold a share of 0.2 out"
    assert "has no train/ and test/: its folders (cats, dogs, owls) are the classes" in note
    assert "6 of 36 images, is held out" in note


def test_unlabelled_images_without_a_split_all_train(tmp_path):
    put(tmp_path, tree_of({".": 7}))
    data = fetch(tmp_path, "imagefolder")
    assert (len(data.train), len(data.test), data.notes) == (7, 0, ())
    put(tmp_path, tree_of({"2023": 3}))
    assert len(fetch(tmp_path, "imagefolder", layout="flat").train) == 10


def test_client_folders_without_a_split_keep_the_client_of_held_out_images(tmp_path):
    put(tmp_path, tree_of({"north/sick": 10, "north/well": 10, "south/sick": 10, "south/well": 10}))
    data = fetch(tmp_path, "imagefolder", layout="clients")
    assert data.train.class_names == ("sick", "well")
    assert data.train.group_names == ("north", "south")
    assert np.bincount(data.test.labels).tolist() == [4, 4]
    both = np.concatenate([data.train.groups, data.test.groups])
    assert np.bincount(both).tolist() == [20, 20]
    assert "its client folders' folders (sick, well) are the classes" in data.notes[0]
    assert data.notes[0].endswith("test images; if they are none: data.layout=clients_flat")


def test_clients_may_hold_train_and_test_themselves(tmp_path):
    p = pictures(4)
    tree = {"a b/train/sick/1.png": p[0], "c/train/well/1.png": p[1], "a b/test/well/1.png": p[2], "c/val/1.png": p[3]}
    put(tmp_path, tree)
    data = fetch(tmp_path, "imagefolder", layout="clients")
    assert (data.train.class_names, data.train.group_names) == (("sick", "well"), ("a b", "c"))
    assert (data.train.labels.tolist(), data.train.groups.tolist()) == ([0, 1], [0, 1])
    assert (data.test.labels.tolist(), data.test.groups.tolist()) == ([1, -1], [0, 1])
    assert all(np.array_equal(found, wanted) for found, wanted in zip(data.test.pixels, p[2:], strict=True))
    refused(
        r"has no folder train/, but a b/train/; if its folders are clients: data\.layout=cl", tmp_path, "imagefolder"
    )
    put(tmp_path, {"d/well/1.png": p[0]})
    refused(r"has d/ without train/ in it", tmp_path, "imagefolder", layout="clients")


def test_too_few_images_to_hold_some_out_are_refused(tmp_path):
    put(tmp_path, tree_of({"cats": 2, "dogs": 2}))
    refused(r"of no class enough images to hold a fifth out", tmp_path, "imagefolder")


def test_folders_that_look_like_clients_and_tables_of_labels_are_named(tmp_path):
    put(tmp_path, tree_of({f"{split}/{c}/{y}": 2 for split in ("train", "test") for c in "ab" for y in ("up", "down")}))
    (note,) = fetch(tmp_path, "imagefolder").notes
    assert (
        note
        == "a, b are taken for classes, and each of them holds down, up: if they are clients, data.layout=clients; "
        "if the inner ones are patients, data.group"
    )
    assert fetch(tmp_path, "imagefolder", layout="clients").notes == ()
    phones = tmp_path / "phones"  # that share no class
    put(phones, tree_of({"p0/cat": 5, "p0/dog": 5, "p1/cow": 5, "p2": 5}))
    *_, note = fetch(tmp_path, "imagefolder", path=phones).notes
    assert note == (
        "p0, p1, p2 are taken for classes, and folders in them, cat, cow, dog, for nothing: if they are clients, "
        "data.layout=clients; if the inner ones are patients, data.group"
    )
    put(tmp_path / "deep", tree_of({"a/images": 5, "b/images": 5}))
    (note,) = fetch(tmp_path, "imagefolder", path=tmp_path / "deep").notes
    assert "clients" not in note
    put(tmp_path / "csv", tree_of({"a": 5, "b": 5}))
    (tmp_path / "csv/labels.CSV").write_text("file,label\n")
    *_, note = fetch(tmp_path, "imagefolder", path=tmp_path / "csv").notes
    assert note.startswith("labels.CSV is not read")


def test_a_parquet_file_says_that_it_lost_a_fifth(tmp_path):
    write_parquet(tmp_path / "all.parquet", pictures(10), [0] * 10)
    (note,) = fetch(tmp_path, "parquet", path=tmp_path / "all.parquet").notes
    assert note.startswith("one Parquet file without a test split: a fifth of each class, 2 of 10 images, is held out")


def test_parts_without_a_test_split_lose_a_fifth_over_all_of_them_as_one_file_does(tmp_path):
    pixels, labels = pictures(100), [n * 7 % 5 if n % 9 else None for n in range(100)]
    columns = {"owner": [f"c{n % 3}" for n in range(100)], "patient": [n // 2 for n in range(100)]}
    write_parquet(tmp_path / "all.parquet", pixels, labels, **columns)
    edges = [0, 11, 60, 100]
    for part, (first, last) in enumerate(pairwise(edges)):
        mine = {name: values[first:last] for name, values in columns.items()}
        shard = tmp_path / f"hub/data/train-0000{part}-of-00003.parquet"
        write_parquet(shard, pixels[first:last], labels[first:last], **mine)
    for named in ({}, {"client": "owner"}, {"client": "owner", "group": "patient"}):
        whole, parts = (fetch(tmp_path, "parquet", path=tmp_path / p, columns=named) for p in ("all.parquet", "hub"))
        assert 15 < len(parts.test) < 21
        for mine, theirs in ((parts.train, whole.train), (parts.test, whole.test)):
            for field in ("pixels", "labels", "groups", "subjects"):
                assert np.array_equal(getattr(mine, field), getattr(theirs, field))
        assert parts.notes[-1] == whole.notes[-1].replace("one Parquet file", "3 Parquet files")
        fifth = f"3 Parquet files without a test split: a fifth of each class, {len(parts.test)} of 100 images, is held"
        assert fifth in parts.notes[-1]
    write_parquet(tmp_path / "hub/data/dev-00000-of-00001.parquet", pixels[:4], labels[:4])
    note = fetch(tmp_path, "parquet", path=tmp_path / "hub").notes[0]
    assert note == (
        "data/dev-00000-of-00001.parquet (4 rows) is not used: the images are those of "
        "data/train-00000-of-00003.parquet ..; data.test_split=NAME tests on the images of NAME*.parquet"
    )
    (tmp_path / "hub/data/train-00001-of-00003.parquet").unlink()
    assert "2 of 3 parts are there" in fetch(tmp_path, "parquet", path=tmp_path / "hub").notes[0]


def test_a_layout_error_shows_the_trees_and_what_it_found(tmp_path):
    put(tmp_path, {"test/1.png": pictures(1)[0], "cats/1.png": pictures(1)[0]})
    (tmp_path / "notes.txt").write_text("")
    refused(
        r"has no folder train/; found cats/, notes\.txt, test/, test/1\.png; accepted with data\.layout=classes: "
        r"train/<class>/x\.jpg with test/<class>/x\.jpg .*; with data\.layout=clients: train/<client>/<class>/x\.jpg",
        tmp_path,
        "imagefolder",
    )
    put(tmp_path, {"train/cats/1.png": pictures(1)[0]})
    (tmp_path / "test/1.png").unlink()
    refused(
        r"has no images in test/ or val/.*; found cats/, notes\.txt, test/, train/, train/cats/",
        tmp_path,
        "imagefolder",
    )


def pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's address has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("make", [pipe, unix_socket])
def test_fifos_and_sockets_are_refused_and_never_read(tmp_path, make):
    put(tmp_path, {"train/a/1.png": pictures(1)[0], "test/a/1.png": pictures(1)[0]})
    make(tmp_path / "train/a/2.png")
    refused(r"train/a/2\.png is no regular file", tmp_path, "imagefolder")
    (tmp_path / "train/a/2.png").unlink()
    make(tmp_path / "train/a/2.txt")
    assert len(fetch(tmp_path, "imagefolder").train) == 1
    make(tmp_path / "pq/train.parquet")
    refused(r"is neither a file nor a folder", tmp_path, "parquet", path=tmp_path / "pq/train.parquet")
    write_parquet(tmp_path / "pq/test.parquet", pictures(2), [0, 0])
    refused(r"train\.parquet is no regular file", tmp_path, "parquet", path=tmp_path / "pq")


@pytest.mark.timeout(30)
def test_links_in_a_circle_end_in_one_line(tmp_path):
    put(
        tmp_path,
        {"train/a/1.png": pictures(1)[0], "test/a/1.png": pictures(1)[0], "pool/2.png": pictures(1, seed=1)[0]},
    )
    (tmp_path / "train/b").symlink_to(tmp_path / "pool")  # a link that leads elsewhere is followed
    put(tmp_path, {"test/b/1.png": pictures(1)[0]})
    assert fetch(tmp_path, "imagefolder").train.class_names == ("a", "b")
    (tmp_path / "train/a/up").symlink_to("..")
    refused(r"a/up is a link back to a folder that contains it", tmp_path, "imagefolder")
    (tmp_path / "train/a/up").unlink()
    (tmp_path / "train/a/self.png").symlink_to("self.png")
    refused(r"self\.png cannot be read \(Too many levels of symbolic links", tmp_path, "imagefolder")
    (tmp_path / "train/a/self.png").unlink()
    for level in range(40):  # 2^40 ways, none of them a circle
        (tmp_path / f"ladder/{level}").mkdir(parents=True)
        for side in ("l", "r"):
            (tmp_path / f"ladder/{level}/{side}").symlink_to(tmp_path / f"ladder/{level + 1}")
    (tmp_path / "ladder/40").mkdir()
    (tmp_path / "train/c").symlink_to(tmp_path / "ladder/0")
    refused(r"is reached by links in over 1000 ways", tmp_path, "imagefolder")


def test_names_that_are_no_text_are_never_printed_raw(tmp_path):
    odd = [b"\xff\xfe.png", b"\x1b[2J.png", b"new\nline.png", ("x" * 250).encode() + b".png"]
    put(tmp_path, {"train/a/1.png": pictures(1)[0], "test/a/1.png": pictures(1)[0]})
    for name in odd:
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/train/a/" + name))).write_bytes(b"no image")
    with pytest.raises(UserError) as error:
        fetch(tmp_path, "imagefolder")
    assert str(error.value).isprintable()
    data = fetch(tmp_path, "imagefolder", on_bad_image="skip")
    assert len(data.train) == 1
    assert len(data.skipped) == 4
    assert all(name.isprintable() and len(name) <= 240 for name in data.skipped)
    assert {name.rsplit("/")[-1] for name in data.skipped if "x" * 50 not in name} == {
        "\\xff\\xfe.png",
        "\\x1b[2J.png",
        "new\\nline.png",
    }
    classes = tmp_path / "train" / os.fsdecode(b"b\xe9\x07")
    classes.mkdir()
    Image.fromarray(pictures(1)[0]).save(classes / "1.png")
    assert fetch(tmp_path, "imagefolder", on_bad_image="skip").train.class_names == ("a", "b\\xe9\\x07")


def test_paths_that_cannot_be_paths_are_one_line(tmp_path):
    refused(r"data\.path: .* cannot be read \(File name too long\)", tmp_path, "imagefolder", path=Path("x" * 5000))
    refused(r"data\.path: .* cannot be read \(embedded null", tmp_path, "parquet", path=Path("a\0b"))
    refused(r"data\.path: \\x1b\[31m does not exist", tmp_path, "parquet", path=Path("\x1b[31m"))


def test_tiny_imagenet_as_unpacked(tmp_path):
    p = pictures(5)
    put(
        tmp_path,
        {
            "train/n02/images/n02_0.JPEG": p[0],
            "train/n01/images/n01_0.JPEG": p[1],
            "test/images/t.JPEG": p[2],
            "val/images/val_0.JPEG": p[3],
            "val/images/val_1.JPEG": p[4],
        },
    )
    (tmp_path / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    data = fetch(tmp_path, "imagefolder")
    assert data.train.class_names == ("n01", "n02")
    assert data.test.labels.tolist() == [1, 0]


def test_corrected_annotations_are_read_again(tmp_path):
    p = pictures(4)
    put(tmp_path, {f"train/{name}/x.JPEG": p[k] for k, name in enumerate(("n01", "n02"))} | {"val/0.JPEG": p[2]})
    for label, name in enumerate(("n01", "n02")):
        (tmp_path / "val/val_annotations.txt").write_text(f"0.JPEG\t{name}\t0\t0\t9\t9\n")
        assert fetch(tmp_path, "imagefolder").test.labels.tolist() == [label]


def test_a_renamed_folder_is_seen_though_its_files_are_the_same(tmp_path):
    """Folders are clients and classes. Without test images all files lie in one of them."""
    put(tmp_path, {f"train/alice/{n}.png": picture for n, picture in enumerate(pictures(3))})
    assert fetch(tmp_path, "imagefolder", layout="clients").train.group_names == ("alice",)
    (tmp_path / "train/alice").rename(tmp_path / "train/bob")
    assert fetch(tmp_path, "imagefolder", layout="clients").train.group_names == ("bob",)


def test_a_limit_takes_evenly_spaced_rows_of_sorted_folders(tmp_path):
    put(
        tmp_path,
        {f"train/{c}/{n}.png": pictures(1)[0] for c in "abcd" for n in range(10)} | {"test/a/0.png": pictures(1)[0]},
    )
    assert np.bincount(fetch(tmp_path, "imagefolder", limit=8).train.labels).tolist() == [2, 2, 2, 2]


def test_a_pool_without_labels_beside_labelled_tests_says_how_to_go_on(tmp_path):
    put(tmp_path, {"train/1.png": pictures(1)[0], "train/2.png": pictures(2)[1], "test/dog/1.png": pictures(1)[0]})
    refused(
        r"test holds the class dog, which no training image has; train/ has no classes; data\.layout=flat reads no "
        r"labels, and `rayfed-ssl evaluate RUN --data FOLDER`",
        tmp_path,
        "imagefolder",
    )
    data = fetch(tmp_path, "imagefolder", layout="flat")  # what it says works
    assert (len(data.train), len(data.test)) == (2, 1)
    assert (data.test.labels < 0).all()


def test_folder_errors_name_the_folder(tmp_path):
    refused(r"has no folder train/", tmp_path, "imagefolder")
    (tmp_path / "train").mkdir()
    refused(r"no images below train/ \(known suffixes: .*\.jpg", tmp_path, "imagefolder")
    put(tmp_path, {"train/cat/1.png": pictures(1)[0]})
    put(tmp_path, {f"train/cat/{n}.png": pictures(1)[0] for n in range(5)})
    refused(r"no images in test/ or val/.*; data\.path=.*/train holds a fifth of each", tmp_path, "imagefolder")
    assert len(fetch(tmp_path, "imagefolder", path=tmp_path / "train").test) == 1  # what it says works
    put(tmp_path, {"test/dog/1.png": pictures(1)[0]})
    way_out = r"test holds the class dog, which .*train/ has cat; take it out of test/, or put images of it into train/"
    refused(way_out, tmp_path, "imagefolder")
    (tmp_path / "test/dog").rename(tmp_path / "test/cat")
    (tmp_path / "train/cat/bad.jpg").write_bytes(png(pictures(1, 64)[0], "JPEG")[:-300])
    refused(r"data\.on_bad_image: .*train/cat/bad\.jpg cannot be decoded .*truncated", tmp_path, "imagefolder")
    (tmp_path / "train/cat/bad.jpg").unlink()
    put(tmp_path, {"train/cat/big.png": np.zeros((40, 30), np.uint8)})
    said = r"train/cat/big\.png .*30x40 pixels, more than max_pixels=1000, which may be up to 178956970\)"
    refused(said, tmp_path, "imagefolder", max_pixels=1000)
    (tmp_path / "train/cat/gone.png").symlink_to("nowhere.png")
    refused(
        r"data\.path: .*gone\.png cannot be read \(No such file .*\); it is a link to nowhere\.png",
        tmp_path,
        "imagefolder",
    )
    refused(r"big\.png is a file; .*needs a folder of", tmp_path, "imagefolder", path=tmp_path / "train/cat/big.png")
    (tmp_path / "labels.CSV").write_text("file,label\n")
    table = r"labels\.CSV is a file; .*; docs/python\.md makes one Parquet file of a table"
    refused(table, tmp_path, "imagefolder", path=tmp_path / "labels.CSV")


# ------------------------------------------------------------------------------------------------------- torchvision
# torchvision checks MD5 sums, so the tests give it those of the generated files; everything else is its own reading.


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_cifar(root: Path, cls, monkeypatch, label: str, names: list[str]) -> dict[str, np.ndarray]:
    folder = root / cls.base_folder
    folder.mkdir()
    made = {}
    for number, (name, _) in enumerate(cls.train_list + cls.test_list):
        made[name] = pictures(4, 32, number)
        flat = made[name].transpose(0, 3, 1, 2).reshape(4, 3072)
        (folder / name).write_bytes(pickle.dumps({"data": flat, label: [number % len(names)] * 4}))
    (folder / cls.meta["filename"]).write_bytes(pickle.dumps({cls.meta["key"]: names}))
    for which in ("train_list", "test_list"):
        monkeypatch.setattr(cls, which, [[name, md5(folder / name)] for name, _ in getattr(cls, which)])
    monkeypatch.setattr(cls, "meta", cls.meta | {"md5": md5(folder / cls.meta["filename"])})
    return made


@pytest.mark.parametrize(
    ("name", "cls", "label"), [("cifar10", datasets.CIFAR10, "labels"), ("cifar100", datasets.CIFAR100, "fine_labels")]
)
def test_cifar(tmp_path, monkeypatch, name, cls, label):
    names = [f"class {number}" for number in range(10)]
    made = write_cifar(tmp_path, cls, monkeypatch, label, names)
    data = fetch(tmp_path, name, image_size=32)
    train = [entry for entry, _ in cls.train_list]
    assert np.array_equal(data.train.pixels, np.concatenate([made[entry] for entry in train]))
    assert data.train.labels.tolist() == [number for number in range(len(train)) for _ in range(4)]
    assert np.array_equal(data.test.pixels, made[cls.test_list[0][0]])
    assert data.train.class_names == tuple(names)
    assert len(fetch(tmp_path, name, image_size=32, limit=3).train) == 3
    (tmp_path / cls.base_folder / train[0]).write_bytes(b"damaged")
    refused(rf"data\.path: {name} is damaged below", tmp_path, name)


def test_svhn(tmp_path, monkeypatch):
    from scipy.io import savemat

    made = {}
    for split in ("train", "test"):
        made[split] = pictures(5, 32, len(split))
        path = tmp_path / f"{split}_32x32.mat"
        savemat(path, {"X": made[split].transpose(1, 2, 3, 0), "y": np.array([[1], [10], [3], [9], [10]], np.uint8)})
        url = datasets.SVHN.split_list[split][0]
        monkeypatch.setitem(datasets.SVHN.split_list, split, [url, path.name, md5(path)])
    data = fetch(tmp_path, "svhn", image_size=32)
    assert np.array_equal(data.train.pixels, made["train"])
    assert np.array_equal(data.test.pixels, made["test"])
    assert data.train.labels.tolist() == [1, 0, 3, 9, 0]  # SVHN writes the digit 0 as 10
    assert data.train.class_names == tuple("0123456789")


def test_stl10_trains_on_labelled_and_unlabelled_images(tmp_path, monkeypatch):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    made = {}
    for number, (name, count) in enumerate({"train": 3, "unlabeled": 4, "test": 2}.items()):
        made[name] = pictures(count, 96, number)
        (folder / f"{name}_X.bin").write_bytes(made[name].transpose(0, 3, 2, 1).tobytes())  # columns first
        (folder / f"{name}_y.bin").write_bytes(bytes(range(1, count + 1)))
    (folder / "class_names.txt").write_text("airplane\nbird\ncar\n")
    for which in ("train_list", "test_list"):
        entries = getattr(datasets.STL10, which)
        monkeypatch.setattr(datasets.STL10, which, [[name, md5(folder / name)] for name, _ in entries])
    data = fetch(tmp_path, "stl10", image_size=96)
    assert np.array_equal(data.train.pixels, np.concatenate([made["train"], made["unlabeled"]]))
    assert data.train.labels.tolist() == [0, 1, 2, -1, -1, -1, -1]
    assert np.array_equal(data.test.pixels, made["test"])
    assert data.test.labels.tolist() == [0, 1]
    assert data.train.class_names == ("airplane", "bird", "car")


def test_fashion_mnist(tmp_path):
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    made = {}
    for prefix, count in {"train": 6, "t10k": 3}.items():
        made[prefix] = pictures(count, 28, count)[..., 0]
        header = (0x803).to_bytes(4, "big") + b"".join(side.to_bytes(4, "big") for side in (count, 28, 28))
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + made[prefix].tobytes())
        header = (0x801).to_bytes(4, "big") + count.to_bytes(4, "big")
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(header + bytes(range(count)))
    data = fetch(tmp_path, "fashion_mnist", image_size=28)
    assert np.array_equal(data.train.pixels, np.repeat(made["train"][..., None], 3, axis=3))
    assert np.array_equal(data.test.pixels[..., 1], made["t10k"])
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.train.class_names[9] == "Ankle boot"
    (folder / "train-images-idx3-ubyte").write_bytes(b"\0\0\10\3 short")
    refused(r"data\.path: fashion_mnist is damaged below", tmp_path, "fashion_mnist")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "stl10", "fashion_mnist"])
def test_missing_files_name_the_download_key(tmp_path, name):
    refused(rf"data\.path: .* is missing; put {name} there or set data\.download=true \(--check", tmp_path, name)
    with pytest.raises(UserError, match=str(tmp_path / "downloads")):
        load(SourceConfig(name=name), tmp_path)


def test_download_fetches_what_is_missing(tmp_path, monkeypatch):
    """torchvision's own download from a loopback server: archives, checksums and unpacking are the real ones."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    resources = []
    for name, _ in datasets.FashionMNIST.resources:
        kind, count = ("images", 784) if "images" in name else ("labels", 1)
        head = (0x803).to_bytes(4, "big") + b"".join(side.to_bytes(4, "big") for side in (2, 28, 28))
        head = head if kind == "images" else (0x801).to_bytes(4, "big") + (2).to_bytes(4, "big")
        (mirror / name).write_bytes(gzip.compress(head + bytes(2 * count)))
        resources.append((name, md5(mirror / name)))
    monkeypatch.setattr(datasets.FashionMNIST, "resources", resources)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=str(mirror))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        data = fetch(tmp_path, "fashion_mnist", path=tmp_path / "root", download=True)
        server.shutdown()
    assert (len(data.train), len(data.test)) == (2, 2)
    assert fetch(tmp_path, "fashion_mnist", path=tmp_path / "root").digest == data.digest  # now they are there
    refused(
        r"fashion_mnist could not be downloaded to .*elsewhere",
        tmp_path,
        "fashion_mnist",
        path=tmp_path / "elsewhere",
        download=True,
    )


def test_errors_name_the_block_they_come_from(tmp_path):
    with pytest.raises(UserError, match=r"^data\.public\.images\.path: not set"):
        load(SourceConfig(name="parquet"), tmp_path, key="data.public.images")


def test_configuration_is_checked():
    for wrong in ({"name": "mnist"}, {"image_size": 4}, {"limit": 0}, {"layout": "flat"}, {"pixels": 3}):
        with pytest.raises(ValidationError):
            SourceConfig.model_validate({"name": "digits"} | wrong)


def test_todays_caches_are_those_of_before_there_was_a_choice_of_squares(tmp_path):
    """A file's name is a digest of the format, the settings but those that say where images lie, and the files."""
    content = b"P5 8 8 255\n" + bytes(range(64))
    (tmp_path / "d/train").mkdir(parents=True)
    (tmp_path / "d/train/a.pgm").write_bytes(content)
    config = SourceConfig(name="imagefolder", path=tmp_path / "d")
    load(config, tmp_path / "cache")
    settings = config.model_dump(exclude={"path", "download", "test_split", "fit", "group"})
    digest = hashlib.blake2b(json.dumps([FORMAT, settings], sort_keys=True).encode(), digest_size=12)
    digest.update(b"\0train/a.pgm\0%d\0" % len(content) + content)
    (found,) = (tmp_path / "cache").glob("*-train.arrow")
    assert found.name == f"imagefolder-32-{digest.hexdigest()}-train.arrow"
