"""Where images may be lost without a word: folders and files of no split, rows without a label, limits."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.data.catalogue import Catalogue, catalogued
from rayfed_ssl.data.holdout import stratified_halves
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.pixels.store import FORMAT
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.remarks import untested_classes
from rayfed_ssl.simulation.checks import check_labels
from tests.data.files import pictures, put, tree_of, write_parquet

SIZE = 16


def read(path: Path, name: str = "imagefolder", **settings: object) -> Dataset:
    settings = {"name": name, "path": path, "image_size": SIZE} | settings
    return load(SourceConfig.model_validate(settings), path.parent / "cache")


def listed(path: Path, name: str = "imagefolder", **settings: object) -> Catalogue:
    return catalogued(SourceConfig.model_validate({"name": name, "path": path} | settings))


def ids(images: Catalogue) -> list[str]:
    return [name for name, _ in images.read()]


# -- every image of a folder -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["classes", "clients", "flat"])
def test_a_catalogue_has_every_image_of_every_split(tmp_path: Path, layout: str) -> None:
    root, client = tmp_path / "d", "north/" if layout == "clients" else ""
    put(root, tree_of({f"{split}/{client}a": n for split, n in {"train": 10, "Validation": 8, "test": 6}.items()}))
    images = listed(root, layout=layout)
    assert images.splits == (("train", 10), ("test", 6), ("val", 8))
    assert sorted(ids(images)) == sorted(file.relative_to(root).as_posix() for file in root.rglob("*.png"))
    assert ids(images)[-1].startswith("Validation/")
    assert set(images.labels.tolist()) == ({-1} if layout == "flat" else {0})
    assert images.notes == ()


def test_splits_in_client_folders_are_all_there(tmp_path: Path) -> None:
    root = tmp_path / "d"
    counts = {"n/train/a": 3, "n/test/a": 2, "n/val/b": 4, "s/train/b": 1, "s/valid/a": 2, "n/raw": 5, ".": 1, "s": 1}
    put(root, tree_of(counts))
    images = listed(root, layout="clients")
    assert images.splits == (("train", 4), ("test", 2), ("val", 6))
    assert images.labels.tolist() == [0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 0]
    (note,) = images.notes
    assert note == "n/raw/ (5 images), 2 images in no folder are not used: the images are those of the clients' splits"
    assert note in texts(read(root, layout="clients").notes)


def test_tiny_imagenets_unlabelled_test_images_are_there_and_named_as_not_used(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, tree_of({"train/n01/images": 3, "val/images": 2, "test/images": 4}))
    (root / "val/val_annotations.txt").write_text("0.png\tn01\t0\t0\t9\t9\n1.png\tn01\t0\t0\t9\t9\n")
    images = listed(root)
    assert images.splits == (("train", 3), ("test", 4), ("val", 2))
    assert (images.labels.tolist(), images.class_names) == ([0] * 3 + [-1] * 4 + [0] * 2, ("n01",))
    data = read(root)
    assert data.test.labels.tolist() == [0, 0]
    assert texts(data.notes) == ("test/ (4 images) is not used: val/ is there",)


def test_a_catalogue_without_training_images_has_every_split_too(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, tree_of({"test/a": 3, "val/a": 2}))
    assert listed(root).splits == (("test", 3), ("val", 2))


def test_what_a_catalogue_does_not_take_is_noted(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, tree_of({"train/a": 3, "val/a": 2, "extra": 7}))
    (root / "train/a/scan.nii").write_bytes(b"no image")
    images = listed(root)
    assert images.splits == (("train", 3), ("test", 2))  # val/ holds the test images of a run
    extra, scans = images.notes
    assert extra == "extra/ (7 images) is not used: the images are those of train/ and val/"
    assert scans.startswith("1 file is not read: 1 .nii; NIfTI is to be converted")
    put(tmp_path / "e", tree_of({"a": 3}))
    (tmp_path / "e/a/scan.nii").write_bytes(b"no image")
    assert listed(tmp_path / "e").notes == (scans,)


def test_a_catalogue_of_parquet_has_every_split(tmp_path: Path) -> None:
    for split, count in {"train": 10, "validation": 8, "test": 6}.items():
        write_parquet(tmp_path / f"d/{split}.parquet", pictures(count), [0] * count)
    images = listed(tmp_path / "d", "parquet")
    assert (len(ids(images)), dict(images.splits)) == (24, {"train": 10, "test": 6, "validation": 8})


# -- folders beside train/ ---------------------------------------------------------------------------------------------


def test_images_in_folders_that_are_no_split_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, tree_of({"train/a": 3, "test/a": 2, "unlabeled/deep": 6}))
    (root / "notes").mkdir()
    assert texts(read(root).notes) == ("unlabeled/ (6 images) is not used: the images are those of train/ and test/",)
    put(root, tree_of({"train2/a": 4, ".": 2, ".hidden": 5}))
    assert texts(read(root).notes) == (
        "train2/ (4 images), unlabeled/ (6 images), 2 images in no folder are not used: the images are those of "
        "train/ and test/",
    )
    put(tmp_path / "comma", tree_of({"train/a": 3, "test/a": 2, "owls, mice": 3}))
    (note,) = texts(read(tmp_path / "comma").notes)
    assert note.startswith('"owls, mice"/ (3 images) is not used')
    put(root, tree_of({f"k{n}": 1 for n in range(4)}))
    (note,) = texts(read(root, layout="flat").notes)
    assert note.startswith("k0/ (1 images), k1/ (1 images), k2/ (1 images), k3/ (1 images), train2/ (4 images) and 2 ")
    assert "and 2 more (16 images in all) are not used" in note
    assert len(read(root).train) == 3


def test_another_way_to_what_is_read_is_not_counted(tmp_path: Path) -> None:
    root = tmp_path / "d"
    put(root, tree_of({"raw/images/a": 3, "test/a": 2}))
    (root / "train").symlink_to("raw/images")
    (root / "latest").symlink_to("train/a")
    (root / "circle").symlink_to(".")
    assert (len(read(root).train), texts(read(root).notes)) == (3, ())
    put(root, tree_of({"raw/others": 4}))
    assert texts(read(root).notes) == ("raw/ (4 images) is not used: the images are those of train/ and test/",)


@pytest.mark.parametrize(("layout", "meant"), [("classes", "class"), ("clients", "client")])
def test_a_class_called_train_is_named_as_what_it_may_be(tmp_path: Path, layout: str, meant: str) -> None:
    root = tmp_path / "d"
    put(root, tree_of({"airplane": 10, "bus": 10, "train": 10}))
    data = read(root, layout=layout)
    assert (len(data.train), len(data.test), set(data.train.labels.tolist())) == (10, 0, {-1})
    hint = f"if train/ is a {meant} like them, rename it: a folder of that name is taken for the training split"
    assert texts(data.notes) == (
        f"airplane/ (10 images), bus/ (10 images) are not used: the images are those of train/; {hint}",
    )
    assert texts(data.notes) == listed(root, layout=layout).notes
    put(root, tree_of({"test/a": 1}))
    with pytest.raises(UserError, match=f"train/ has no classes; {hint}; accepted: "):
        read(root, layout=layout)
    (root / "train").rename(root / "trains")
    (root / "test").rename(tmp_path / "test")
    assert len(read(root).train) == 24
    assert "rename" not in "".join(texts(read(root, layout="flat").notes))


def test_a_run_that_needs_labels_says_how_images_without_were_read(tmp_path: Path) -> None:
    put(tmp_path / "d", tree_of({"airplane": 10, "bus": 10, "train": 10}))
    config = own(tmp_path / "d", {"name": "imagefolder"})
    with pytest.raises(
        UserError, match=r"(?s)none of the 10 train images has a label.*\ndata: airplane/ .* rename it: .*split$"
    ):
        check_labels(config, load_federation(config, tmp_path / "cache"))


def test_a_run_on_one_class_says_how_images_were_read(tmp_path: Path) -> None:
    put(tmp_path, tree_of({"images": 10}))
    (tmp_path / "labels.csv").write_text("file,label\n")
    config = own(tmp_path, {"name": "imagefolder"}, protocols=["knn"])
    with pytest.raises(UserError) as error:
        check_labels(config, load_federation(config, tmp_path / "cache"))
    first, read_as, table = str(error.value).splitlines()
    assert first.startswith("evaluation.protocols: found knn, but the training images are of 1 class")
    assert "its folders (images) are the classes" in read_as
    assert table.startswith(
        "data: labels.csv is not read; data.name=table reads a CSV or JSON Lines file and the images that it names"
    )


def own(path: Path, data: dict[str, object], **evaluation: object) -> RunConfig:
    return build(
        {
            "method": {"name": "fedsimclr"},
            "data": {"path": path, "image_size": SIZE, **data},
            "clients": {"count": 2},
            "train": {"rounds": 1, "batch_size": 2},
            "evaluation": evaluation,
        },
        {},
        origin="test",
    )


def test_what_was_made_of_public_images_is_told(tmp_path: Path) -> None:
    put(tmp_path / "d", tree_of({"train/a": 6, "test/a": 2}))
    put(tmp_path / "p", tree_of({"train": 4, "more": 3}))
    public = {"source": "source", "images": {"name": "imagefolder", "path": tmp_path / "p", "image_size": SIZE}}
    config = own(tmp_path / "d", {"name": "imagefolder", "public": public})
    (note,) = texts(load_federation(config, tmp_path / "cache").notes())
    assert note.startswith("data.public.images: more/ (3 images) is not used")


def test_public_images_are_not_said_to_be_tested_on(tmp_path: Path) -> None:
    """Those that train are read alone, so no note on a split that is not used names ``test_split``."""
    rows = {name: [f"{name}{n}.png,{n % 2}" for n in range(4)] for name in ("train", "test", "val")}
    for folder in ("tables", "column"):
        put(tmp_path / folder, {row.split(",")[0]: pictures(1)[0] for row in chain(*rows.values())})
    for name, lines in rows.items():
        (tmp_path / f"tables/{name}.csv").write_text("\n".join(["file,label", *lines]) + "\n")
    column = [f"{row},{name}" for name, lines in rows.items() for row in lines]
    (tmp_path / "column/all.csv").write_text("\n".join(["file,label,split", *column]) + "\n")
    np.savez(tmp_path / "a.npz", **{f"{name}_images": pictures(4) for name in rows})
    hugging_face(tmp_path / "hub", train=[0, 1, 0, 1], test=[0, 1], validation=[0, 1])
    for name, path, columns in (
        ("table", "tables", {}), ("table", "column/all.csv", {"split": "split"}), ("arrays", "a.npz", {}),
        ("parquet", "hub", {}),
    ):  # fmt: skip
        config = SourceConfig(name=name, path=tmp_path / path, image_size=SIZE, columns=columns)
        told = [load(config, tmp_path / "cache", *how).notes for how in ((), ("data.public.images", ("train",)))]
        own, public = ([note for note in texts(notes) if "not used" in note] for notes in told)
        assert (len(own), len(public)) == (1, 1)
        assert "; data.test_split=" in own[0]
        assert "test_split" not in public[0]


def test_without_labels_protocols_are_refused_and_a_share_to_choose_by_is_not(tmp_path: Path) -> None:
    put(tmp_path / "d", tree_of({".": 10}))
    config = own(tmp_path / "d", {"name": "imagefolder"}, select={"share": 0.1}, protocols=["knn", "rank"])
    federation = load_federation(config, tmp_path / "cache")
    assert federation.held_out is not None
    assert len(federation.held_out) == 1
    with pytest.raises(UserError, match=r"^evaluation\.protocols: found knn, but none of the 10 train images has a"):
        check_labels(config, federation)
    config = own(tmp_path / "d", {"name": "imagefolder"}, select=None, protocols=["rank"])
    assert len(load_federation(config, tmp_path / "cache").clients) == 2
    put(tmp_path / "e", tree_of({"train/a": 1, "train/b": 1, "test/a": 1}))
    config = own(tmp_path / "e", {"name": "imagefolder"}, select={"share": 0.1})
    with pytest.raises(UserError, match="no class has two labelled training images"):
        load_federation(config, tmp_path / "cache")


# -- Parquet -----------------------------------------------------------------------------------------------------------


def hugging_face(root: Path, **labels: list[int]) -> None:
    for split, values in labels.items():
        write_parquet(root / f"data/{split}-00000-of-00001.parquet", pictures(len(values)), values)


def test_a_test_split_without_labels_names_the_one_that_has_some_and_its_key(tmp_path: Path) -> None:
    hugging_face(tmp_path / "d", train=[0, 1] * 4, test=[-1] * 3, validation=[0, 1, -1, 1])
    config = own(tmp_path / "d", {"name": "parquet"}, protocols=["knn"])
    with pytest.raises(UserError) as error:
        load_federation(config, tmp_path / "cache")
    protocols, note = str(error.value).splitlines()
    assert protocols.startswith("evaluation.protocols: found knn, but none of the 3 test images has a label")
    assert note == (
        "data: data/validation-00000-of-00001.parquet (4 rows) is not used: the images are those of "
        "data/train-00000-of-00001.parquet and data/test-00000-of-00001.parquet; data.test_split=validation tests on "
        "its 3 labelled images"
    )
    config = own(tmp_path / "d", {"name": "parquet", "test_split": "validation"}, protocols=["knn"])
    data = load_federation(config, tmp_path / "cache").dataset
    assert data.test.labels.tolist() == [0, 1, -1, 1]
    assert texts(data.notes) == (
        "data/test-00000-of-00001.parquet (3 rows) is not used: the images are those of "
        "data/train-00000-of-00001.parquet and data/validation-00000-of-00001.parquet",
    )
    config = own(tmp_path / "d", {"name": "parquet"}, protocols=["rank"])
    assert load_federation(config, tmp_path / "cache").dataset.test.labels.tolist() == [-1] * 3


def test_any_split_by_its_name_is_the_test(tmp_path: Path) -> None:
    """Of the names known, val and validation, each file is offered once, and none without labels or that is damaged."""
    root = tmp_path / "d"
    hugging_face(root, train=[0, 1] * 4, dev=[1, 0, 1], test=[1])
    write_parquet(root / "held/part.parquet", pictures(1), [0])

    def labels(**data: str) -> list[int]:
        settings = {"name": "parquet", "path": root, "image_size": SIZE}
        return load(SourceConfig.model_validate(settings | data), tmp_path / "cache").test.labels.tolist()

    assert (labels(), labels(test_split="dev"), labels(test_split="held")) == ([1], [1, 0, 1], [0])
    for name, found in {
        "validation": r"found 'validation'; .* has no validation\.parquet or validation-\*\.parquet, found data/dev",
        "tr": r"found 'tr'; .* has no tr\.parquet or tr-\*\.parquet, found data/dev-00000",
        "train": "found 'train', and train-00000-of-00001.parquet is a training file",
    }.items():
        with pytest.raises(UserError, match=rf"data\.test_split: {found}"):
            labels(test_split=name)
    with pytest.raises(UserError, match=r"data\.test_split: found 'dev'; .* is one file, allowed: null"):
        labels(path=root / "data/train-00000-of-00001.parquet", test_split="dev")
    hugging_face(root, val=[-1, -1])
    assert (
        "test_split"
        not in texts(load(SourceConfig(name="parquet", path=root, image_size=SIZE), tmp_path / "cache").notes)[0]
    )
    (root / "data/validation.parquet").write_bytes(b"PAR1 and no more")
    assert (
        "test_split"
        not in texts(load(SourceConfig(name="parquet", path=root, image_size=SIZE), tmp_path / "cache").notes)[0]
    )


def test_one_file_with_labels_throughout_is_split_as_ever(tmp_path: Path) -> None:
    """Measured runs rest on these rows."""
    labels = np.arange(50) % 5
    write_parquet(tmp_path / "all.parquet", pictures(50), labels)
    data = read(tmp_path / "all.parquet", "parquet")
    rows = [3, 8, 19, 22, 24, 26, 30, 31, 45, 47]
    assert np.array_equal(data.test.pixels, pictures(50)[rows])
    assert np.array_equal(data.train.pixels, np.delete(pictures(50), rows, axis=0))
    order = np.array([0] * 7 + [2] * 16 + [5] * 10)
    assert stratified_halves(np.r_[order[::2], order[1::2]], 0.2)[1].tolist() == [2, 6, 8, 10, 16, 31]


def test_what_is_counted_before_the_limits_says_so(tmp_path: Path) -> None:
    pixels, labels = pictures(50), [0, 1] * 20 + [""] * 10
    write_parquet(tmp_path / "all.parquet", pixels, [str(label) for label in labels])
    put(tmp_path / "d", {f"c{label}/{n:03}.png": pixels[n] for n, label in enumerate(labels) if label != ""})
    (tmp_path / "cache").mkdir()

    def notes(name: str, path: str, **limits: int) -> tuple[str, ...]:
        form = {"name": name, "path": tmp_path / path, "image_size": 8, **limits}
        return texts(load(SourceConfig.model_validate(form), tmp_path / "cache").notes)

    for limits, counted in (
        ({}, ""),
        ({"limit": 100, "test_limit": 8}, ""),
        ({"limit": 20}, " (of all images; limit takes fewer)"),
        ({"limit": 20, "test_limit": 6}, " (of all images; limit and test_limit take fewer)"),
    ):
        (note,) = notes("imagefolder", "d", **limits)
        assert note.endswith(f", 8 of 40 images, is held out as test images{counted}")
        note, blank, *_ = notes("parquet", "all.parquet", **limits)
        assert note.endswith(f", 8 of 50 images, is held out as test images{counted}")
        assert blank == f"10 images have an empty label: unlabelled{counted}"


def test_what_is_held_out_is_counted_without_the_images_that_are_skipped(tmp_path: Path) -> None:
    pixels, labels = pictures(40), [0, 1] * 20
    names = [f"d/c{label}/{n:03}.png" for n, label in enumerate(labels)]
    put(tmp_path, dict(zip(names, pixels, strict=True)))
    write_parquet(tmp_path / "all.parquet", pixels, labels)
    held_out = {"d": sorted(f"d/{name.as_py()}" for name in read(tmp_path / "d").names["test"])}
    rows = [int(name.as_py().rsplit(" ", 1)[1]) for name in read(tmp_path / "all.parquet", "parquet").names["test"]]
    held_out["all.parquet"] = [names[row] for row in rows]
    for source, tests in held_out.items():
        assert len(tests) == 8
        broken = [*tests[:2], *[name for name in names if name not in tests][:5]]
        shutil.rmtree(tmp_path / "d")
        put(tmp_path, dict(zip(names, pixels, strict=True)))
        for name in broken:
            (tmp_path / name).write_bytes(b"no image")
        write_parquet(tmp_path / "all.parquet", [(tmp_path / name).read_bytes() for name in names], labels)
        kind = "imagefolder" if source == "d" else "parquet"
        for _ in range(2):  # decoded, and from the cache
            data = read(tmp_path / source, kind, on_bad_image="skip")
            assert (len(data.skipped), len(data.test), len(data.train)) == (7, 6, 27)
            assert ", 6 of 33 images, is held out as test images" in data.notes[0].text
            assert data.notes[0].public == "6 of 33 images, about a fifth of each class, were held out as test images"
        limited = read(tmp_path / source, kind, on_bad_image="skip", limit=20).notes[0]
        assert ", 8 of 40 images, is held out as test images (of all images; limit takes fewer)" in limited.text
        assert limited.public == "8 of 40 images, about a fifth of each class, were held out as test images"


def test_a_class_whose_test_images_are_all_skipped_is_said_to_have_none(tmp_path: Path) -> None:
    put(tmp_path / "d", tree_of({"a": 20, "b": 5, "tiny": 1}))
    (test_of_b,) = (name.as_py() for name in read(tmp_path / "d").names["test"] if name.as_py().startswith("b/"))
    (tmp_path / "d" / test_of_b).write_bytes(b"no image")
    data = read(tmp_path / "d", on_bad_image="skip")
    assert any("class tiny has no test image: too few" in note for note in texts(data.notes))
    said = "2 of 3 classes of the training images have no test image (b, tiny): accuracies are over the other 1 alone"
    assert said in list(texts(untested_classes(data)))


def test_rows_without_a_label_all_train_as_those_of_a_folder_do(tmp_path: Path) -> None:
    pixels, labels = pictures(100), [0, 1] * 10 + [None] * 80
    write_parquet(tmp_path / "all.parquet", pixels, labels)
    data = read(tmp_path / "all.parquet", "parquet")
    assert np.bincount(data.test.labels + 1).tolist() == [0, 2, 2]
    assert np.bincount(data.train.labels + 1).tolist() == [80, 8, 8]
    note = "one Parquet file without a test split: a fifth of each class, 4 of 100 images, is held out as test images"
    assert texts(data.notes) == (note,) == texts(read(tmp_path / "all.parquet", "parquet").notes)
    places = {None: ".", 0: "c0", 1: "c1"}
    put(tmp_path / "d", {f"{places[label]}/{n:03}.png": pixels[n] for n, label in enumerate(labels)})
    folder = read(tmp_path / "d")
    for mine, theirs in ((data.train, folder.train), (data.test, folder.test)):
        assert {image.tobytes() for image in mine.pixels} == {image.tobytes() for image in theirs.pixels}
    write_parquet(tmp_path / "none.parquet", pixels, [None] * 100)
    nobody = read(tmp_path / "none.parquet", "parquet")
    assert (len(nobody.train), len(nobody.test), texts(nobody.notes)) == (100, 0, ())
    assert FORMAT > 6  # a cache of that format holds out unlabelled rows, too


def test_parquet_files_of_no_split_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "d"
    for name, count in {"train-0": 4, "train-1": 4, "test": 2, "validation": 3}.items():
        write_parquet(root / f"data/{name}.parquet", pictures(count), [0] * count)
    said = "the images are those of data/train-0.parquet .. and data/test.parquet"
    key = "; data.test_split=validation tests on its 3 labelled images"
    assert texts(read(root, "parquet").notes) == (f"data/validation.parquet (3 rows) is not used: {said}{key}",)
    write_parquet(root / "extra/x.parquet", pictures(5), [0] * 5)
    (root / "extra/.hidden.parquet").write_bytes(b"nothing")
    (root / "extra/damaged.parquet").write_bytes(b"nothing")  # nobody reads it
    (root / "link.parquet").symlink_to("data/test.parquet")
    (note,) = texts(read(root, "parquet").notes)
    names = "data/validation.parquet, extra/damaged.parquet, extra/x.parquet (8 rows)"
    assert note == f"{names} are not used: {said}{key}"
    for n in range(4):
        write_parquet(root / f"z{n}.parquet", pictures(1), [0])
    assert "z1.parquet and 2 more (12 rows) are not used" in texts(read(root, "parquet").notes)[0]


def test_parts_that_their_names_count_and_that_are_not_there_are_named(tmp_path: Path) -> None:
    for name in ("train-00000-of-00003", "train-00002-of-00003", "test-00000-of-00001-0a1b2c", "test-1-of-x"):
        write_parquet(tmp_path / f"data/{name}.parquet", pictures(4), [0, 1] * 2)
    assert texts(read(tmp_path, "parquet").notes) == ("train-*-of-00003.parquet: 2 of 3 parts are there",)
    write_parquet(tmp_path / "data/train-00001-of-00003.parquet", pictures(4), [0, 1] * 2)
    assert texts(read(tmp_path, "parquet").notes) == ()


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_limit_that_leaves_classes_out_says_so(tmp_path: Path) -> None:
    root, labels = tmp_path / "d", np.repeat(np.arange(5), 10)
    for split in ("train", "test"):
        write_parquet(root / f"{split}.parquet", pictures(50), labels)
    data = read(root, "parquet", limit=20, test_limit=45)
    assert data.train.labels.tolist() == labels[:20].tolist()  # the first rows, as ever
    end = "they are the first rows: shuffle the rows of files that are sorted by class"
    assert texts(data.notes) == (f"limit: 20 of 50 training images are taken, which show 2 of 5 classes; {end}",)
    assert read(root, "parquet", limit=20, test_limit=45).notes == data.notes  # from the cache
    assert texts(read(root, "parquet", test_limit=1).notes) == (
        f"test_limit: 1 of 50 test images are taken, which show 1 of 5 classes; {end}",
    )
    put(tmp_path / "f", tree_of({f"{split}/{label}": 10 for split in ("train", "test") for label in "abcde"}))
    spaced = read(tmp_path / "f", limit=5, test_limit=4)
    assert spaced.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert texts(spaced.notes) == ("test_limit: 4 of 50 test images are taken, which show 4 of 5 classes",)
    write_parquet(root / "train.parquet", pictures(50), [None, 0] + [None] * 48)
    write_parquet(root / "test.parquet", pictures(2), [0, 0])
    assert texts(read(root, "parquet", limit=2).notes) == ()
