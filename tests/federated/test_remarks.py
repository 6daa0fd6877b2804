"""What is said of a run's images before its numbers: copies, image by image, and what is odd about classes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl.base.notes import Note, texts
from rayfed_ssl.config import build
from rayfed_ssl.data.images import Dataset, Images
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.pixels.copies import copies
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.remarks import (
    FEW,
    copied,
    largest_class,
    no_class,
    one_class_tested,
    remarks,
    several_labels,
    smallest_classes,
    unlabelled_tests,
    unlabelled_training,
    untested_classes,
)
from tests.data.files import write_parquet

KINDS = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)


def dataset(train: list[int], test: list[int], *labels: list[int]) -> Dataset:
    """Images of these kinds: two of one kind have the same pixels. All have one label, or these."""
    given = [np.array(own) for own in labels] or [np.zeros(len(kinds), np.int64) for kinds in (train, test)]
    splits = [Images(KINDS[kinds], own, ("a", "b")) for kinds, own in zip((train, test), given, strict=True)]
    return Dataset("made", *splits, "digest", copies=copies(*(split.pixels for split in splits)))


def said(data: Dataset, held: list[list[int]], held_out: list[int] | None = None) -> list[str]:
    out = None if held_out is None else np.array(held_out)
    return list(texts(copied(data, [np.array(rows, np.int64) for rows in held], out)))


def test_nothing_is_said_where_all_images_differ() -> None:
    assert said(dataset([0, 1, 2], [3, 4]), [[0], [1, 2]]) == []


def test_test_images_among_the_training_images_are_counted() -> None:
    """Also those that no client holds; a copy within the test images is none."""
    line = "3 of 5 test images are also among the training images (the same pixels): accuracy on them is memory"
    assert said(dataset([0, 1, 2], [2, 7, 7, 0, 2]), [[0], [1]]) == [line]


def test_a_test_set_of_one_class_is_told_where_training_images_are_of_two() -> None:
    data = dataset([0, 1, 2], [3, 4, 5], [0, 1, 1], [1, 1, -1])
    (note,) = one_class_tested(data)
    told = "always naming it is right for all of them, and an accuracy says little"
    assert note.text == f"labelled test images are of fewer than two classes, all of b: {told}"
    assert note.public == f"labelled test images are of fewer than two classes: {told}"
    assert note in remarks(data)
    assert list(one_class_tested(dataset([0, 1, 2], [3, 4], [0, 1, 1], [0, 1]))) == []
    found = largest_class(data)
    assert found is not None
    assert (found.name, found.share) == ("b", 1)
    assert largest_class(dataset([0, 1, 2], [3, 4], [1, 1, 1], [1, 1])) is None  # protocols refuse one class
    assert largest_class(dataset([0, 1, 2], [3, 4], [0, 1, 1], [-1, -1])) is None


def test_copies_among_training_images_are_counted_with_those_that_clients_share() -> None:
    """Kinds 0 (with clients 0 and 1) and 1 (twice with client 1): four images, two of them with several clients."""
    data = dataset([0, 0, 1, 1, 2], [3])
    line = "4 of 5 training images are there more than once (the same pixels)"
    assert said(data, [[0], [1, 2, 3, 4]]) == [f"{line}, 2 of them with several clients"]
    assert said(data, [[0, 1], [2, 3, 4]]) == [line]
    assert said(data, [[0, 1, 2, 3, 4]]) == [line]


def test_images_to_choose_by_that_clients_train_on_are_counted() -> None:
    """Of the images held out, rows 3 and 4, the first shows kind 0, which client 1 holds."""
    data = dataset([5, 0, 1, 0, 2], [3])
    chosen = (
        "1 of 2 images to choose by (evaluation.select) is also among the clients' (the same pixels): accuracy on "
        "it is memory"
    )
    assert said(data, [[0], [1, 2]], [3, 4]) == [
        chosen, "2 of 5 training images are there more than once (the same pixels)",
    ]  # fmt: skip
    assert said(data, [[0], [2]], [3, 4])[:1] != [chosen]


def test_copies_under_another_label_are_counted_and_are_not_called_memory() -> None:
    """Kind 0 is trained on as 0 and as 1, kind 1 as 0, kind 2 as 1, kind 3 without a label."""
    train, labels = [0, 0, 1, 2, 3], [0, 1, 0, 1, -1]
    found = "of 5 test images are also among the training images (the same pixels)"
    several = (
        "2 of 5 training images are there more than once (the same pixels), 2 of them under several labels, which "
        "contradict each other"
    )
    assert said(dataset(train, [0, 1, 2, 3, 9], labels, [1, 1, 1, 0, 0]), [[0, 1, 2, 3, 4]]) == [
        f"4 {found}, 1 of them under another label, which contradicts theirs: accuracy on the others is memory",
        several,
    ]  # fmt: skip
    assert said(dataset(train, [1, 1, 2, 8, 9], labels, [1, 1, 0, 0, 0]), [[0, 1, 2, 3, 4]]) == [
        f"3 {found}, all of them under another label, which contradicts theirs", several,
    ]  # fmt: skip
    assert said(dataset(train, [1, 2, 7, 8, 9], labels, [0, -1, 0, 0, 0]), [[0, 1, 2, 3, 4]])[0] == (
        f"2 {found}: accuracy on them is memory"
    )
    assert said(dataset(train, [1, 2, 8], labels, [0, 0, 0]), [[0, 1, 2, 3, 4]])[0] == (
        "2 of 3 test images are also among the training images (the same pixels), 1 of them under another label, which "
        "contradicts theirs: accuracy on the other is memory"
    )
    assert said(dataset(train, [1, 7, 8], labels, [0, 0, 0]), [[0, 1, 2, 3, 4]])[0] == (
        "1 of 3 test images is also among the training images (the same pixels): accuracy on it is memory"
    )
    (chosen, _) = said(dataset(train, [9], labels, [0]), [[0, 2]], [1, 3])
    assert chosen == (
        "1 of 2 images to choose by (evaluation.select) is also among the clients' (the same pixels), "
        "under another label, which contradicts its own"
    )


@pytest.mark.parametrize("copied_by", [None, np.empty((0, 2), np.int64)], ids=["not looked for", "none"])
def test_no_copies_need_no_words(tmp_path: Path, copied_by: np.ndarray | None) -> None:
    data = dataset([0], [0])
    assert list(copied(Dataset("made", data.train, data.test, "d", copies=copied_by), [np.array([0])], None)) == []


def labelled(train: list[int], test: list[int], names: tuple[str, ...] = ()) -> Dataset:
    splits = [Images(KINDS[: len(labels)], np.array(labels), names) for labels in (train, test)]
    return Dataset("made", *splits, "digest")


@pytest.mark.parametrize("name", [
    "unlabelled", "Unlabeled", "un-labelled images", "no_label", "Unknown", "na", "N/A", "#N/A", "NaN", "None", "null",
    "missing", "TBD", "not available", "?", "??", "--", "...",
])  # fmt: skip
def test_a_class_that_is_none_by_its_name_is_named(name: str) -> None:
    names = ("ill", "labelled", name)
    assert list(texts(no_class(labelled([0, 1, 2, 2, -1], [2, -1], names)))) == [
        f"{name} is taken for a class, of 3 images; images that nobody labelled lie in no class folder, or have an "
        "empty label"
    ]
    assert list(texts(no_class(labelled([0, 1], [0], names[:2])))) == []


@pytest.mark.parametrize("name", ["0", "-", "+", "Na22", "nano", "missing_hole", "no tumour", "nonesuch"])
def test_a_class_that_is_one_is_not(name: str) -> None:
    assert list(no_class(labelled([0, 1], [0], ("ill", name)))) == []


@pytest.mark.parametrize(("names", "joined"), [
    (("Effusion", "Effusion|Mass", "Mass", "Mass|Effusion|Edema", "No Finding"), 1),
    (("a; b", "b", "a", "c", "c;  a", "a;b;c"), 3),
])  # fmt: skip
def test_classes_that_are_several_labels_of_an_image_are_counted(names: tuple[str, ...], joined: int) -> None:
    (note,) = several_labels(labelled([0, 1], [0], names))
    are = "is" if joined == 1 else "are"
    assert note.text.startswith(f"{joined} of {len(names)} classes {are} called as several others together, such as '")
    assert note.public is not None
    assert not any(f"'{name}" in note.public for name in names)
    assert note in list(remarks(labelled([0, 1], [0], names)))


@pytest.mark.parametrize("names", [
    ("lung, left", "lung, right"), ("lung", "lung, left"), ("hot dog", "dog"), ("a|", "a"), ("a|a", "a"), ("0", "1"),
    ("sea", "lion", "sea lion"), ("AC", "DC", "AC/DC"),
])  # fmt: skip
def test_a_class_of_several_words_is_one(names: tuple[str, ...]) -> None:
    assert list(several_labels(labelled([0, 1], [0], names))) == []


def test_training_images_without_a_label_are_counted_where_others_have_one() -> None:
    data = labelled([0, -1, 1, -1, 1], [0, 1])
    line = (
        "2 of 5 training images have no label: clients train on them, and protocols take labels from the others alone"
    )
    assert list(texts(unlabelled_training(data))) == [line]
    assert line in texts(remarks(data))
    (line,) = texts(unlabelled_training(labelled([0, -1], [0])))
    assert line.startswith("1 of 2 training images has no label: ")
    for train in ([0, 1], [-1, -1]):
        assert list(texts(unlabelled_training(labelled(train, [0])))) == []
    told = dataclasses.replace(data, notes=(Note("2 images have an empty label: unlabelled"),))
    assert list(texts(unlabelled_training(told))) == []


def test_test_images_without_a_label_are_counted_where_others_have_one() -> None:
    data = labelled([0, 1], [0, -1, 1, -1, 1])
    line = "2 of 5 test images have no label: accuracies are over the other 3"
    assert list(texts(unlabelled_tests(data))) == [line]
    assert line in texts(remarks(data))
    (line,) = texts(unlabelled_tests(labelled([0, -1], [-1, 0])))
    assert line == "1 of 2 test images has no label: accuracies are over the other 1"
    for tests in ([0, 1], [-1, -1], []):
        assert list(texts(unlabelled_tests(labelled([0, -1], tests)))) == []


def test_classes_of_the_training_images_without_a_test_image_are_named() -> None:
    data = labelled([0, 1, 2, 3, -1], [0, 2, -1], ("a", "b", "c", "d"))
    line = "2 of 4 classes of the training images have no test image (b, d): accuracies are over the other 2 alone"
    assert list(texts(untested_classes(data))) == [line]
    assert line in texts(remarks(data))
    (line,) = texts(untested_classes(labelled([*range(8)], [3])))
    assert line.startswith("7 of 8 classes of the training images have no test image (0, 1, 2, 4, 5 and 2 more)")
    (line,) = texts(untested_classes(labelled([0, 1], [0], ("a", "b"))))
    assert line.startswith("1 of 2 classes of the training images has no test image (b): ")
    for train, test in (([0, 1], [1, 0, -1]), ([0, 1], []), ([0, 1], [-1]), ([-1], [0]), ([-1], [])):
        assert list(texts(untested_classes(labelled(train, test)))) == []


def test_a_class_too_small_to_be_tested_is_named_once(tmp_path: Path) -> None:
    write_parquet(tmp_path / "all.parquet", KINDS, [0] * 28 + [1] * 2)
    data = load(SourceConfig(path=tmp_path / "all.parquet", image_size=8), tmp_path)
    assert [line for line in texts(remarks(data)) if "no test image" in line] == [
        "class 1 has no test image: too few images to hold a share of 0.2 out"
    ]
    write_parquet(tmp_path / "d/train.parquet", KINDS[:20], [0] * 10 + [1] * 10)
    write_parquet(tmp_path / "d/test.parquet", KINDS[20:], [0] * 10)
    line = "1 of 2 classes of the training images has no test image (1): accuracies are over the other 1 alone"
    assert line in texts(remarks(load(SourceConfig(path=tmp_path / "d", image_size=8), tmp_path)))


def test_classes_of_few_test_images_are_named() -> None:
    few, most = [0, 1, 1], [2] * (FEW - 1)
    end = "and balanced accuracy and AUC weigh it as the largest class"
    names = ("a", "b", "c")
    assert list(texts(smallest_classes(labelled([0], [0] * FEW + [1] * 2 + [-1], names)))) == [
        f"class b has fewer than 5 of 7 test images (the fewest: 2): one image is up to 50 points of a class's "
        f"accuracy, {end}"
    ]
    assert list(texts(smallest_classes(labelled([0], few + most, names)))) == [
        f"classes a, b, c have fewer than 5 of 7 test images (the fewest: 1): one image is up to 100 points of a "
        f"class's accuracy, {end}"
    ]
    (short,) = texts(smallest_classes(labelled([0], few, names)))  # three test images in all
    assert short.startswith("classes a, b have fewer than 5 test images (the fewest: 1): one image is up to 100 points")
    assert list(texts(smallest_classes(labelled([0], most, names)))) == []  # of one class nothing is measured
    assert list(texts(smallest_classes(labelled([0], [0] * FEW + [1] * FEW)))) == []
    one_of_none = labelled([0, 1, 2], [0] * FEW + [2] * FEW)  # which is another matter
    assert list(smallest_classes(one_of_none)) == []
    (line,) = texts(smallest_classes(labelled([0], [*range(7), 7, 7])))
    assert line.startswith("classes 0, 1, 2, 3, 4 and 3 more have")


HALF = "holds out 10 of 20 labelled training images, 50% for a share of 10%: of each class at least one"


@pytest.mark.parametrize(
    ("each", "grouped", "line"),
    [
        (
            2,
            False,
            ["holds out 10 of 20 labelled training images, 50% for a share of 10%: of each class at least one image"],
        ),
        (
            2,
            True,
            ["holds out 10 of 20 labelled training images, 50% for a share of 10%: of each class at least one group"],
        ),
        (10, False, []),
    ],
)
def test_more_images_to_choose_by_than_their_share_are_said(
    tmp_path: Path, each: int, grouped: bool, line: list[str]
) -> None:
    """Ten classes of so many training images: of two, one is half."""
    labels = [row % 10 for row in range(10 * each)]
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)
    patients = {"patient": list(range(len(labels)))} if grouped else {}
    write_parquet(tmp_path / "d" / "train.parquet", pixels, labels, **patients)
    write_parquet(tmp_path / "d" / "test.parquet", pixels[:10], labels[:10], **patients and {"patient": [1000] * 10})
    data = {"name": "parquet", "path": str(tmp_path / "d"), "image_size": 8}
    columns = {"columns": {"group": "patient"}} if grouped else {}
    document = {"method": {"name": "fedsimclr"}, "data": data | columns, "clients": {"count": 2}}
    federation = load_federation(
        build(document, {"evaluation.select": {"share": 0.1}}, origin="a test"), tmp_path / "cache"
    )
    found = [note for note in texts(federation.notes()) if note.startswith("evaluation.select holds out")]
    assert found == [f"evaluation.select {one}, where it has two" for one in line]
