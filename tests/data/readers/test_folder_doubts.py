"""Lines on folders and names that may mean something else than what is read, against trees that the test made."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.data.readers.folders.doubts import maybe_patients
from tests.data.files import fetch, pictures, png, put, refused, tree_of

P = pictures(30)


def notes(tmp_path: Path, **settings: object) -> tuple[str, ...]:
    return texts(fetch(tmp_path, "imagefolder", **settings).notes)


def test_masks_beside_images_are_counted(tmp_path: Path) -> None:
    """Those whose name is another's and the word, also numbered; not every name with the word in it."""
    names = [f"{kind}/{kind} ({k})" for kind in ("benign", "malignant") for k in range(5)]
    tree = {f"{name}.png": P[k] for k, name in enumerate(names)}
    tree |= {f"{name}_mask.png": P[10 + k] for k, name in enumerate(names)}
    put(tmp_path, tree | {f"{names[0]}_mask_1.png": P[20], "benign/gas mask.png": P[21], "benign/face_mask.png": P[22]})
    said = "11 images are called as masks of others are (benign/benign (0)_mask.png), and read as any other: "
    assert f"{said}move masks away" in notes(tmp_path)


def test_a_folder_of_masks_is_told_but_not_where_all_images_lie_in_one(tmp_path: Path) -> None:
    put(tmp_path, {f"{folder}/{k}.png": P[k] for k, folder in enumerate(["images"] * 6 + ["masks"] * 6)})
    assert any(note.startswith("6 images are called as masks of others are (masks/10.png)") for note in notes(tmp_path))
    put(tmp_path / "site", tree_of({f"site/{folder}/{kind}": 3 for folder in ("Images", "Masks") for kind in "xy"}))
    (said,) = [note for note in notes(tmp_path / "site", layout="clients") if "masks of others" in note]
    assert said.startswith("6 images are called as masks of others are (site/Masks/x/0.png)")
    put(tmp_path / "alone", {f"masks/{kind}/{k}.png": P[k] for kind in "ab" for k in range(3)})
    assert not [note for note in notes(tmp_path / "alone", layout="clients") if "masks of others" in note]


@pytest.mark.parametrize("folders", [("mask", "no_mask"), ("Mask", "face"), ("GT", "SUV"), ("groundtruth", "fake")])
def test_a_class_that_is_called_as_masks_are_is_no_folder_of_masks(tmp_path: Path, folders: tuple[str, str]) -> None:
    put(tmp_path, tree_of(dict.fromkeys(folders, 4)))
    assert not [note for note in notes(tmp_path) if "masks of others" in note]


def test_a_client_with_one_level_of_folders_more_is_told(tmp_path: Path) -> None:
    tree = tree_of({"north/sick": 3, "north/well": 3, "south/images/sick": 3, "south/images/well": 3})
    put(tmp_path, tree)
    said = (
        "images is taken for a class, and folders in it that are called as other classes, sick, well, for none "
        "(south/images/sick/): move them one level up if they are classes"
    )
    assert said in notes(tmp_path, layout="clients")
    put(tmp_path, {"south/images/x.png": P[0]})  # now it has images of its own
    assert said not in notes(tmp_path, layout="clients")


def test_a_single_folder_around_the_classes_is_told_with_the_path(tmp_path: Path) -> None:
    put(tmp_path, tree_of({"photos/cat": 3, "photos/dog": 3}))
    said = (
        f"photos is taken for the only class, and folders in it, cat, dog, for none: if these are the classes, "
        f"data.path={tmp_path / 'photos'}; if it is a client, and they its classes, data.layout=clients; if no folder "
        "is a class, data.layout=flat"
    )
    assert said in notes(tmp_path)
    inner = fetch(tmp_path, "imagefolder", path=tmp_path / "photos")  # what it says works
    assert inner.train.class_names == ("cat", "dog")
    put(tmp_path / "split", tree_of({"train/photos/cat": 3, "train/photos/dog": 3, "test/photos/cat": 1}))
    assert any("the classes, move them one level up; if" in note for note in notes(tmp_path / "split"))


def test_patients_that_are_taken_for_classes_are_told_with_the_layout_that_reads_them(tmp_path: Path) -> None:
    names = ("patient_01", "patient_02")
    for root, outer, layout, other in (("a", "", "classes", "flat"), ("b", "north/", "clients", "clients_flat")):
        put(tmp_path / root, tree_of({f"{outer}{name}": 5 for name in names}))
        (said,) = [note for note in notes(tmp_path / root, layout=layout) if "called as patients" in note]
        assert f"if they are patients, data.layout={other}, with which no image has a label, and data.group" in said
        assert fetch(tmp_path / root, "imagefolder", layout=other, group="patient_[0-9]+").train.class_names == ()
        assert not any("called as patients" in note for note in notes(tmp_path / root, layout=other))
    (grouped,) = maybe_patients(names, "classes", "[a-z]+", "data")
    assert grouped.endswith("with which no image has a label")
    put(tmp_path / "c", tree_of({"patient_01": 5, "healthy": 5}))
    assert not any("called as patients" in note for note in notes(tmp_path / "c"))


def test_splits_one_level_down_are_told_with_the_path_where_one_folder_has_them(tmp_path: Path) -> None:
    """A folder whose train/ has no images, as YOLO's labels/, is no other."""
    put(tmp_path, tree_of({"images/train": 3, "images/val": 2}))
    (tmp_path / "labels/train").mkdir(parents=True)
    (tmp_path / "labels/train/0.txt").write_text("0 .5 .5 .2 .2")
    refused(
        r"has no folder train/, but images/train/; if its folders are clients: data\.layout=clients, or clients_flat "
        r"if there are no classes in them, with data\.partition\.name=natural; if not: "
        rf"data\.path={tmp_path}/images; found",
        tmp_path,
        "imagefolder",
    )
    assert len(fetch(tmp_path, "imagefolder", path=tmp_path / "images").train) == 3  # what it says works
    put(tmp_path, tree_of({"more/train": 1}))
    refused(r"name=natural; found cache/, images/, labels/, more/", tmp_path, "imagefolder")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["cat.0", "cat.1", "dog.0", "dog.1"], "cat, dog"),
        (["Müller_1", "Müller_2", "Öz_3", "Öz-4"], "Müller, Öz"),
        (["IMG_0001", "IMG_0002", "IMG_0003"], None),
        (["cat.0", "cat.1", "dog.0", "7"], None),
        (["a1b2", "c3d4", "e5f6", "a7b8"], None),
        (["cat.0", "dog.0", "cow.0"], None),
    ],
)
def test_names_of_files_that_begin_with_a_class_are_told_where_no_folder_is_one(
    tmp_path: Path, names: list[str], words: str | None
) -> None:
    put(tmp_path, {f"{name}.png": P[k] for k, name in enumerate(names)})
    told = [note for note in notes(tmp_path) if "no folder is a class" in note]
    assert len(told) == (words is not None)
    assert all(f"which begin with {words}, say none" in note for note in told)
    assert not [note for note in notes(tmp_path, layout="flat") if "no folder is a class" in note]


def test_unlabelled_test_images_of_a_client_that_trains_on_nothing_are_told_how_to_lie(tmp_path: Path) -> None:
    put(tmp_path, tree_of({f"train/{site}/{kind}": 2 for site in ("north", "south") for kind in ("sick", "well")}))
    put(tmp_path, {"test/west/1.png": P[0], "test/north/sick/1.png": P[1]})
    refused(
        r"holds the class or client west, .*; if it is a client that trains on nothing, its images lie in class "
        r"folders, as test/west/sick/; or take test/west/ out, or put images of it into train/; accepted",
        tmp_path,
        "imagefolder",
        layout="clients",
    )
    (tmp_path / "test/west/sick").mkdir()
    (tmp_path / "test/west/1.png").rename(tmp_path / "test/west/sick/1.png")  # what it says works
    assert len(fetch(tmp_path, "imagefolder", layout="clients").test) == 2


def test_files_of_arrays_and_data_bases_are_told_what_to_write_instead(tmp_path: Path) -> None:
    for name, said in (("x.h5", "HDF5 is not read: write its arrays as .npz"), ("x.mdb", "LMDB is not read"),
                       ("x.mat", "MATLAB's files are not read"), ("x.arrow", "Arrow is not read: write it as Parquet"),
                       ("x.tfrecord", "TFRecord is not read"), ("x.pkl", "pickle is not read")):  # fmt: skip
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        (folder / name).write_bytes(b"\x89HDF\r\n\x1a\n")
        refused(f"1 file is not read: 1 .{name[2:]}; {said}", folder, "imagefolder")
        for source, opening in (("imagefolder", "needs a folder of images"), ("arrays", r"is no \.npz file"),
                                ("parquet", "cannot be read as Parquet")):  # fmt: skip
            refused(rf"{name} .*{opening}.*; {said}", tmp_path, source, path=folder / name)


def test_pixels_in_the_cells_of_a_table_are_told(tmp_path: Path) -> None:
    for text in (
        "emotion,pixels,Usage\n0,1 2 3 4,Training\n",
        "label,pixel0,pixel1\n1,0,0\n",
        "label,1x1,1x2\n1,0,0\n",
    ):
        (tmp_path / "t.csv").write_text(text)
        refused(r"has no column of images; .*: pixels in cells are not read; write them as an array: data\.name=arrays",
                tmp_path, "table", path=tmp_path / "t.csv")  # fmt: skip
    (tmp_path / "0.png").write_bytes(png(P[0]))
    (tmp_path / "t.csv").write_text("0,1,2\n0.png,a,7\n")  # as pandas writes columns without names
    refused("no column of images; it has 0, 1, 2: name one in data.columns.image, such as 0", tmp_path, "table",
            path=tmp_path / "t.csv")  # fmt: skip
    (tmp_path / "t.csv").write_text(",".join(["label", *(f"p{k}" for k in range(784))]) + "\n")
    refused(r"it has label, p0, .*, p18 and 765 more: pixels", tmp_path, "table", path=tmp_path / "t.csv")
