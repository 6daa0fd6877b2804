"""Folders and tables of DICOM files: which files are images, whose they are, and what is said and kept of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pydicom", reason="pydicom is not installed (extra dicom)")
pytest.importorskip("imagecodecs", reason="imagecodecs is not installed (extra dicom)")

from rayfed_ssl.base.notes import texts
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.decoding import dicom
from rayfed_ssl.data.decoding.decode import decode
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.models.transform import Transform
from tests.data.files import fetch, refused, write_parquet
from tests.data.scans import CT, DICOMDIR, REPORT, encoded, save, scan, without_image

SIDE = 16


def slices(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 4096, (count, SIDE, SIDE), dtype=np.uint16))


def ct(values: np.ndarray, **said):
    return scan(values, 12, RescaleSlope=1, RescaleIntercept=-1024, **said)


def folder(root: Path, names: list[str], **said) -> list[np.ndarray]:
    made = slices(len(names))
    for name, values in zip(names, made, strict=True):
        save(ct(values, **said), root / name)
    return made


def test_files_are_read_with_a_suffix_of_dicom_and_without_any(tmp_path: Path) -> None:
    names = ["a/1.dcm", "a/2.DCM", "a/3.ima", "b/IM00001", "b/1.2.840.113619.2.5", "b/7"]
    made = folder(tmp_path / "d/train", names)
    folder(tmp_path / "d/test", ["a/9.dcm", "b/IM9"])
    for name, content in {"DICOMDIR": without_image(DICOMDIR), "a/sr.dcm": without_image(REPORT)}.items():
        (tmp_path / "d/train" / name).write_bytes(content)
    (tmp_path / "d/train/a/notes").write_bytes(b"no DICOM")
    os.mkfifo(tmp_path / "d/train/a/pipe")  # would never be read to its end
    data = fetch(tmp_path, "imagefolder", path=tmp_path / "d", channels=1)
    paths = [str(name) for name in data.names["train"]]
    assert sorted(paths) == sorted(f"train/{name}" for name in names)
    for path, pixels in zip(paths, data.train.pixels, strict=True):
        values = made[names.index(path.removeprefix("train/"))].astype(float)
        low, high = values.min(), values.max()
        assert np.array_equal(pixels[..., 0], np.rint((values - low) * (255 / (high - low))))
    assert texts(data.notes) == (
        "4 files are not read: 2 without suffix, 2 DICOM without an image",
        "8 images of more than 8 bits were scaled to 0..255, each by its own smallest and largest value",
    )
    catalogue = catalogued(SourceConfig(name="imagefolder", path=tmp_path / "d"))
    assert len(catalogue) == 8


def test_notes_say_by_what_images_were_scaled(tmp_path: Path) -> None:
    folder(tmp_path / "d/train/a", ["1.dcm", "2.dcm"], WindowCenter=40, WindowWidth=400)
    folder(tmp_path / "d/train/b", ["1.dcm"])
    folder(tmp_path / "d/test/a", ["1.dcm"])
    notes = texts(fetch(tmp_path, "imagefolder", path=tmp_path / "d").notes)
    assert notes[0] == (
        "4 images of more than 8 bits were scaled to 0..255, each by its own window where it has one (DICOM), else by "
        "its own smallest and largest value"
    )
    assert notes[1].startswith("2 of them have over 1% of their pixels outside their own window, and these are clipped")
    assert notes[2] == "2 images are scaled by a window of their own (DICOM)"
    assert texts(fetch(tmp_path, "imagefolder", path=tmp_path / "d").notes) == notes  # from the cache
    notes = texts(fetch(tmp_path, "imagefolder", path=tmp_path / "d", range=[-1024, 3071]).notes)
    assert notes == ("4 images of more than 8 bits were scaled to 0..255, each by data.range=[-1024.0, 3071.0]",)


def test_bytes_in_parquet_are_read_like_files(tmp_path: Path) -> None:
    made = [ct(values, WindowCenter=40, WindowWidth=400) for values in slices(6)]
    for split, rows in {"train": made[:4], "test": made[4:]}.items():
        write_parquet(tmp_path / f"d/{split}.parquet", [encoded(one) for one in rows], [0, 1] * (len(rows) // 2))
    data = fetch(tmp_path, "parquet", path=tmp_path / "d")
    expected = np.stack([decode(encoded(one), ImageForm(SIDE)).pixels for one in made[:4]])
    assert np.array_equal(data.train.pixels, expected)


def test_an_exported_transform_reads_them_as_the_run_did(tmp_path: Path) -> None:
    folder(tmp_path / "d/train/a", ["1.dcm", "IM2"], WindowCenter=40, WindowWidth=400)
    folder(tmp_path / "d/test/a", ["1.dcm"])
    for range in (None, (-1000.0, 400.0)):
        data = fetch(tmp_path, "imagefolder", path=tmp_path / "d", range=range)
        transform = Transform(SIDE, 3, (0.5,) * 3, (0.5,) * 3, range)
        files = [tmp_path / "d" / str(name) for name in data.names["train"]]
        assert np.array_equal(transform.pixels(files), data.train.pixels)
        assert np.array_equal(transform.pixels([file.read_bytes() for file in files]), data.train.pixels)


def test_without_the_extra_they_are_images_that_cannot_be_decoded(tmp_path: Path, monkeypatch) -> None:
    for name in ("train/a/1.png", "test/a/1.png"):
        (tmp_path / "d" / name).parent.mkdir(parents=True)
        Image.fromarray(np.arange(256, dtype=np.uint8).reshape(SIDE, SIDE)).save(tmp_path / "d" / name)
    folder(tmp_path / "d/train/a", ["2.dcm", "IM3"])
    with monkeypatch.context() as absent:
        absent.setattr(dicom, "installed", lambda: ())
        absent.setattr("rayfed_ssl.data.pixels.cache_names.installed", lambda: ())
        said = r"on_bad_image: 2 images cannot be decoded: .*it is DICOM, which needs .*'rayfed-ssl\[dicom\]'\); mend"
        refused(said, tmp_path, "imagefolder", path=tmp_path / "d")
        left = fetch(tmp_path, "imagefolder", path=tmp_path / "d", on_bad_image="skip")
        assert (len(left.train), len(left.skipped)) == (1, 2)
        refused(
            r"^data\.group: found 'dicom:PatientID', which needs pydicom; pip install 'rayfed-ssl\[dicom\]'$",
            *(tmp_path, "imagefolder"),
            path=tmp_path / "d",
            group="dicom:PatientID",
        )
    now = fetch(tmp_path, "imagefolder", path=tmp_path / "d", on_bad_image="skip")
    assert (len(now.train), now.skipped) == (3, ())  # the cache of before is another


# -- whose -------------------------------------------------------------------------------------------------------------


def patients(root: Path, count: int, each: int, **said) -> None:
    made = iter(slices(2 * count * each))
    for number in range(count * each):
        for label in "ab":
            header = ct(next(made), PatientID=f"SECRET-{label}{number // each}", PatientName="Doe^Jane", **said)
            save(header, root / label / f"{number}.dcm")


def test_images_are_grouped_by_an_attribute_which_is_nowhere_shown(tmp_path: Path) -> None:
    patients(tmp_path / "d", 6, 3)
    Image.fromarray(slices(1)[0].astype(np.uint8)).save(tmp_path / "d/a/x.png")
    data = fetch(tmp_path, "imagefolder", path=tmp_path / "d", group="dicom:PatientID")
    assert "data.group finds 12 groups in 36 images" in texts(data.notes)
    assert "data.group finds nothing in 1 image: it is one of its own" in texts(data.notes)
    assert not set(data.train.groups.tolist()) & set(data.test.groups.tolist())
    assert len(data.test) in range(5, 10)
    for group in set(data.test.groups.tolist()) - {-1}:
        assert (data.test.groups == group).sum() == 3
    kept = b"".join(file.read_bytes() for file in (tmp_path / "cache").iterdir())
    assert b"SECRET" not in kept
    assert b"Doe" not in kept
    assert "SECRET" not in "".join(texts(data.notes))


def test_several_attributes_are_one_group_and_a_missing_one_is_none(tmp_path: Path) -> None:
    file = save(ct(slices(1)[0], PatientID=" P1 ", InstitutionName="North"), tmp_path / "1.dcm")
    assert dicom.attributes_of(file, ["InstitutionName", "PatientID"]) == "North/P1"
    assert dicom.attributes_of(file, ["PatientID", "PatientBirthDate"]) is None
    other = save(ct(slices(1)[0], PatientID=""), tmp_path / "2.dcm")
    assert dicom.attributes_of(other, ["PatientID"]) is None
    (tmp_path / "3.dcm").write_bytes(b"no DICOM")
    assert dicom.attributes_of(tmp_path / "3.dcm", ["PatientID"]) is None


def test_an_attribute_that_is_none_gets_one_line(tmp_path: Path) -> None:
    patients(tmp_path / "d", 2, 2)
    for group, said in {
        "dicom:PatientId": r"PatientId must be the keyword of a DICOM attribute .*; did you mean PatientID\?$",
        "dicom:PixelData": "PixelData must be the keyword of a DICOM attribute of text or numbers",
        "dicom:InstitutionName": r"which no image below .* has; allowed: attributes that some have, or null$",
    }.items():
        refused(said, tmp_path, "imagefolder", path=tmp_path / "d", group=group)
    with pytest.raises(ValueError, match="must be dicom: and keywords of attributes with / between"):
        SourceConfig(name="imagefolder", path=tmp_path, group="dicom:")


# -- the beginning of a file -------------------------------------------------------------------------------------------

CLASSES = {  # of PS3.4, annex B.5: whether they have pixels
    CT: True,
    "1.2.840.10008.5.1.4.1.1.7": True,  # secondary capture
    "1.2.840.10008.5.1.4.1.1.66.4": True,  # segmentation
    "1.2.840.10008.5.1.4.1.1.481.1": True,  # RT image
    "1.2.840.10008.5.1.4.1.1.481.2": True,  # RT dose
    "1.2.840.10008.5.1.4.1.1.9.1.1": False,  # ECG
    "1.2.840.10008.5.1.4.1.1.4.2": False,  # spectra
    "1.2.840.10008.5.1.4.1.1.481.3": False,  # RT structures
    "1.2.840.10008.5.1.4.1.1.481.5": False,  # RT plan
    "1.2.840.10008.5.1.4.1.1.11.1": False,  # presentation state
    "1.2.840.10008.5.1.4.1.1.88.59": False,  # key objects
    "1.2.840.10008.5.1.4.1.1.104.1": False,  # PDF
    "1.2.840.10008.5.1.4.1.1.66": False,  # raw data
    DICOMDIR: False,
}


@pytest.mark.parametrize("sop_class", CLASSES)
def test_files_without_an_image_are_told_by_their_class(tmp_path: Path, sop_class: str) -> None:
    from rayfed_ssl.data.readers.walking import images_below

    (tmp_path / "file").write_bytes(without_image(sop_class))
    assert bool(images_below(tmp_path, "data")) == CLASSES[sop_class]


def test_what_a_run_keeps_says_nothing_of_a_patient(tmp_path: Path) -> None:
    from tests.tiny import run_locally, tiny

    patients(tmp_path / "d", 8, 2, WindowCenter=40, WindowWidth=400)
    data = {"name": "imagefolder", "path": str(tmp_path / "d"), "group": "dicom:PatientID"}
    keys = {f"data__{key}": value for key, value in data.items()} | {"data__limit": None, "data__test_limit": None}
    run_locally(
        tiny("fedsimclr", **keys, clients__count=2, train__rounds=1, evaluation__protocols=["knn"]), tmp_path / "r"
    )
    kept = [file for file in (tmp_path / "r").rglob("*") if file.is_file()]
    assert kept
    for file in kept:
        assert b"SECRET" not in file.read_bytes(), file
        assert b"Doe^" not in file.read_bytes(), file
    scaled = json.loads((tmp_path / "r/environment.json").read_text())["scaled"]
    assert scaled["data"]["by"].startswith("its own window where it has one (DICOM)")
