"""Keys of partitions, heads, protocols and schedules that have no effect beside others are refused or noted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayfed_ssl.config import load
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.checks import without_effect
from rayfed_ssl.testing.tiny import run_locally, tiny_run

SHARE = {"data.public.source": "share"}
BLOCKS = {"name": "class_blocks", "classes": 2, "seed": 3}
NATURAL = {"name": "natural", "seed": 3}
FILE = {"name": "file", "path": "split.json", "seed": 3}
SKEW = {"name": "feature_skew", "corruptions": ["none"], "severity": 5}
BUFFERED = {"server.schedule": "fedbuff", "server.buffer": 2, "system": {"seconds_per_image": 0.01}}
BY = "it needs evaluation.transfer.by with"
REFUSED = {
    "a seed of blocks of classes": (
        {"data.partition": BLOCKS},
        "data.partition.seed: found 3; it needs data.partition.name=one that draws (class_blocks draws nothing)",
    ),
    "a seed of the images' own clients": (
        {"data.partition": NATURAL},
        "data.partition.seed: found 3; it needs data.partition.name=one that draws (natural draws nothing)",
    ),
    "a seed of a file": (
        {"data.partition": FILE},
        "data.partition.seed: found 3; it needs data.partition.name=one that draws (file draws nothing)",
    ),
    "how strong no change is": (
        {"data.partition": SKEW},
        "data.partition.severity: found 5; it needs data.partition.corruptions with another than none",
    ),
    "BatchNorm of no hidden layer": (
        {"model.projector": {"dim": 8, "hidden": [], "batch_norm": "hidden"}},
        "model.projector.batch_norm: found hidden; it needs model.projector.hidden with a layer, or all",
    ),
    "BatchNorm of a predictor's": (
        {"method.name": "fedbyol", "objective.name": "byol", "model.predictor": {"dim": 8, "batch_norm": "hidden"}},
        "model.predictor.batch_norm: found hidden; it needs model.predictor.hidden with a layer, or all",
    ),
    "the vote of a single neighbour": (
        {"evaluation.knn.k": 1, "evaluation.knn.temperature": 0.5},
        "evaluation.knn.temperature: found 0.5; it needs evaluation.knn.k above 1",
    ),
    "fine-tuning that nobody measures by": (
        {"evaluation.transfer.finetune.epochs": 7},
        f"evaluation.transfer.finetune.epochs: found 7; {BY} finetune",
    ),
    "a probe that nobody measures by": (
        {"evaluation.transfer.by": ["finetune"], "evaluation.transfer.linear.recipes": ["easyfl"]},
        f"evaluation.transfer.linear.recipes: found [easyfl]; {BY} linear",
    ),
    "replies that FedBuff waits for": (
        {**BUFFERED, "system": {"minimum_replies": 2}},
        "system.minimum_replies: found 2; it needs server.schedule=sync",
    ),
}  # fmt: skip
ALLOWED = {
    "a seed of public images": {**SHARE, "data.partition": BLOCKS},
    "a seed of a file's public images": {**SHARE, "data.partition": FILE},
    "a seed of a draw": {"data.partition.seed": 3},
    "one that changes images": {"data.partition": {**SKEW, "corruptions": ["none", "blur"]}},
    "BatchNorm of a hidden layer": {"model.projector": {"dim": 8, "hidden": [4], "batch_norm": "hidden"}},
    "BatchNorm of the output": {"model.projector": {"dim": 8, "hidden": [], "batch_norm": "all"}},
    "the objective's BatchNorm": {"method.name": "fedavg", "objective.name": "nnclr", "objective.queue": 64,
                                  "model.projector": {"dim": 8, "hidden": []}},
    "votes": {"evaluation.knn.k": 2, "evaluation.knn.temperature": 0.5},
    "fine-tuning": {"evaluation.transfer.by": ["finetune"], "evaluation.transfer.finetune.epochs": 7},
    "a protocol that may be asked for later": {"evaluation.protocols": ["knn"], "evaluation.rank.spectrum": 3},
    "replies that a round waits for": {"system": {"minimum_replies": 2}},
}  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), REFUSED.values(), ids=REFUSED)
def test_a_key_without_effect_is_refused_in_one_line(changes: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        tiny_run("fedsimclr", changes)
    assert str(refusal.value) == line


@pytest.mark.parametrize("changes", ALLOWED.values(), ids=ALLOWED)
def test_a_key_with_an_effect_is_legal(changes: dict[str, object]) -> None:
    assert tiny_run("fedsimclr", changes)


def test_an_option_may_take_the_use_from_a_seed_in_a_file(tmp_path: Path) -> None:
    text = "method: {name: fedsimclr}\ndata: {partition: {name: dirichlet, seed: 3}}\n"
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "run.yaml", ["data.partition={name: natural}"]).data.partition.seed is None
    (tmp_path / "run.yaml").write_text(text.replace("dirichlet", "natural"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^data.partition.seed: found 3; it needs data.partition.name=one that draw"):
        load(tmp_path / "run.yaml")


def test_a_run_notes_public_images_that_its_method_does_not_use(tmp_path: Path) -> None:
    changes = {"data.public": {"source": "source", "images": {"name": "digits", "image_size": 8}}, "train.rounds": 1}
    told = "data.public.images has no effect: fedsimclr uses no public images"
    config = tiny_run("fedsimclr", changes)
    assert without_effect(config) == [told]
    run_locally(config, tmp_path)
    assert told in json.loads((tmp_path / "environment.json").read_text())["notes"]
    assert without_effect(tiny_run("feddf", changes)) == []


def test_a_run_notes_a_fraction_that_fedbuff_does_not_read() -> None:
    told = "participation.fraction has no effect: server.concurrency says how many clients train at a time"
    for changes, lines in (
        ({"server.concurrency": 3, "participation.fraction": 0.5}, [told]),
        ({"server.concurrency": 3}, []),
        ({"participation.fraction": 0.5}, []),
    ):
        assert without_effect(tiny_run("fedsimclr", {**BUFFERED, **changes})) == lines


STATISTICS = "the network has no running statistics"
SELECTIVE = "method.selective has no effect: every client takes part in every round"
PLAIN = {"clients.encoders": "small_cnn", "model.projector.batch_norm": "none"}
NOTED: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "as_code": ("ldawa", {**PLAIN, "method.as_code": True}, [f"method.as_code has no effect: {STATISTICS}"]),
    "uniform": ("ldawa", {**PLAIN, "method.weights": "uniform", "method.warmup": 0},
                [f"method.weights has no effect: {STATISTICS}"]),
    "a warm-up's mean": ("ldawa", {**PLAIN, "method.weights": "uniform"}, []),
    "of BatchNorm": ("ldawa", {"method.as_code": True}, []),
    "statistics by cosines": (
        "ldawa", {"method.as_code": True, "method.weights": "uniform", "method.warmup": 0},
        ["method.weights has no effect: method.as_code=true, and method.warmup=0 leaves out FedAvg's mean"],
    ),
    "in the warm-up": ("ldawa", {"method.as_code": True, "method.weights": "uniform"}, []),
    "statistics": ("ldawa", {"method.weights": "uniform", "method.warmup": 0}, []),
    "shares": ("fedu2", {**PLAIN, "method.lr": 0.05, "method.temperature": 0.5},
               [f"method.temperature has no effect beside method.lr: {STATISTICS}"]),
    "a relative step": ("fedu2", {**PLAIN, "method.temperature": 0.5}, []),
    "shares in BatchNorm": ("fedu2", {"method.lr": 0.05, "method.temperature": 0.5}, []),
    "selective": ("fedema", {"method.selective": True},
                  [f"{SELECTIVE}; it needs participation.fraction below 1"]),
    "selective of half": ("fedema", {"method.selective": True, "participation.fraction": 0.5}, []),
    "selective of lost ones": ("fedema", {"method.selective": True, "on_client_error": "drop"}, []),
}  # fmt: skip


@pytest.mark.parametrize(("method", "changes", "lines"), NOTED.values(), ids=NOTED)
def test_a_method_notes_keys_that_its_network_or_clients_have_no_use_for(
    method: str, changes: dict[str, object], lines: list[str]
) -> None:
    config = tiny_run(method, {"train.rounds": 4, **changes})
    parts, _ = rehearse(config, load_federation(config))
    assert [note.text for note in parts.notes()] == lines


SCALED = """
from torch import nn, ones

from rayfed_ssl.models import Encoder, Family


class Scaled(Encoder):
    dim = 6

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(192, 6), nn.Parameter(ones(()))

    def forward(self, images):
        return self.layer(images.flatten(1)) * self.scale


ENCODERS = {"scaled": Family(lambda config, image_size, channels: Scaled(), minimum=8)}
"""


def test_a_parameter_without_dimensions_has_a_use_for_the_weights_of_a_mean(tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text(SCALED)
    changes = {**PLAIN, "imports": ["scaled.py"], "clients.encoders": "scaled", "data.channels": 3}
    config = tiny_run("ldawa", {**changes, "method.weights": "uniform", "method.warmup": 0}, tmp_path)
    parts, _ = rehearse(config, load_federation(config))
    assert not [note.text for note in parts.notes() if "has no effect" in note.text]
