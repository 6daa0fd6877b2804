"""Clients with names and test images of their own: what is measured on them, and where their names stand."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.metrics import balanced_accuracy_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.text import in_file_name
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.evaluation import Split, ValueKey, by_client
from rayfed_ssl.evaluation.material import Material
from rayfed_ssl.federated import measured_rows
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.models import load_exported
from rayfed_ssl.records.figures import client_matrix, label_histogram, pixels
from rayfed_ssl.records.tables import read_metrics
from rayfed_ssl.report.accuracy_table import images_each
from rayfed_ssl.report.dispatch import report_of
from rayfed_ssl.report.verdict import clients_images
from rayfed_ssl.simulation.checks import image_notes
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.testing.tiny import run_locally, tiny_run
from tests.dotted import dotted
from tests.evaluation.materials import knn_accuracy

NAMES = ("$a$", "Zürich", "ward 7")  # as they are sorted
LABELS, ANSWERS = [0, 1, -1, 1, 0, 1, 1], [0, 0, 0, 1, 1, 1, 1]


def material(metrics: tuple[str, ...] = ("accuracy",)) -> Material:
    """Seven test images, the third without a label: two clients' own, one nobody's; a third has none labelled."""
    test = Split("test", np.zeros((7, 1, 1, 3), np.uint8), np.array(LABELS), 2, lambda pixels: torch.zeros(1))
    own = {3: np.array([0, 1, 2]), 8: np.array([3, 5]), 9: np.array([2])}
    return Material(test, {"": test}, np.zeros((1, 1, 1, 3), np.uint8), np.arange(1), 2, 0, metrics, None, own)  # type: ignore[arg-type]


def answer(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    given = torch.tensor(ANSWERS)[torch.from_numpy(split.rows)]
    return given, torch.nn.functional.one_hot(given, 2).double()


def test_a_clients_value_is_the_common_answers_on_its_own_images() -> None:
    values = material().classified("knn", answer)
    assert values == {"knn": 4 / 6, "own_knn@3": 1 / 2, "own_knn@8": 1.0}
    assert by_client(None, values) == {None: {"knn": 4 / 6}, 3: {"own_knn": 0.5}, 8: {"own_knn": 1.0}}
    assert by_client(3, {"knn": 0.5, "own_knn@3": 0.25}) == {3: {"knn": 0.5, "own_knn": 0.25}}


def test_a_key_says_the_tag_and_the_client_and_is_read_as_it_was_written() -> None:
    for text, key in (("knn", ValueKey("knn")), ("own_knn@3", ValueKey("own_knn", 3)), ("a/b@0", ValueKey("a/b", 0))):
        assert ValueKey.of(text) == key
        assert str(key) == text
    with pytest.raises(ValueError, match="invalid literal"):
        ValueKey.of("own_knn@north")


def test_of_own_images_of_one_class_only_the_accuracy_is_taken() -> None:
    values = material(("accuracy", "balanced_accuracy", "auc")).classified("knn", answer)
    assert values["own_knn_auc@3"] == 0.5  # both called 0: no order between them
    assert "own_knn_auc@8" not in values  # its images are of one class
    assert values["own_knn@8"] == 1.0
    assert "own_knn_balanced_accuracy@8" not in values  # scikit-learn gives 1.0, which guessing has, too
    truth, given = [0, 1], [0, 0]  # of client 3
    assert values["own_knn_balanced_accuracy@3"] == balanced_accuracy_score(truth, given) == 0.5
    assert values["knn_balanced_accuracy"] == balanced_accuracy_score([0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1])
    assert all(math.isfinite(value) for value in values.values())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clients' folders of two classes, of which the brightness tells; more test images for later clients."""
    root, rng = tmp_path_factory.mktemp("named") / "images", np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 3)):
        for number, client in enumerate(NAMES):
            for label in (0, 1):
                folder = root / split / client / "ab"[label]
                folder.mkdir(parents=True)
                for k in range(count + (number if split == "test" else 0)):
                    pixels = rng.integers(30 * label, 200, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{k}.png")
    return root


def config(images: Path, **changes: object) -> RunConfig:
    document: dict[str, Any] = {
        "method": {"name": "fedsimclr"},
        "objective": {"name": "simclr"},
        "data": {
            "name": "imagefolder", "path": str(images), "layout": "clients", "image_size": 8,
            "partition": {"name": "natural"},
        },
        "clients": {"count": 3, "encoders": "small_cnn_bn"},
        "model": {"width": 0.25, "projector": {"hidden": [8], "dim": 8}},
        "train": {"rounds": 2, "batch_size": 8},
        "evaluation": {"protocols": ["knn"]},
    }  # fmt: skip
    return build(document, dotted(**changes), origin="a test")


@pytest.fixture(scope="module", params=["fedsimclr", "local"])
def run(request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    run_locally(config(images, method__name=request.param), folder)
    return request.param, folder


def test_clients_with_few_own_images_are_counted_and_named(tmp_path: Path) -> None:
    """In a run's note with their names, on a card without. One without any own test image has no own accuracy."""
    rng = np.random.default_rng(0)
    for place, count in (("train/x/a", 6), ("train/y/a", 6), ("train/z/a", 6), ("test/x/a", 4), ("test/y/a", 5)):
        (tmp_path / "images" / place).mkdir(parents=True)
        for k in range(count):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / place / f"{k}.png")
    chosen = config(tmp_path / "images")
    (found,) = [note for note in image_notes(chosen, load_federation(chosen)) if "have fewer than" in note.text]
    assert found.text == (
        "1 of 2 clients with own test images have fewer than 5 (client 0 (x): 4): a mean over clients (own_..) counts "
        "each as much as any other"
    )
    assert found.public == "1 of 2 clients with own test images have fewer than 5"


def test_clients_with_own_images_of_one_class_are_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for place in ("train/x/a", "train/x/b", "train/y/a", "train/y/b", "train/z/a", "train/z/b", "test/x/a", "test/x/b",
                  "test/y/a"):  # fmt: skip
        (tmp_path / "images" / place).mkdir(parents=True)
        for k in range(6):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / place / f"{k}.png")
    line = (
        "1 of 2 clients with own test images have those of one class alone: they have no own balanced_accuracy or auc, "
        "and a mean over clients is without them"
    )
    several = {"evaluation__metrics": ["accuracy", "balanced_accuracy", "auc"], "train__rounds": 1}
    chosen = config(tmp_path / "images", **several)
    assert line in texts(image_notes(chosen, load_federation(chosen)))
    summary = run_locally(chosen, tmp_path / "run")
    assert list(summary["accuracy"]["own_knn"]) == ["0", "1"]
    assert list(summary["accuracy"]["own_knn_balanced_accuracy"]) == ["0"]
    plain = config(tmp_path / "images")
    assert not [note for note in texts(image_notes(plain, load_federation(plain))) if "of one class alone" in note]


def by_hand(settings: RunConfig, encoder: Any, client: int) -> float:
    """The nearest-neighbour accuracy on one client's own test images, nothing else extracted."""
    federation = load_federation(settings)
    context = ProcessContext(settings, federation)
    network = context.network("small_cnn_bn")
    network.encoder.load_state_dict(encoder.state_dict())
    frozen = context.frozen(network)
    train, test = federation.dataset.train, federation.dataset.test
    own = np.flatnonzero(test.clients == client)
    return knn_accuracy(
        frozen.features(train.pixels), torch.tensor(train.labels), frozen.features(test.pixels[own]),
        torch.tensor(test.labels[own]), classes=2, **settings.evaluation.knn.model_dump(),
    )  # fmt: skip


def test_each_client_is_measured_on_its_own_images_too(run: tuple[str, Path], images: Path) -> None:
    method, folder = run
    summary = json.loads((folder / "summary.json").read_text())
    own = summary["accuracy"]["own_knn"]
    assert list(own) == ["0", "1", "2"]
    for client in range(3):
        encoder = load_exported(folder, "global" if method == "fedsimclr" else f"client-{client:05d}")
        assert own[str(client)] == by_hand(config(images), encoder, client)
    assert isinstance(summary["accuracy"]["knn"], float if method == "fedsimclr" else dict)
    rows = [row for row in read_metrics(folder).to_pylist() if row["tag"] == "eval/own_knn"]
    assert sorted((row["round"], row["client"]) for row in rows) == [(t, c) for t in range(3) for c in range(3)]
    untrained = {row["client"]: row["value"] for row in rows if row["round"] == 0}
    again = reevaluate(folder)
    name = "untrained small_cnn_bn"
    assert again["own"][name]["knn"] == {str(client): value for client, value in untrained.items()}
    others = [by["knn"] for encoder, by in again["own"].items() if encoder != name]
    assert {client: value for by in others for client, value in by.items()} == own


def test_names_stand_beside_numbers(run: tuple[str, Path]) -> None:
    method, folder = run
    for table in ("metrics.parquet", "communication.parquet", "partition.parquet"):
        rows = pq.read_table(folder / table).to_pylist()
        if method == "local" and table == "communication.parquet":
            continue
        assert {row["client_name"] for row in rows if row["client"] is not None} == set(NAMES)
        assert all(row["client_name"] == (None if row["client"] is None else NAMES[row["client"]]) for row in rows)
    assert json.loads((folder / "summary.json").read_text())["client_names"] == dict(zip("012", NAMES, strict=True))
    board = EventAccumulator(str(folder))
    board.Reload()
    tags = board.Tags()["scalars"]
    assert {tag for tag in tags if tag.startswith("client/loss/")} == {f"client/loss/{name}" for name in NAMES}
    stems = {path.stem for path in (folder / "encoder").iterdir()}
    own = {"client-00000-a", "client-00001-Zurich", "client-00002-ward-7"}
    assert stems == ({"global"} if method == "fedsimclr" else own)
    if method == "local":
        described = json.loads((folder / "encoder" / "client-00001-Zurich.json").read_text())
        assert described["client_name"] == "Zürich"


def test_a_run_begun_without_names_goes_on_with_them(images: Path, tmp_path: Path) -> None:
    folder, asked = tmp_path / "run", iter([False, True])
    settings = config(images)
    assert run_locally(settings, folder, stopping=lambda: next(asked))["status"] == "stopped"
    for part in [*(folder / "metrics.parquet").iterdir(), *(folder / "communication.parquet").iterdir()]:
        pq.write_table(pq.read_table(part).drop_columns(["client_name"]), part)  # as a version without names left it
    before = read_metrics(folder).num_rows
    assert run_locally(settings, folder, resume=True)["status"] == "complete"
    assert {row["round"] for row in read_metrics(folder).to_pylist()} == {0, 1, 2}
    assert read_metrics(folder).num_rows > before


def test_a_runs_partition_hands_names_on(run: tuple[str, Path], images: Path) -> None:
    path = str(run[1] / "partition.parquet")
    again, first = (
        load_federation(config(images, data__partition=p))
        for p in ({"name": "file", "path": path}, {"name": "natural"})
    )
    assert again.names == NAMES
    assert [shard["train"].tolist() for shard in again.shards] == [shard["train"].tolist() for shard in first.shards]


def test_clients_without_names_have_none(images: Path, tmp_path: Path) -> None:
    settings = config(images, data__partition={"name": "iid"}, train__rounds=1)
    summary = run_locally(settings, tmp_path / "run")
    assert "client_names" not in summary
    assert "own_knn" not in summary["accuracy"]
    for table in ("metrics.parquet", "communication.parquet", "partition.parquet"):
        assert "client_name" not in pq.read_table(tmp_path / "run" / table).column_names
    assert load_federation(settings).called(1) == "client 1"
    assert load_federation(config(images)).called(2) == "client 2 (ward 7)"


def test_figures_show_names_as_they_are() -> None:
    bars, matrix = label_histogram(np.ones((3, 2)), ["a", "b"], NAMES), client_matrix(np.eye(3), "to", "from", NAMES)
    pixels(bars)
    pixels(matrix)
    for labels in (bars.axes[0].get_yticklabels(), matrix.axes[0].get_xticklabels()):
        assert [label.get_text() for label in labels] == ["$a$", "Zürich", "ward 7"]
        assert not any(label.get_parse_math() for label in labels)
    (_, shares, _) = label_histogram(np.ones((30, 2)), ["a", "b"], [f"site {n}" for n in range(30)]).axes
    assert [label.get_text() for label in shares.get_xticklabels()] == [f"site {n}" for n in range(30)]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ward 7", "ward-7"), ("../../etc", "etc"), ("a/b\\c", "a-b-c"), ("Zürich", "Zurich"), ("北京", ""),
        (".hidden", "hidden"), ("x" * 300, "x" * 40), ("CON: \x1b[2J", "CON-2J"), ("-rf", "rf"), ("", ""),
    ],
)  # fmt: skip
def test_a_name_in_a_files_name_is_harmless(name: str, part: str) -> None:
    assert in_file_name(name) == part


@pytest.mark.long
def test_on_how_many_images_of_its_own_a_client_is_measured(images: Path, tmp_path: Path) -> None:
    """The summary says it by client, the report beside each value: 100 % of 6 images is less than of 600."""
    run_locally(config(images, method__name="fedsimclr", train__rounds=1), tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["evaluation"]["clients_test_images"] == {"own": {"0": 6, "1": 8, "2": 10}}  # as the folders hold
    page = report_of(tmp_path / "run").read_text()
    assert page.count("on 6 to 10 images each") == 2  # the table of accuracies, and below the figure
    assert "Measured on 6 to 10 images each; right: how many." in page
    assert [page.count(f"<small>of {count} images</small>") for count in (6, 8, 10)] == [1, 1, 1]
    assert re.search(r"own kNN accuracy of 3 clients.* % of (6|8|10) images, highest .* % of (6|8|10) images", page)

    del summary["evaluation"]["clients_test_images"]  # as earlier versions wrote it
    (tmp_path / "run/summary.json").write_text(json.dumps(summary))
    page = report_of(tmp_path / "run").read_text()
    assert "images each;" not in page
    assert "own kNN" in page


def test_who_has_no_value_is_not_counted() -> None:
    counted = {"evaluation": {"clients_test_images": {"own": {"0": 6, "1": 8, "2": 9}, "task": {"0": 4}}}}
    accuracy = {"own_knn": {"0": 1.0, "2": 0.5, "7": 0.1}, "own_knn_auc": {"1": None, "2": 1.0}, "task": {"0": 0.5}}
    summary = {**counted, "accuracy": {**accuracy, "knn": 0.5, "fewshot": {"0": 0.5}}}
    found = {name: clients_images(summary, name) for name in summary["accuracy"]}
    assert found == {"own_knn": {0: 6, 2: 9}, "own_knn_auc": {2: 9}, "task": {0: 4}, "knn": {}, "fewshot": {}}
    assert (images_each({}), images_each({0: 1}), images_each({0: 3, 4: 3})) == (
        "",
        "on 1 image each",
        "on 3 images each",
    )
    assert images_each({0: 1234, 1: 3}) == "on 3 to 1,234 images each"


def test_the_images_of_own_tasks_are_those_of_each_client() -> None:
    tasks = [[0, 1], [1, 2], [6, 3, 4], [5, 7]]
    given = {"data.tasks": tasks, "data.partition.name": "iid", "data.public.share": 0.25}
    for on in ("own", "test"):
        settings = tiny_run("fedlinked", {**given, "evaluation.tasks_on": on})
        federation = load_federation(settings)
        found = measured_rows.clients_tested_images(federation, settings)
        assert found.keys() == {"task"}
        assert sum(found["task"].values()) == measured_rows.tested_images(federation, settings)["task_test_images"]
        labels = federation.dataset.test.labels
        held = {c: len(shard["test"]) for c, shard in enumerate(federation.shards)}
        shown = {c: int(np.isin(labels, task).sum()) for c, task in enumerate(tasks)}
        assert found["task"] == (held if on == "own" else shown)
