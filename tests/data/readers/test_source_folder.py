"""Folders of images, against pixels and labels the test wrote itself."""

from __future__ import annotations

import os
import shutil
import socket
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.readers.folders.images import every_image
from tests.data.files import fetch, file_of, pictures, put, refused, training_images, tree_of, write_parquet


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
    assert data.train.clients is None
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
    assert data.train.client_names == ("hospital_a", "hospital_b")
    assert data.train.class_names == ("sick", "well")
    assert data.train.clients.tolist() == [0, 0, 1, 1]
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
    assert data.train.clients.tolist() == [0, 1]


def test_folders_that_are_no_classes_have_a_way_out(tmp_path):
    """Images on one level and deeper ones, of which nobody meant the folders to be classes."""
    p = pictures(6)
    put(tmp_path, {f"train/{n}.png": p[n] for n in range(4)} | {"train/nested/deep/4.png": p[4]})
    refused(
        r"has no images in test/ or val/, and labelled images need a test split; the folders in train/ are taken for "
        r"classes \(nested\), with 4 unlabelled images beside them; if they are none: data\.layout=flat; "
        r"data\.path=.*/train holds a fifth of each class out; found train/, [^;]*$",  # no more trees
        tmp_path,
        "imagefolder",
    )
    data = fetch(tmp_path, "imagefolder", layout="flat")
    assert np.array_equal(data.train.pixels, p[[0, 1, 2, 3, 4]])
    assert (data.train.labels.tolist(), data.train.class_names, data.train.clients) == ([-1] * 5, (), None)
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
        assert (data.train.clients.tolist(), data.train.client_names) == ([0, 0, 0, 1], ("north", "south"))
        assert (len(data.test), texts(data.notes)) == (0, ())
        table = every_image(tmp_path / name, "clients_flat", "data")[0]
        seen[name] = [(file.name, split, label) for file, split, label in table]
    assert seen["bare"] == [(f"{n}.png", None, None) for n in range(4)]
    assert seen["train"] == [(f"{n}.png", "train", None) for n in range(4)]
    put(tmp_path / "train", {"test/north/p9/4.png": p[4], "test/elsewhere/5.png": p[5]})
    tests = fetch(tmp_path, "imagefolder", path=tmp_path / "train", layout="clients_flat").test
    assert (tests.clients.tolist(), tests.labels.tolist()) == ([-1, 0], [-1, -1])
    put(tmp_path / "own", {"north/train/p1/0.png": p[0], "north/test/p1/1.png": p[1], "south/train/2.png": p[2]})
    data = fetch(tmp_path, "imagefolder", path=tmp_path / "own", layout="clients_flat")
    assert (data.train.clients.tolist(), data.test.clients.tolist()) == ([0, 1], [0])
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([-1, -1], [-1])
    assert {row[2] for row in every_image(tmp_path / "own", "clients_flat", "data")[0]} == {None}


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
        assert texts(alone.notes) == ()
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
    assert data.test.client_names == ("north", "south")
    seen = {
        (int(client), int(label)): image
        for client, label, image in zip(data.test.clients, data.test.labels, data.test.pixels, strict=True)
    }
    expected = {(0, 0): p[2], (0, 1): p[3], (1, 1): p[4], (-1, 0): p[5], (1, -1): p[6], (-1, -1): p[7]}
    assert seen.keys() == expected.keys()
    assert all(np.array_equal(seen[place], expected[place]) for place in expected)
    put(tmp_path, {"test/west/dead/1.png": p[0]})
    refused(
        r"test holds the class or client west, which no training image has; train/ has sick, well, north, south; "
        r"take it out of test/, or put images of it into train/; accepted: train/<client>/<class>/x\.jpg",
        tmp_path,
        "imagefolder",
        layout="clients",
    )


def test_a_table_beside_images_without_classes_is_told(tmp_path):
    put(tmp_path, {f"train/{k}.png": image for k, image in enumerate(pictures(3))})
    (tmp_path / "train/metadata.csv").write_text("file_name,label\n0.png,a\n")
    told = "train/metadata.csv is not read; data.name=table reads a CSV or JSON Lines file and the images that it names"
    assert told in texts(fetch(tmp_path, "imagefolder").notes)
    put(tmp_path, tree_of({"train/a": 2, "test/a": 1}))
    assert told not in texts(fetch(tmp_path, "imagefolder").notes)  # folders are the classes


def test_a_hospital_that_only_tests_has_common_test_images(tmp_path):
    put(tmp_path, tree_of({f"train/{site}/{kind}": 2 for site in ("north", "south") for kind in ("sick", "well")}))
    put(tmp_path, tree_of({"test/west/sick": 3, "test/east/well": 1, "test/north/well": 2, "test/sick/well": 1}))
    data = fetch(tmp_path, "imagefolder", layout="clients")
    counted = Counter(zip(data.test.clients.tolist(), data.test.labels.tolist(), strict=True))
    assert counted == {(-1, 0): 4, (-1, 1): 1, (0, 1): 2}  # test/sick/well: the class sick
    said = "4 of 7 test images are of 2 clients without training images (east, west): accuracies over all test images "
    assert [note for note in texts(data.notes) if note.startswith(said)]
    assert all("west" not in (note.public or "") for note in data.notes)
    limited = texts(fetch(tmp_path, "imagefolder", layout="clients", test_limit=1).notes)
    assert any("1 of 1 test images is of a client without training images (east)" in note for note in limited)
    flat = fetch(tmp_path, "imagefolder", layout="clients_flat")
    said = "5 of 7 test images are of 3 clients without training images (east, sick, west): "
    assert any(note.startswith(said) for note in texts(flat.notes))
    put(tmp_path, {"test/SOUTH/sick/9.png": pictures(1)[0]})
    for layout in ("clients", "clients_flat"):
        refused(
            r"data\.path: test images are of the client 'SOUTH', training images of 'south'; allowed: one name",
            tmp_path, "imagefolder", layout=layout,
        )  # fmt: skip


def test_a_hospital_that_only_tests_may_have_a_folder_beside_those_that_train(tmp_path):
    put(tmp_path, tree_of({f"{site}/train/{kind}": 2 for site in ("north", "south") for kind in ("sick", "well")}))
    put(tmp_path, tree_of({"west/test/sick": 3, "north/test/well": 2}))
    data = fetch(tmp_path, "imagefolder", layout="clients")
    assert data.train.client_names == ("north", "south")
    assert Counter(zip(data.test.clients.tolist(), data.test.labels.tolist(), strict=True)) == {(-1, 0): 3, (0, 1): 2}
    said = "3 of 5 test images are of a client without training images (west): "
    assert any(note.startswith(said) for note in texts(data.notes))
    put(tmp_path, tree_of({"docs/test/.": 1}))
    said = "4 of 6 test images are of 2 clients without training images (docs, west): "
    assert any(note.startswith(said) for note in texts(fetch(tmp_path, "imagefolder", layout="clients").notes))
    put(tmp_path, tree_of({"east/trian/sick": 2, "east/test/sick": 1}))
    refused(
        r"has trian/ in east/, which has no train/: is it to be train/\?", tmp_path, "imagefolder", layout="clients"
    )
    shutil.rmtree(tmp_path / "east")
    put(tmp_path, tree_of({"west/test/dead": 1}))
    refused(r"holds the class or client dead, which no training image has", tmp_path, "imagefolder", layout="clients")


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
    note, untested = texts(data.notes)
    assert untested == "class owls has no test image: too few images to hold a share of 0.2 out"
    assert "has no train/ and test/: its folders (cats, dogs, owls) are the classes" in note
    assert "6 of 36 images, is held out" in note
    (tmp_path / "owls").rename(tmp_path / "owls, mice")
    assert 'its folders (cats, dogs, "owls, mice") are the classes' in texts(fetch(tmp_path, "imagefolder").notes)[0]


def test_unlabelled_images_without_a_split_all_train(tmp_path):
    put(tmp_path, tree_of({".": 7}))
    data = fetch(tmp_path, "imagefolder")
    assert (len(data.train), len(data.test), texts(data.notes)) == (7, 0, ())
    put(tmp_path, tree_of({"2023": 3}))
    assert len(fetch(tmp_path, "imagefolder", layout="flat").train) == 10


def test_client_folders_without_a_split_keep_the_client_of_held_out_images(tmp_path):
    put(tmp_path, tree_of({"north/sick": 10, "north/well": 10, "south/sick": 10, "south/well": 10}))
    data = fetch(tmp_path, "imagefolder", layout="clients")
    assert data.train.class_names == ("sick", "well")
    assert data.train.client_names == ("north", "south")
    assert np.bincount(data.test.labels).tolist() == [4, 4]
    both = np.concatenate([data.train.clients, data.test.clients])
    assert np.bincount(both).tolist() == [20, 20]
    assert "its client folders' folders (sick, well) are the classes" in texts(data.notes)[0]
    assert texts(data.notes)[0].endswith("test images; if they are none: data.layout=clients_flat")


def test_clients_may_hold_train_and_test_themselves(tmp_path):
    p = pictures(4)
    tree = {"a b/train/sick/1.png": p[0], "c/train/well/1.png": p[1], "a b/test/well/1.png": p[2], "c/val/1.png": p[3]}
    put(tmp_path, tree)
    data = fetch(tmp_path, "imagefolder", layout="clients")
    assert (data.train.class_names, data.train.client_names) == (("sick", "well"), ("a b", "c"))
    assert (data.train.labels.tolist(), data.train.clients.tolist()) == ([0, 1], [0, 1])
    assert (data.test.labels.tolist(), data.test.clients.tolist()) == ([1, -1], [0, 1])
    assert all(np.array_equal(found, wanted) for found, wanted in zip(data.test.pixels, p[2:], strict=True))
    refused(
        r"has no folder train/, but a b/train/; if its folders are clients: data\.layout=clients, or clients_flat "
        r"if there are no classes in them, with data\.partition\.name=natural; found a b/, c/, cache/$",
        tmp_path,
        "imagefolder",
    )
    put(tmp_path, {"d/well/1.png": p[0]})
    refused(r"has d/ without train/ or test/ in it", tmp_path, "imagefolder", layout="clients")


def test_too_few_images_to_hold_some_out_are_refused(tmp_path):
    put(tmp_path, tree_of({"cats": 2, "dogs": 2}))
    refused(r"of no class enough images to hold a fifth out", tmp_path, "imagefolder")


def test_folders_that_look_like_clients_and_tables_of_labels_are_named(tmp_path):
    put(tmp_path, tree_of({f"{split}/{c}/{y}": 2 for split in ("train", "test") for c in "ab" for y in ("up", "down")}))
    (note,) = texts(fetch(tmp_path, "imagefolder", layout="classes").notes)
    assert (
        note
        == "a, b are taken for classes, and each of them holds down, up: if they are clients, data.layout=clients; "
        "if the inner ones are patients, data.group"
    )
    assert texts(fetch(tmp_path, "imagefolder", layout="clients").notes) == ()
    phones = tmp_path / "phones"  # that share no class
    put(phones, tree_of({"p0/cat": 5, "p0/dog": 5, "p1/cow": 5, "p2": 5}))
    *_, note = texts(fetch(tmp_path, "imagefolder", path=phones).notes)
    assert note == (
        "p0, p1, p2 are taken for classes, and folders in them, cat, cow, dog, for nothing: if they are clients, "
        "data.layout=clients; if the inner ones are patients, data.group"
    )
    put(tmp_path / "deep", tree_of({"a/images": 5, "b/images": 5}))
    (note,) = texts(fetch(tmp_path, "imagefolder", path=tmp_path / "deep").notes)
    assert "clients" not in note
    put(tmp_path / "csv", tree_of({"a": 5, "b": 5}))
    (tmp_path / "csv/labels.CSV").write_text("file,label\n")
    *_, note = texts(fetch(tmp_path, "imagefolder", path=tmp_path / "csv").notes)
    assert note.startswith("labels.CSV is not read")


SITES = {f"{site}/{label}": 5 for site in ("hospital_a", "hospital_b") for label in ("healthy", "sick")}


@pytest.mark.parametrize("below", ["", "train/"])
def test_a_tree_that_does_not_say_which_folders_are_the_classes_is_refused_until_the_layout_is_set(tmp_path, below):
    put(tmp_path, tree_of({f"{below}{folder}": count for folder, count in SITES.items()}))
    if below:
        put(
            tmp_path,
            {f"test/{label}/x.png": pixels for label, pixels in zip(["sick", "healthy"], pictures(2), strict=True)},
        )
    root = str(tmp_path / below).rstrip("/")
    refused(
        rf"^data\.path: each of the folders hospital_a, hospital_b in {root} holds folders healthy, sick, so the tree "
        r"does not say which are the classes; allowed: data\.layout=clients if the outer ones are clients, such as "
        r"hospitals, and the inner ones classes; data\.layout=clients_flat if the outer ones are clients, and the "
        r"inner ones no classes, but patients or dates; data\.layout=classes if the outer ones are classes, and the "
        r"inner ones mean nothing, or are patients, which data\.group finds$",
        tmp_path,
        "imagefolder",
    )
    data = fetch(tmp_path, "imagefolder", layout="clients")
    assert (data.train.class_names, data.train.client_names) == (("healthy", "sick"), ("hospital_a", "hospital_b"))
    assert training_images(tmp_path, "imagefolder").train.class_names == ("hospital_a", "hospital_b")  # whose labels..
    if not below:
        assert fetch(tmp_path, "imagefolder", layout="classes").train.class_names == ("hospital_a", "hospital_b")
        refused("does not say which are the classes", tmp_path, "imagefolder")  # also from the cache
        patients = fetch(tmp_path, "imagefolder", group="[^/]+/[^/]+$")
        assert patients.train.class_names == ("hospital_a", "hospital_b")


@pytest.mark.parametrize(
    "tree",
    [
        {"a/one": 5, "a/two": 5, "b/one": 5, "b/three": 5},  # one folder in common
        {"a/images": 5, "b/images": 5},
        {"a/one": 5, "a/two": 5, "b/one": 5, "b/two": 5, "c": 5},  # one class without
        {"a/one": 5, "a/two": 5},  # one class
        {"a/P1": 5, "a/P2": 5, "b/P3": 5, "b/P4": 5},
    ],
)
def test_other_trees_of_classes_are_read(tmp_path, tree):
    put(tmp_path, tree_of(tree))
    assert fetch(tmp_path, "imagefolder").train.class_names == tuple(sorted({name[0] for name in tree}))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("hospital_a", "hospital_b"), True),
        (("Site 1", "Site 2", "Site 10"), True),
        (("centre-3", "centre-4"), True),
        (("hospital_a", "site_b"), False),
        (("hospital_a", "hospital_north"), False),
        (("hospital", "clinic"), False),
        (("cat_a", "cat_b"), False),
    ],
)
def test_classes_that_are_called_as_clients_are_are_named(tmp_path, names, said):
    put(tmp_path, tree_of(dict.fromkeys(names, 5)))
    *_, note = texts(fetch(tmp_path, "imagefolder").notes)
    assert (
        note.endswith(
            "are taken for classes, and are called as clients are: if they are clients, data.layout=clients_flat, with "
            "which no image has a label"
        )
        == said
    )
    assert not any("called as clients" in line for line in texts(fetch(tmp_path, "imagefolder", layout="flat").notes))


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


@pytest.mark.parametrize("whole", [True, False])
def test_images_that_cannot_be_read_are_bad_images_like_any_other(tmp_path, monkeypatch, whole):
    """Links to nowhere and to themselves, a file without permission (root may read it) and one whose read fails."""
    monkeypatch.setattr("rayfed_ssl.data.pixels.cache_names.CONTENT_DIGEST_BYTES", 2**28 if whole else 0)
    root = tmp_path / "images"
    put(root, {f"train/cat/{n}.png": image for n, image in enumerate(pictures(3))} | {"test/cat/t.png": pictures(1)[0]})
    bad = [root / "train/cat/gone.png", root / "train/cat/self.png", root / "train/cat/failing.png"]
    for link, target in zip(bad, ("nowhere.png", "self.png", "/proc/self/mem"), strict=True):
        link.symlink_to(target)
    if os.geteuid():
        bad.append(root / "train/cat/2.png")
        bad[-1].chmod(0)
    refused(rf"data\.on_bad_image: {len(bad)} images cannot be decoded: .*failing", tmp_path, "imagefolder", path=root)
    data = fetch(tmp_path, "imagefolder", path=root, on_bad_image="skip")
    assert len(data.train) == (2 if os.geteuid() else 3)
    assert data.skipped == tuple(str(path) for path in sorted(bad))
    for path in bad:
        path.chmod(0o600) if path.is_file() and not path.is_symlink() else path.unlink()
    assert not fetch(tmp_path, "imagefolder", path=root, on_bad_image="skip").skipped  # another key of the cache


def test_a_link_to_nowhere_beside_the_splits_harms_nobody(tmp_path):
    put(tmp_path, {"more/tr/a/1.png": pictures(1)[0], "test/a/1.png": pictures(1)[0], "more/x.png": pictures(1)[0]})
    (tmp_path / "more/self.png").symlink_to("self.png")
    (tmp_path / "train").symlink_to("more/tr")
    assert any(note.startswith("more/ (2 images) is not used") for note in texts(fetch(tmp_path, "imagefolder").notes))


@pytest.mark.parametrize("layout", ["classes", "clients"])
def test_folders_that_seem_to_be_splits_by_other_names_are_named(tmp_path, layout):
    places = [f"{split}_set/{label}/{n}.png" for split in ("training", "test") for label in "ab" for n in range(5)]
    put(tmp_path / "d", dict(zip(places, pictures(20), strict=True)))
    notes = texts(fetch(tmp_path, "imagefolder", path=tmp_path / "d", layout=layout).notes)
    said = (
        "training_set, test_set are taken for classes or clients; if they are splits, rename them to train/ and test/"
    )
    assert [note for note in notes if note.startswith(said)]
    assert not [note for note in notes if "if they are clients" in note]
    for name, other in (("training_set", "trains"), ("test_set", "buses")):  # one is no sign
        (tmp_path / "d" / name).rename(tmp_path / "d" / other)
    assert not [
        n for n in texts(fetch(tmp_path, "imagefolder", path=tmp_path / "d", layout=layout).notes) if "splits" in n
    ]


def test_no_training_images_are_said_with_those_that_cannot_be_decoded_if_any(tmp_path):
    write_parquet(tmp_path / "bad.parquet", [b"x"] * 5, [0] * 5)
    write_parquet(tmp_path / "none.parquet", [], [])
    refused(
        r"no training images in .*\(4 cannot be",
        tmp_path,
        "parquet",
        path=tmp_path / "bad.parquet",
        on_bad_image="skip",
    )
    refused(r"no training images in .*none\.parquet$", tmp_path, "parquet", path=tmp_path / "none.parquet")


def test_a_class_folder_whose_disk_is_gone_is_named(tmp_path):
    root = tmp_path / "images"
    put(root, {f"{name}/{n}.png": image for name in "ab" for n, image in enumerate(pictures(5))})
    (root / "cats").symlink_to("/mnt/gone/cats")
    (root / "a/scan").write_bytes(b"DICM")
    (root / "readme.txt").symlink_to("nowhere")  # nobody misses it
    said = "cats leads nowhere: no image is read there; 1 file is not read: 1 without suffix"
    assert said in "; ".join(texts(fetch(tmp_path, "imagefolder", path=root).notes))
    for n in range(7):
        (root / f"d{n}").symlink_to("nowhere")
    said = "cats, d0, d1, d2, d3 and 3 more lead nowhere"
    assert any(note.startswith(said) for note in texts(fetch(tmp_path, "imagefolder", path=root).notes))


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
    refused(r"self\.png cannot be decoded \(it cannot be read: Too many levels of symbolic", tmp_path, "imagefolder")
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
    assert fetch(tmp_path, "imagefolder", layout="clients").train.client_names == ("alice",)
    (tmp_path / "train/alice").rename(tmp_path / "train/bob")
    assert fetch(tmp_path, "imagefolder", layout="clients").train.client_names == ("bob",)


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
        r"labels, and `rayfed-ssl evaluate RUN --data FOLDER --protocol knn` measures",
        tmp_path,
        "imagefolder",
    )
    data = fetch(tmp_path, "imagefolder", layout="flat")  # what it says works
    assert (len(data.train), len(data.test)) == (2, 1)
    assert (data.test.labels < 0).all()


def test_folder_errors_name_the_folder(tmp_path):
    (tmp_path / "read.me").write_text("nothing")
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
    (tmp_path / "train/cat/bad.jpg").write_bytes(file_of(pictures(1, 64)[0], "JPEG")[:-300])
    refused(r"data\.on_bad_image: .*train/cat/bad\.jpg cannot be decoded .*truncated", tmp_path, "imagefolder")
    (tmp_path / "train/cat/bad.jpg").unlink()
    put(tmp_path, {"train/cat/big.png": np.zeros((40, 30), np.uint8)})
    said = r"train/cat/big\.png .*30x40 pixels, more than max_pixels=1000, which may be up to 178956970\)"
    refused(said, tmp_path, "imagefolder", max_pixels=1000)
    (tmp_path / "train/cat/gone.png").symlink_to("nowhere.png")
    refused(r"data\.on_bad_image: 2 images .*gone\.png", tmp_path, "imagefolder", max_pixels=1000)
    (tmp_path / "train/cat/big.png").rename(tmp_path / "big.png")
    said = r"gone\.png cannot be decoded \(it cannot be read: No such file .*; it is a link to nowhere\.png\); mend or"
    refused(said, tmp_path, "imagefolder")
    refused(r"big\.png is a file; .*needs a folder of", tmp_path, "imagefolder", path=tmp_path / "big.png")
    (tmp_path / "labels.CSV").write_text("file,label\n")
    table = r"labels\.CSV is a file; .*; data\.name=table reads it, and the images that it names"
    refused(table, tmp_path, "imagefolder", path=tmp_path / "labels.CSV")


@pytest.mark.parametrize(("layout", "tree"), [("classes", "train/<class>/x.jpg with"), ("flat", "train/.../x.jpg, or")])
def test_an_empty_folder_is_refused_in_a_short_line(tmp_path: Path, layout: str, tree: str) -> None:
    """What trees there are helps who has images; who has none looks for the folder."""
    (tmp_path / "images").mkdir()
    line = f"data.path: {tmp_path / 'images'} is an empty folder; must hold images, as {tree}"
    with pytest.raises(UserError) as refusal:
        fetch(tmp_path / "images", "imagefolder", layout=layout)
    assert str(refusal.value).startswith(line)
    assert len(str(refusal.value)) < len(str(tmp_path)) + 200
    for folder in ("a/b", "test/a", "train"):  # also where the splits are there
        (tmp_path / "images" / folder).mkdir(parents=True)
        with pytest.raises(UserError, match=r"holds empty folders alone; must hold images, as train/"):
            fetch(tmp_path / "images", "imagefolder", layout=layout)
    (tmp_path / "images/a/read.me").write_text("nothing")
    with pytest.raises(UserError, match="found a/, test/, train/, test/a/; accepted with"):
        fetch(tmp_path / "images", "imagefolder", layout=layout)
