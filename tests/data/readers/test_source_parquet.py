"""Parquet files, against pixels and labels the test wrote itself."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from tests.data.files import (
    HUGGING_FACE,
    TEXT_TYPES,
    fetch,
    file_of,
    pictures,
    png,
    put,
    refused,
    write_columns,
    write_parquet,
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
    rows = [*pictures(9), file_of(pictures(1, 64)[0], "JPEG")[:-300], None, *pictures(3, seed=2)]
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


def test_arrow_files_are_told_how_to_become_parquet(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/data-00000-of-00001.arrow").write_bytes(b"")
    to_parquet = r"datasets\.load_from_disk\(FOLDER\)\.to_parquet\('train\.parquet'\) writes those of a split"
    refused(rf"lacks its train split.*; the Arrow files in train/ are of .*{to_parquet}", tmp_path, "parquet")
    refused(rf"; the Arrow files are of .*{to_parquet}", tmp_path, "parquet", path=tmp_path / "train")


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
    refused(
        rf"lacks its train split: wanted train\.parquet or train-\*\.parquet, found all\.parquet{alone}",
        tmp_path,
        "parquet",
    )
    write_parquet(tmp_path / "more.parquet", pictures(2), [0, 0])
    refused(r"more\.parquet; name the parts train-\*\.parquet, and a fifth of each class", tmp_path, "parquet")
    for part in ("all", "more"):
        (tmp_path / f"{part}.parquet").unlink()
    (tmp_path / "train.parquet").write_text("label,image\n0,x\n")
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    refused(r"train\.parquet cannot be read as Parquet", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), [0, 0], column="photo")
    has = r"train\.parquet has no image column \(img, image\); it has photo, label: "
    refused(rf"{has}name one in data\.columns\.image, such as photo$", tmp_path, "parquet")
    pq.write_table(pa.table({"img": [1, 2], "label": [0, 0]}), tmp_path / "train.parquet")
    refused(r"column img of .* is of type int64; an image is encoded bytes", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), [0.5, 1.0])
    refused(r"column label of .* is of type double; labels are integers from 0, or text", tmp_path, "parquet")
    write_parquet(tmp_path / "train.parquet", pictures(2), ["cat", "dog"])
    refused(r"labels that are text in one Parquet file \('cat'\), numbers in another", tmp_path, "parquet")
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
    assert data.train.client_names == data.test.client_names == ("\\x1b[2J", "east", "west")
    assert data.train.clients.tolist() == [2, 1, -1, 1, 2, 0]
    assert data.test.clients.tolist() == [1, -1, 2]
    assert data.train.labels.tolist() == [0, 1, 0, 1, 1, 0]
    assert fetch(tmp_path, "parquet", columns=columns, limit=2).train.clients.tolist() == [2, 1]
    numbers = pa.array([10, 9, 9, 10, 2, 2], pa.int16())
    write_columns(tmp_path / "one.parquet", 6, label=[0] * 6, hospital=numbers)
    data = fetch(tmp_path, "parquet", path=tmp_path / "one.parquet", columns=columns | {"label": None})
    assert data.train.client_names == ("2", "9", "10")  # by value
    rows = np.concatenate([data.train.clients, data.test.clients])
    assert np.bincount(rows).tolist() == [2, 2, 2]


def test_columns_that_are_not_there_or_do_not_fit_are_named(tmp_path):
    write_columns(tmp_path / "train.parquet", 2, label=[0, 1], hospital=["a", "b"], weight=[0.5, 1.0])
    write_columns(tmp_path / "test.parquet", 2, 1, label=[0, 1], hospital=["a", "c"], weight=[0.5, 1.0])

    def wrong(match: str, **columns: str) -> None:
        refused(match, tmp_path, "parquet", columns={"image": "scan"} | columns)

    refused(r"name one in data\.columns\.image", tmp_path, "parquet")
    wrong(r"data\.columns\.image: found 'photo'; .* has the columns scan, label, hospital, weight", image="photo")
    wrong(r"data\.columns\.label: found 'lable'; .* weight; did you mean label\?$", label="lable")
    wrong(r"data\.columns\.group: found 'patient'; .* hospital, weight$", group="patient")
    wrong(r"data\.columns\.client: found 'clinic'", client="clinic")
    wrong(r"data\.columns\.client: column weight .* is of type double; clients are text or integers", client="weight")
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
    refused(r"train\.parquet row 0 cannot be decoded .*no image of a format", tmp_path, "parquet")


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
        assert texts(data.notes) == (
            f"{scaled} images of more than 8 bits were scaled to 0..255, each by data.range=[0.0, 4095.0]",
            f"{count} of them have over 1% of their pixels outside data.range=[0.0, 4095.0], and these are clipped: "
            f"their values go from 0 to {255 * 16 * 4 + 5}{whose}",
        )
    wide = fetch(tmp_path, "imagefolder", channels=1, layout=layout, range=(0, 65535))
    assert texts(wide.notes)[1].startswith(
        f"{scaled - count} of them take up less than a sixteenth of data.range=[0.0, 65535.0], and keep at most 17 of "
        "256 grey levels: their values go from 0 to 4082"
    )
    assert texts(wide.notes)[1].endswith("; data.range=percentiles takes the range of the pixels")
    assert len(texts(wide.notes)) == 2


def test_deep_images_say_how_they_were_scaled(tmp_path):
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16
    put(tmp_path, {f"train/a/{n}.png": ramp + n for n in range(3)} | {"test/a/0.tif": ramp})
    data = fetch(tmp_path, "imagefolder", channels=1)
    assert data.train.pixels.shape == (3, 16, 16, 1)
    assert data.train.pixels[1].ravel().tolist() == list(range(256))
    assert texts(data.notes) == (
        "4 images of more than 8 bits were scaled to 0..255, each by its own smallest and largest value",
    )
    ranged = fetch(tmp_path, "imagefolder", channels=1, range=(0, 2 * 4080))
    assert ranged.train.pixels.max() == 128
    assert texts(ranged.notes)[0].endswith("each by data.range=[0.0, 8160.0]")
    assert ranged.digest != data.digest
    put(tmp_path / "flat", {"train/a/1.png": ramp * 0 + 5, "train/a/2.png": ramp, "test/a/1.png": ramp})
    flat = fetch(tmp_path, "imagefolder", path=tmp_path / "flat", channels=1)
    assert not flat.train.pixels[0].any()
    assert np.array_equal(flat.train.pixels[1].ravel(), range(256))  # as without a blank image beside it
    assert texts(flat.notes)[1:] == ("1 image is of one single colour throughout (train/a/1.png)",)
    put(tmp_path / "shallow", {"train/a/1.png": pictures(1)[0], "test/a/1.png": pictures(1)[0]})
    assert texts(fetch(tmp_path, "imagefolder", path=tmp_path / "shallow").notes) == ()
    refused(
        r"data\.range: found \[0\.0, 4095\.0\], but no image has more than 8 bits",
        tmp_path,
        "imagefolder",
        path=tmp_path / "shallow",
        range=(0, 4095),
    )


@pytest.mark.long
def test_real_cifar10(shared_data, tmp_path):
    data = load(SourceConfig(path=shared_data / "cifar10", limit=6000, test_limit=500), tmp_path)
    assert data.train.pixels.shape == (6000, 32, 32, 3)
    assert data.test.pixels.shape == (500, 32, 32, 3)
    counts = np.bincount(data.train.labels[:5000])
    assert (counts.min(), counts.max()) == (479, 514)  # as the files' README says of their first 5,000 rows
    assert data.train.class_names[:4] == ("airplane", "automobile", "bird", "cat")
    scaled = data.train.pixels.reshape(-1, 3).mean(axis=0) / 255
    assert scaled == pytest.approx([0.4913, 0.4821, 0.4465], abs=0.01)  # the README's means of all 50,000
    rows = pq.read_table(shared_data / "cifar10" / "train.parquet").slice(5990, 3).to_pylist()
    for offset, row in enumerate(rows):
        expected = np.asarray(Image.open(io.BytesIO(row["img"]["bytes"])).convert("RGB"))
        assert np.array_equal(data.train.pixels[5990 + offset], expected)
        assert data.train.labels[5990 + offset] == row["label"]


def test_a_parquet_file_says_that_it_lost_a_fifth(tmp_path):
    write_parquet(tmp_path / "all.parquet", pictures(10), [0] * 10)
    (note,) = texts(fetch(tmp_path, "parquet", path=tmp_path / "all.parquet").notes)
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
            for field in ("pixels", "labels", "clients", "groups"):
                assert np.array_equal(getattr(mine, field), getattr(theirs, field))
        assert texts(parts.notes)[-1] == texts(whole.notes)[-1].replace("one Parquet file", "3 Parquet files")
        fifth = f"3 Parquet files without a test split: a fifth of each class, {len(parts.test)} of 100 images, is held"
        assert fifth in texts(parts.notes)[-1]
    write_parquet(tmp_path / "hub/data/dev-00000-of-00001.parquet", pixels[:4], labels[:4])
    note = texts(fetch(tmp_path, "parquet", path=tmp_path / "hub").notes)[0]
    assert note == (
        "data/dev-00000-of-00001.parquet (4 rows) is not used: the images are those of "
        "data/train-00000-of-00003.parquet ..; data.test_split=NAME tests on the images of NAME-*.parquet"
    )
    (tmp_path / "hub/data/train-00001-of-00003.parquet").unlink()
    assert "2 of 3 parts are there" in texts(fetch(tmp_path, "parquet", path=tmp_path / "hub").notes)[0]
