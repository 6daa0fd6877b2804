"""What was measured before training comes back to the bit, from an entry that is whole and was made for the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.config import RunConfig
from rayfed_ssl.evaluation import cache
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.results import PIXELS, EvaluatedEncoder
from rayfed_ssl.simulation.worker import Worker

SETTINGS: dict[str, Any] = {
    "method": {"name": "fedsimclr"},
    "data": {"name": "digits", "limit": 300, "test_limit": 120},
    "clients": {"count": 2, "encoders": "small_cnn_bn"},
    "evaluation": {"protocols": ["knn", "fewshot"], "fewshot": {"draws": 2}},
    "resources": {"device": "cpu"},
}


def assessed(round: int = 0, **changes: Any) -> dict[str, float]:
    """What a fresh worker says of the untrained encoder and the raw pixels."""
    config = RunConfig.model_validate(SETTINGS | changes)
    worker = Worker(config, load_federation(config))
    encoder = EvaluatedEncoder(None, "small_cnn_bn", worker.initial("small_cnn_bn"))
    return worker.assess(round, encoder, None) | worker.assess(round, PIXELS, None)


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYFED_SSL_CACHE", str(tmp_path))
    return tmp_path / "evaluations"


@pytest.mark.long
def test_the_second_run_reads_the_same_bits(entries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SWITCH, cache.OFF)
    truth = assessed()
    assert not entries.exists()
    monkeypatch.delenv(cache.SWITCH)
    first = assessed()
    assert len(list(entries.glob("*.json"))) == 3  # the encoder, and the pixels by each of two protocols
    before = {path: path.stat().st_mtime_ns for path in entries.iterdir()}
    monkeypatch.setattr("rayfed_ssl.evaluation.evaluate", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(Worker, "material", lambda *_, **__: pytest.fail("measured again"))
    second = assessed()
    assert first == second == truth
    assert {path: path.stat().st_mtime_ns for path in entries.iterdir()} == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"seed": 3}, 3),
        ({"evaluation": {"protocols": ["knn", "fewshot"], "fewshot": {"draws": 3}}}, 2),  # kNN of pixels is the same
        ({"evaluation": {**SETTINGS["evaluation"], "metrics": ["accuracy", "auc"]}}, 3),
        ({"evaluation": {**SETTINGS["evaluation"], "train_images": 100}}, 3),
        ({"data": {"name": "digits", "limit": 280, "test_limit": 120}}, 3),
        ({"data": {"name": "digits", "limit": 300, "test_limit": 110}}, 3),
        ({"data": {"name": "digits", "limit": 300, "test_limit": 120, "image_size": 12}}, 3),
        ({"model": {"width": 0.5}}, 1),  # pixels know nothing of models ..
        ({"augment": {"mean": [0, 0, 0]}}, 1),
        ({"clients": {"count": 3, "encoders": "small_cnn_bn"}}, 1),
    ],
)
def test_another_question_has_another_entry(entries: Path, changes: dict[str, Any], more: int) -> None:
    assessed()
    known = set(entries.iterdir())
    assessed(**changes)
    assert len(set(entries.iterdir()) - known) == more


def test_other_weights_have_another_entry(entries: Path) -> None:
    config = RunConfig.model_validate(SETTINGS)
    worker = Worker(config, load_federation(config))
    weights = worker.initial("small_cnn_bn")
    vector = weights.vector.copy()
    vector[0] = np.nextafter(vector[0], np.float32(9))
    for given in (weights, weights.with_vector(vector)):
        worker.assess(0, EvaluatedEncoder(None, "small_cnn_bn", given), None)
    assert len(list(entries.iterdir())) == 2


def test_other_labels_and_other_threads_have_another_entry(entries: Path) -> None:
    for relabelled, threads in ((False, 1), (True, 1), (False, 2)):
        config = RunConfig.model_validate(SETTINGS)
        federation = load_federation(config)
        if relabelled:
            labels = federation.dataset.test.labels.copy()
            labels[0] = 1 - labels[0] if labels[0] < 2 else 0
            test = dataclasses.replace(federation.dataset.test, labels=labels)
            federation = dataclasses.replace(federation, dataset=dataclasses.replace(federation.dataset, test=test))
        worker = Worker(config, federation)
        encoder = EvaluatedEncoder(None, "small_cnn_bn", worker.initial("small_cnn_bn"))
        torch.set_num_threads(threads)
        worker.assess(0, encoder, None)
    assert len(list(entries.iterdir())) == 3


def test_after_training_nothing_is_remembered(entries: Path) -> None:
    config = RunConfig.model_validate(SETTINGS)
    worker = Worker(config, load_federation(config))
    worker.assess(1, EvaluatedEncoder(None, "small_cnn_bn", worker.initial("small_cnn_bn")), None)
    assert not entries.exists()


@pytest.mark.long
@pytest.mark.parametrize("damage", ["", "{", '{"values": {"knn": 0.5}, "digest": "0"}', "[1]", '{"values": 3}'])
def test_a_damaged_entry_is_measured_again(entries: Path, damage: str) -> None:
    truth = assessed()
    whole = {path: path.read_text() for path in entries.iterdir()}
    for path in whole:
        path.write_text(damage)
    assert assessed() == truth
    assert {path: path.read_text() for path in entries.iterdir()} == whole


def test_a_disk_that_takes_nothing_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(cache, "default_cache", lambda: blocked)
    assert cache.remembered({"a": 1}, lambda: {"knn": 0.1 + 0.2}) == {"knn": 0.1 + 0.2}
