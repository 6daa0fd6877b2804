"""What of a run's notes gets onto a model card: the notes as the library makes them, with names that must not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.data.column_values import Empty, gaps
from rayfed_ssl.data.copies import copies
from rayfed_ssl.data.decoded_notes import SAID, counted, misfitting, plain
from rayfed_ssl.data.holdout import held_out_notes
from rayfed_ssl.data.images import Dataset, Images
from rayfed_ssl.data.limits import unseen_classes
from rayfed_ssl.data.partition import Natural
from rayfed_ssl.data.sources import SourceConfig, load
from rayfed_ssl.data.split_rows import NO_LABEL, Beside
from rayfed_ssl.data.store import MISFITS, Misfits
from rayfed_ssl.data.whose import shared_notes, ungrouped
from rayfed_ssl.evaluation.knn import KnnConfig
from rayfed_ssl.evaluation.knn import remarks as of_knn
from rayfed_ssl.exporting.card_notes import AS_NOTED, REWORDED, qualifying
from rayfed_ssl.exporting.encoders import run_encoder
from rayfed_ssl.exporting.folder import export
from rayfed_ssl.federated.remarks import copied, of_classes, over_share, remarks
from rayfed_ssl.methods.fedfoa import ServerHalf as FedFoA
from rayfed_ssl.methods.fedprox import Server as FedProx
from rayfed_ssl.methods.fedsc import Server as FedSC
from rayfed_ssl.methods.ldawa import Server as LDAWA
from rayfed_ssl.simulation.checks import image_notes, one_owner, split_groups
from tests.data.files import pictures, put
from tests.tiny import run_locally, tiny

WHO = "Ada King"
NAMES = ("sick", "Sick", "unlabelled", WHO)
KINDS = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)


def images(kinds: list[int], labels: list[int], groups: list[int] | None = None) -> Images:
    given = None if groups is None else np.array(groups)
    return Images(KINDS[kinds], np.array(labels), NAMES, given, (WHO, "b"))


def of_data(folder: Path) -> list[str]:
    """Notes of each kind that data sets, partitions and protocols have."""
    train = images([*range(8), 0], [0, 1, 2, 3, 0, 0, 0, 0, 0], [0, 0, 1, -1, 1, 1, 1, 1, 1])
    test = images([0, *range(10, 18)], [0] * 7 + [1, -1])
    data = Dataset("made", train, test, "digest", copies=copies(train.pixels, test.pixels))
    numbers = np.arange(60) % 4
    shared = {"train": np.array([0, 1]), "test": np.array([1, 5])}
    alone = held_out_notes(np.repeat([0, 1], [28, 2]), np.arange(6), ("a", WHO), None, "one Parquet file")
    of_folder = SourceConfig(name="imagefolder", path=folder, layout="flat", group="([A-Z].*)_", image_size=8)
    return [
        *copied(data, [np.arange(4), np.arange(4, 9)], np.array([8])),
        *of_classes(data),
        *over_share(numbers, np.arange(30), 0.1, grouped=False),
        *counted(dict.fromkeys(SAID, 3), "black", "data"),
        *misfitting([dict.fromkeys(MISFITS, Misfits(3, -5.0, 900.0, {WHO: 3}))], "their own window"),
        *plain(np.zeros((2, 3), np.uint8), 1, "black", "data"),
        *alone,
        *held_out_notes(np.zeros(9, np.int64), np.arange(2), (WHO,), np.arange(9), f"{WHO}'s file"),
        *unseen_classes("train", numbers, np.arange(2)),
        *gaps([np.array([0, 5])]),
        *shared_notes(shared, "data.columns.group"),
        *shared_notes({**shared, "test": np.array([-1])}, "data.group"),
        *ungrouped(["patient"], True, "data"),
        *of_knn(KnnConfig(k=60), np.arange(200) // 2),
        *Beside({}, (), (), {NO_LABEL: Empty(1, 3)}).notes(""),
        *remarks(replace(data, copies=None, skipped=(WHO,)))[:1],
        *load(of_folder, folder / "cache").notes,
        *Natural(min_size=3).notes(train, np.arange(9), [np.empty(0, np.int64), np.arange(4, 9)]),
    ]


def of_dealing() -> list[str]:
    """Notes on who holds what, of as much of a run as they look at."""
    train = replace(
        images([*range(4)], [0, 1, 0, 1], [0, 0, 0, 0]), group_names=(WHO,), subjects=np.array([0, 0, 1, 1])
    )
    own = [np.array([0, 1]), np.array([2])]
    dataset = SimpleNamespace(train=train, test=images([5, 6, 7], [0, 1, 1]))
    shards = [{"train": np.array([0, 2])}, {"train": np.array([1, 3])}]
    federation = SimpleNamespace(dataset=dataset, shards=shards, own_tests=own, clients=[0, 1], held_out=None, notes=())
    dealt = SimpleNamespace(name="iid", natural=False, by_group=False)
    knn = SimpleNamespace(classifies=True, images=lambda block, size: {}, remarks=lambda block, labels: ())
    evaluation = SimpleNamespace(
        metrics=("accuracy", "auc"), rows={"knn": knn}, train_images=None, of=lambda name: None
    )
    data = SimpleNamespace(columns=SimpleNamespace(group=None, client=None), partition=dealt, image_size=8)
    config: Any = SimpleNamespace(data=data, evaluation=evaluation, seed=0)
    made: Any = federation
    return [*split_groups(config, made), *one_owner(config, made), *image_notes(config, made)]


def of_methods() -> list[str]:
    """Notes of servers that have no more than what they look at."""
    own = SimpleNamespace(warmup=5, mu=1.0, privacy=SimpleNamespace(delta=0.5))
    config = SimpleNamespace(train=SimpleNamespace(rounds=3), method=own)
    alone: Any = SimpleNamespace(
        config=own, method=own, setup=SimpleNamespace(config=config, clients=[0]), sharing=[1],
        fit_batches=lambda client: SimpleNamespace(steps=1), calibration=lambda client: (1.0, 5.0, 20),
    )  # fmt: skip
    runs: Any = SimpleNamespace(config=config, method=own)
    return [*FedFoA.notes(alone), *FedProx.notes(alone), *LDAWA.notes(runs), FedSC.notes(alone)[0]]


def test_each_kind_of_note_is_known_by_what_the_library_says_and_no_name_gets_through(tmp_path: Path) -> None:
    put(tmp_path, {f"train/{name}.png": image for name, image in zip((f"{WHO}_1", "2"), pictures(2), strict=True)})
    notes = [*of_data(tmp_path), *of_dealing(), *of_methods()]
    assert sum(WHO in note for note in notes) > 5
    lines = qualifying(notes)
    assert not any(WHO in line or "sick" in line.lower() for line in lines), lines
    unknown = [note for note in notes if not qualifying([note])]
    assert [note.partition(":")[0] for note in unknown] == [
        "88% of the test images are of class sick",  # the card says it of all runs, beside the accuracies
        "data.group finds 1 group in 1 images, such as Ada King",
    ]
    for pattern in (*AS_NOTED, *REWORDED):
        assert any(re.search(pattern, note) for note in notes), pattern
    told = "\n".join(lines)
    for said in (
        "1 of 9 test images are also among the training images (the same pixels): accuracy on them is memory",
        "2 of 9 training images are there more than once (the same pixels), 2 of them with several clients",
        "1 of 9 test images has no label: accuracies are over the other 8",
        "a class of 1 images is called as if nobody had labelled them",
        "2 classes have names that differ by capitals or blanks alone",
        "2 of 4 classes of the training images have no test image: accuracies are over the others alone",
        "of 3 images more than 1% of the pixels lie outside the range that is read, and are clipped",
        "3 images take up less than a sixteenth of the range that is read, and keep 16 of 256 grey levels or fewer",
        "1 of 2 test images are of a group (data.columns.group) with training images",
        "6 of 30 images, about a fifth of each class, were held out as test images",
        "2 of 9 images, about a fifth of each class and whole groups at a time, were held out as test images",
        "what seems to say whom an image shows was not read: images of one may train and test",
        "below data.partition.min_size=3 images to train on: 1 of 2 clients take no part",
        "no round applies fedfoa's term",
    ):
        assert said in told.splitlines(), said


def test_what_is_of_no_kind_is_left_out_and_other_images_are_said_to_be_others() -> None:
    assert (
        qualifying([f"{WHO} are taken for classes", f"/home/{WHO}/x leads nowhere", "", "3 files are not read"]) == []
    )
    assert qualifying(["evaluation.transfer.data: 3 images are of one single colour throughout"] * 2) == [
        "evaluation.transfer.data: 3 images are of one single colour throughout"
    ]
    few = (
        f"evaluation.transfer.data: class {WHO} has fewer than 5 of 9 test images (the fewest: 2): one image is up to "
    )
    assert qualifying([f"{few}50 points of"])[0].startswith("evaluation.transfer.data: some classes have fewer than 5")


def test_only_fixed_words_and_numbers_are_taken_from_a_note() -> None:
    for pattern in AS_NOTED:
        assert not re.search(r"(?<!\\)\.(?!\d)|\\[wWsS]|\[\^", re.sub(r"\[[^]]*\]", "", pattern)), pattern
    for pattern, words in REWORDED.items():
        for group in re.findall(r"\((?!\?)((?:[^()\\]|\\.)*)\)", pattern):
            assert group == r"\d+" or not re.search(r"[+*]|(?<!\\)\.", group), pattern
        assert "\\g" not in words


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


def test_the_card_qualifies_its_numbers_and_names_nobody(folder: Path, tmp_path: Path) -> None:
    export(run_encoder(folder), "torchscript", tmp_path / "x")
    card = (tmp_path / "x/README.md").read_text(encoding="utf-8")
    assert "# our-scans: the global encoder" in card
    assert json.loads((tmp_path / "x/config.json").read_text())["run"]["name"] == "our-scans"
    section = card.partition("## What qualifies these numbers\n\n")[2].partition("\n\n##")[0].splitlines()
    assert (
        "- 1 of 40 test images are also among the training images (the same pixels): accuracy on them is memory."
        in (section)
    )
    assert "- 1 images could not be decoded: left out." in section
    assert len(section) >= 3
    assert (
        "right for 0.900 of the 40 labelled test images, and naming one of their 2 classes at random for 0.500." in card
    )
    noted = json.loads((folder / "environment.json").read_text())["notes"]
    assert any("Ada_King" in note for note in noted)
    for name in ("Ada", "King", "Bob", "well", str(folder.parent)):
        assert name not in card, name


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
