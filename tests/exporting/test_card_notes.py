"""What of a run's notes gets onto a model card: the notes as the library makes them, with names that must not."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import rayfed_ssl
from rayfed_ssl.base import notes as notes_module
from rayfed_ssl.base.notes import Note, as_notes, public_lines
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.holdout import held_out_notes
from rayfed_ssl.data.images import Dataset, Images
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.partition import FromFile, Natural
from rayfed_ssl.data.pixels import near_copies
from rayfed_ssl.data.pixels.copies import copies
from rayfed_ssl.data.pixels.digests import pixel_digests
from rayfed_ssl.data.pixels.notes import SAID, counted, misfitting, plain
from rayfed_ssl.data.pixels.traits import MISFITS, Misfits
from rayfed_ssl.data.readers.column_values import Empty, gaps
from rayfed_ssl.data.readers.limits import unseen_classes
from rayfed_ssl.data.readers.ownership import shared_notes, ungrouped, untrained_notes
from rayfed_ssl.data.readers.split_rows import NO_LABEL, Beside
from rayfed_ssl.data.recipes import AugmentConfig
from rayfed_ssl.data.source_notes import recounted
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.evaluation.knn import KnnConfig
from rayfed_ssl.evaluation.knn import remarks as of_knn
from rayfed_ssl.evaluation.semi import SemiConfig
from rayfed_ssl.evaluation.semi import remarks as of_semi
from rayfed_ssl.exporting.encoders import run_encoder
from rayfed_ssl.exporting.folder import export
from rayfed_ssl.federated.remarks import (
    copied,
    of_classes,
    one_class_tested,
    over_share,
    remarks,
    several_labels,
    unlabelled_training,
)
from rayfed_ssl.methods.fedfoa import ServerHalf as FedFoA
from rayfed_ssl.methods.fedprox import Server as FedProx
from rayfed_ssl.methods.fedsc import Server as FedSC
from rayfed_ssl.methods.fedu2 import Server as FedU2
from rayfed_ssl.methods.ldawa import Server as LDAWA
from rayfed_ssl.methods.parts.privacy import Mechanism
from rayfed_ssl.models import StartConfig
from rayfed_ssl.records.trained_image_digests import of_start, write_trained
from rayfed_ssl.simulation.checks import coded_weights, image_notes, one_owner, split_groups
from tests.data.files import pictures, put
from tests.tiny import run_locally, tiny

WHO = "Ada King"
NAMES = ("sick", "Sick", "unlabelled", WHO)
KINDS = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)


def images(kinds: list[int], labels: list[int], clients: list[int] | None = None) -> Images:
    given = None if clients is None else np.array(clients)
    return Images(KINDS[kinds], np.array(labels), NAMES, given, (WHO, "b"))


def of_data(folder: Path) -> tuple[Note, ...]:
    """Notes of each kind that data sets, partitions and protocols have."""
    train = images([*range(8), 0], [0, 1, 2, 3, 0, 0, 0, 0, 0], [0, 0, 1, -1, 1, 1, 1, 1, 1])
    test = images([0, *range(10, 18)], [0] * 7 + [1, -1])
    data = Dataset("made", train, test, "digest", copies=copies(train.pixels, test.pixels))
    numbers = np.arange(60) % 4
    shared = {"train": np.array([0, 1]), "test": np.array([1, 5])}
    alone = held_out_notes(np.repeat([0, 1], [28, 2]), np.arange(6), ("a", WHO), None, "one Parquet file")
    of_folder = SourceConfig(name="imagefolder", path=folder, layout="flat", group="([A-Z].*)_", image_size=8)
    lines = [
        *copied(data, [np.arange(4), np.arange(4, 9)], np.array([8])),
        *of_classes(data),
        *unlabelled_training(Dataset("made", images([0, 1], [0, -1]), images([2], [0]), "digest")),
        *one_class_tested(Dataset("made", images([0, 1], [0, 1]), images([2], [0]), "digest")),
        *over_share(numbers, np.arange(30), 0.1, grouped=False),
        *counted(dict.fromkeys(SAID, 3), "black", "data"),
        *misfitting([dict.fromkeys(MISFITS, Misfits(3, -5.0, 900.0, {WHO: 3}))], "their own window"),
        *plain(np.zeros((2, 3), np.uint8), 1, "black", "data", [WHO, "b"]),
        *near_copies.note(
            near_copies.NearCopies([(0, 1), (2, 3)], 9, 9), (9, 9), ([WHO, "b"], ["c", WHO]), "data.group"
        ),
        *alone,
        *held_out_notes(np.zeros(9, np.int64), np.arange(2), (WHO,), np.arange(9), f"{WHO}'s file"),
        *unseen_classes("train", numbers, np.arange(2)),
        *gaps([np.array([0, 5])]),
        *shared_notes(shared, "data.columns.group"),
        *shared_notes({**shared, "test": np.array([-1])}, "data.group"),
        *untrained_notes([WHO, None]),
        *several_labels(replace(data, train=replace(train, class_names=(WHO, "b", f"{WHO}|b")))),
        *ungrouped(["patient"], True, "data"),
        *of_knn(KnnConfig(k=60), np.arange(200) // 2),
        *of_semi(SemiConfig(fractions=(0.01,)), np.arange(200) // 20),
        *Beside({}, (), (), {NO_LABEL: Empty(1, 3)}).notes(""),
        *Beside({}, (WHO,), None, {}, 2).notes(""),
        *remarks(replace(data, copies=None, skipped=(WHO,)))[:1],
        *load(of_folder, folder / "cache").notes,
        *Natural(min_size=3).notes(train, np.arange(9), [np.empty(0, np.int64), np.arange(4, 9)]),
    ]
    return recounted(lines, (0, 0), (0, 0))


def of_dealing() -> tuple[Note, ...]:
    """Notes on who holds what, of as much of a run as they look at."""
    train = replace(images([*range(4)], [0, 1, 0, 1], [0, 0, 0, 0]), client_names=(WHO,), groups=np.array([0, 0, 1, 1]))
    own = [np.array([0, 1]), np.array([2])]
    dataset = SimpleNamespace(train=train, test=images([5, 6, 7], [0, 1, 1]), grey=True)
    shards = [{"train": np.array([0, 2])}, {"train": np.array([1, 3])}]
    federation = SimpleNamespace(
        dataset=dataset, shards=shards, own_tests=own, clients=[0, 1], held_out=None, notes=lambda metrics: (),
        called=lambda client: f"client {client} ({WHO})",
    )  # fmt: skip
    dealt = SimpleNamespace(name="iid", natural=False, by_client=False)
    knn = SimpleNamespace(classifies=True, images=lambda block, size: {}, remarks=lambda block, labels: ())
    evaluation = SimpleNamespace(
        metrics=("accuracy", "auc"), rows={"knn": knn}, train_images=None, of=lambda name: None
    )
    columns = SimpleNamespace(group=None, client=None)
    data = SimpleNamespace(
        bands=None,
        columns=columns,
        partition=dealt,
        image_size=8,
        name="imagefolder",
        model_fields_set={"name"},
        channels=5,
    )
    config: Any = SimpleNamespace(
        data=data, evaluation=evaluation, seed=0, model=SimpleNamespace(start=None), augment=AugmentConfig()
    )
    made: Any = federation
    return as_notes([*split_groups(config, made), *one_owner(config, made), *image_notes(config, made)])


def of_started(folder: Path) -> tuple[Note, ...]:
    """Notes on what the run behind ``model.start`` has seen, whose folder a card does not name."""
    train = images([*range(4)], [0] * 4)
    data = Dataset("made", train, images([4, 5], [0, 0]), "digest", train_digests=lambda: pixel_digests(train.pixels))
    made: Any = SimpleNamespace(dataset=data, held_out=np.array([3]))
    run = folder / f"{WHO}'s run"
    run.mkdir()
    start = StartConfig(path=run)
    unknown = [*of_start(start, made)]
    write_trained(run, pixel_digests(KINDS[[3, 4]]))
    return as_notes([*unknown, *of_start(start, made)])


def of_files(folder: Path) -> tuple[Note, ...]:
    """Notes of a partition file, whose name a card does not have."""
    path = folder / f"{WHO}.json"
    path.write_text("[[0, 1], [3]]")
    images: Any = SimpleNamespace(labels=np.zeros(9, np.int64))
    shards = [np.array([0, 1]), np.array([3])]
    return FromFile(path=path, partial=True).notes(images, np.arange(9), shards)


def of_methods() -> tuple[Note, ...]:
    """Notes of servers that have no more than what they look at."""
    own = SimpleNamespace(warmup=5, mu=1.0, alpha="decay", alpha_floor=0.0, privacy=SimpleNamespace(delta=0.5))
    config = SimpleNamespace(train=SimpleNamespace(rounds=3), method=own)
    alone: Any = SimpleNamespace(
        config=own, method=own, setup=SimpleNamespace(config=config, clients=[0]), sharing=[],
        fit_batches=lambda client: SimpleNamespace(steps=1),
        mechanism=lambda client, releases: Mechanism(1.0, 5.0, 20, releases),
    )  # fmt: skip
    runs: Any = SimpleNamespace(config=config, method=own)
    epochs = SimpleNamespace(train=SimpleNamespace(local_steps=None, local_epochs=12))
    cut: Any = SimpleNamespace(config=epochs, method=SimpleNamespace(equalises=True))
    of_fedsc = [*FedSC.unshared(alone), FedSC.spending(alone)[0]]
    of_others = [*FedProx.notes(alone), *LDAWA.never_begun(runs), *FedU2.cut_epochs(cut)]
    return as_notes([*FedFoA.notes(alone), *of_others, *of_fedsc])


def in_few_bytes() -> RunConfig:
    return tiny("fedsimclr", transport={"up": {"name": "quantized", "bits": 4}, "down": {"name": "float16"}})


def all_kinds(folder: Path) -> tuple[Note, ...]:
    put(folder, {f"train/{name}.png": image for name, image in zip((f"{WHO}_1", "2"), pictures(2), strict=True)})
    own = (*of_files(folder), *of_started(folder), *of_methods(), *coded_weights(in_few_bytes()))
    return (*of_data(folder), *of_dealing(), *own)


LINES = (
    "1 of 9 test images is also among the training images (the same pixels): accuracy on it is memory",
    (
        "1 of 1 images to choose by (evaluation.select) is also among the clients' (the same pixels): accuracy on "
        "it is memory"
    ),
    "2 of 9 training images are there more than once (the same pixels), 2 of them with several clients",
    "1 of 9 test images has no label: accuracies are over the other 8",
    "a class of 1 image is called as if nobody had labelled them",
    "2 classes have names that differ by capitals or blanks alone",
    "2 of 4 classes of the training images have no test image: accuracies are over the others alone",
    (
        "some classes have fewer than 5 of 8 test images (the fewest: 1): one image is up to 100 points of a class's "
        "accuracy"
    ),
    "1 of 2 training images has no label",
    (
        "labelled test images are of fewer than two classes: always naming it is right for all of them, and an "
        "accuracy says little"
    ),
    (
        "evaluation.select holds out 30 of 60 labelled training images, 50% for a share of 10%: of each class at least "
        "one image, where it has two"
    ),
    "3 images are scaled by a window of their own (DICOM)",
    "3 images have several frames: the first is read",
    "3 images have bands (TIFF) beside their colours and transparency, which are not read",
    "3 images have transparent pixels, which are laid on black",
    "3 images have pixels without data, which become black",
    "3 images have pixels of their GDAL_NODATA value (TIFF), which are read like any other",
    "3 images lose more than half of their area: of each the central square is taken",
    "3 images are enlarged 1.5 times or more",
    "of 3 images more than 1% of the pixels lie outside the range that is read, and are clipped",
    "3 images take up less than a sixteenth of the range that is read, and keep at most 17 of 256 grey levels",
    (
        "of 3 images 99% of the pixels take up less than a sixteenth of the image's own range, and keep at most 17 of "
        "256 grey levels: a few pixels, such as hot ones, are far darker or brighter"
    ),
    "2 images are of one single colour throughout",
    "2 of 9 test images almost equal a training image: accuracy on them is partly memory",
    "6 of 30 images, about a fifth of each class, were held out as test images",
    "some classes were too small to hold a test image out: accuracies are over the others alone",
    "2 of 9 images, about a fifth of each class and whole groups at a time, were held out as test images",
    "limit: 2 of 60 training images are taken, which show 2 of 4 classes",
    "labels are 2 of the numbers 0 to 5",
    "1 of 2 test images is of a group (data.columns.group) with training images",
    "no test image has a group (data.group): how many show one with training images is not known",
    "1 of 2 test images is of a client without training images",
    (
        "1 of 3 classes is called as several others together: several labels of an image are read as a class of its "
        "own, and naming one of them counts as wrong"
    ),
    "what seems to say whom an image shows was not read: images of one may train and test",
    (
        "evaluation.knn.k: found 60, of which 20 are used, but the median class has 2 of the 200 labelled train "
        "images, so most neighbours that vote are of other classes"
    ),
    (
        "evaluation.semi.fractions: semi_1 takes 10 of the 200 labelled train images, 5% for a share of 1%: of each "
        "class at least one"
    ),
    "3 images have an empty label: unlabelled",
    "2 images have several labels, a 1 in several columns",
    "1 broken image is left out",
    "data.group finds nothing in the path of 1 image: it is one of its own",
    "1 of 9 training images have no client (folder or value): nobody trains on them",
    "below data.partition.min_size=3 images to train on: 1 of 2 clients take no part",
    "2 of 2 groups (data.group) with several images to train on have them with several clients",
    "all 4 training images with an owner belong to one",
    "all 7 images are grey, and are read with three channels that are the same",
    "views are made without saturation, hue, grey: images of 5 bands have no colours",
    "1 of 2 clients with own test images have those of one class alone",
    "2 of 2 clients with own test images have fewer than 5",
    "data.partition.path: 6 of 9 training images are nobody's",
    "model.start: whether its run trained on test images of this run is not known",
    "model.start: its run trained on 1 of 2 test images (the same pixels): accuracy on it is memory",
    (
        "model.start: its run trained on 1 of 1 images to choose by (evaluation.select) (the same pixels): accuracy on "
        "it is memory"
    ),
    "no round applies fedfoa's term",
    "every client takes one local step a round, at which fedprox's penalty has no gradient: this run is FedAvg's",
    "every round takes FedAvg's mean",
    "clients train 10 local epochs a round at most, of train.local_epochs=12",
    "no round exchanges correlation matrices, so clients train as fedavg_sc's do",
    (
        "method.privacy.delta: found 0.5, but clients have up to 20 images: a delta of 1/20 or more allows a mechanism "
        "that publishes one of them"
    ),
    "weights go up as 4-bit QSGD in buckets of 512, down as float16 (transport)",
)


def test_what_a_card_has_of_each_kind_of_note_and_no_name_is_in_it(tmp_path: Path) -> None:
    notes = all_kinds(tmp_path)
    assert sum(WHO in note.text for note in notes) > 5
    lines = public_lines(notes)
    assert not any(WHO in line or "sick" in line.lower() for line in lines), lines
    assert lines == LINES
    assert [note.text.partition(":")[0] for note in notes if note.public is None] == [
        "88% of the test images are of class sick",  # the card says it of all runs, beside the accuracies
        "data.group finds 1 group in 1 image, such as Ada King",
    ]


def public_sites() -> Iterator[tuple[str, range]]:
    """Where the library makes notes of which a card has something: files, and the lines of such a call."""
    for file in Path(rayfed_ssl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and str(file) != notes_module.__file__:
                called = ast.unparse(node.func)
                if called == "Note.shareable" or (called == "Note" and len(node.args) + len(node.keywords) > 1):
                    yield str(file), range(node.lineno, (node.end_lineno or node.lineno) + 1)


@pytest.mark.long
def test_no_kind_of_note_that_a_card_has_is_missing_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = set(), Note.__init__

    def watched(note: Note, *args: Any, **named: Any) -> None:
        frame = sys._getframe(1)
        while frame.f_code.co_filename in (notes_module.__file__, "<string>") and frame.f_back:
            frame = frame.f_back
        made.add((frame.f_code.co_filename, frame.f_lineno))
        make(note, *args, **named)

    monkeypatch.setattr(Note, "__init__", watched)
    all_kinds(tmp_path)
    later = "reevaluation.py"  # of evaluate --data: tests/evaluation/test_trained_on.py
    sites = [(file, lines) for file, lines in public_sites() if Path(file).name != later]
    assert len(sites) > 30
    missing = [(file, lines) for file, lines in sites if not any((file, line) in made for line in lines)]
    assert not missing


def test_other_images_are_said_to_be_others() -> None:
    assert Note(f"{WHO} is", "3 are").of("evaluation.transfer.data") == Note(
        f"evaluation.transfer.data: {WHO} is", "evaluation.transfer.data: 3 are"
    )
    assert Note(WHO).of("data.public.images").public is None
    assert public_lines([Note(WHO), Note("a", "b"), Note("c", "b"), *as_notes([f"{WHO} leads nowhere"])]) == ("b",)


# -- on a card ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on folders of patients, of which some images are copies, in which a class is large."""
    root = tmp_path_factory.mktemp("Ada-King") / "scans"
    files = {}
    for number, image in enumerate(pictures(40)):
        label = "ill" if number % 10 == 0 else "well"
        files[f"train/{label}/Ada_King_{number}.png"] = image
        files[f"test/{label}/Bob_{number}.png"] = pictures(80)[40 + number] if number else image
    put(root, files)
    (root / "train/well/broken.png").write_bytes(b"no image")
    run = root.parent / "our-scans"
    data = {
        "data__name": "imagefolder", "data__path": str(root), "data__limit": None, "data__test_limit": None,
        "data__on_bad_image": "skip", "data__group": "Ada_King|Bob", "clients__count": 2,
        "data__partition": {"name": "iid"}, "train__rounds": 1,
    }  # fmt: skip
    run_locally(tiny("fedsimclr", **data), run)
    return run


@pytest.mark.long
def test_the_card_qualifies_its_numbers_and_names_nobody(folder: Path, tmp_path: Path) -> None:
    export(run_encoder(folder), "torchscript", tmp_path / "x")
    card = (tmp_path / "x/README.md").read_text(encoding="utf-8")
    assert "# our-scans: the global encoder" in card
    assert json.loads((tmp_path / "x/config.json").read_text())["run"]["name"] == "our-scans"
    section = card.partition("## What qualifies these numbers\n\n")[2].partition("\n\n##")[0].splitlines()
    assert "- 1 of 40 test images is also among the training images (the same pixels): accuracy on it is memory." in (
        section
    )
    assert "- 1 image could not be decoded: left out." in section
    assert len(section) >= 3
    assert (
        "right for 0.900 of the 40 labelled test images, and naming one of their 2 classes at random for 0.500." in card
    )
    recorded = json.loads((folder / "environment.json").read_text())
    assert any("Ada_King" in note for note in recorded["notes"])
    assert [f"- {line}." for line in recorded["card_notes"]] == section[:-1]
    for name in ("Ada", "King", "Bob", "well", str(folder.parent)):
        assert name not in card, name


def test_a_run_of_an_earlier_version_has_nothing_of_notes_on_its_card(folder: Path, tmp_path: Path) -> None:
    kept = (folder / "environment.json").read_text()
    recorded = json.loads(kept)
    del recorded["card_notes"]
    try:
        (folder / "environment.json").write_text(json.dumps(recorded))
        export(run_encoder(folder), "torchscript", tmp_path / "x")
    finally:
        (folder / "environment.json").write_text(kept)
    card = (tmp_path / "x/README.md").read_text(encoding="utf-8")
    section = card.partition("## What qualifies these numbers\n\n")[2].partition("\n\n##")[0].splitlines()
    assert section == ["- 1 image could not be decoded: left out."]  # which skipped_images.txt says


def test_without_outcomes_the_largest_class_is_the_summarys(folder: Path, tmp_path: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["largest_class"] == {"name": "well", "share": 0.9}
    kept = (folder / "outcomes.parquet").read_bytes()
    try:
        assert len(pq.read_table(folder / "outcomes.parquet")) == 40
        (folder / "outcomes.parquet").unlink()
        export(run_encoder(folder), "torchscript", tmp_path / "x")
    finally:
        (folder / "outcomes.parquet").write_bytes(kept)
    assert "always naming the largest class is right for 0.900 of the 40 labelled test images." in (
        tmp_path / "x/README.md"
    ).read_text(encoding="utf-8")


def test_a_run_of_a_sweep_is_called_by_it_too(folder: Path) -> None:
    encoder = run_encoder(folder)
    assert replace(encoder, run=folder.parent / "fight" / "trial-00003").title == "fight trial-00003"
    assert replace(encoder, run=folder.parent / "mine").title == "mine"
