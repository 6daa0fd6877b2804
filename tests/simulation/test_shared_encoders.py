"""Encoders that several clients hold are evaluated once, and every number is what it was with an evaluation each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl import evaluation
from rayfed_ssl.config import RunConfig
from rayfed_ssl.evaluation import PROTOCOLS
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.results import PIXELS, EvaluatedEncoder
from rayfed_ssl.methods import METHODS
from rayfed_ssl.records.outcomes import FILE
from rayfed_ssl.simulation import reevaluation
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.simulation.shared_encoders import SharedEncoders
from tests.tiny import measured, run_locally, tiny

ONE, TWO = "small_cnn", "small_cnn_bn"


@pytest.fixture
def wards(tmp_path: Path) -> dict[str, object]:
    """Five clients with test images of their own; client 0's are public, and the other four have two architectures."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 3)):
        for client in range(5):
            for label, level in (("bright", 150), ("dark", 60)):
                for row in range(count):
                    path = tmp_path / "d" / split / f"ward {client}" / label / f"{row}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    pixels = level + rng.integers(-60, 100, (8, 8, 3))
                    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    data = {"name": "imagefolder", "path": str(tmp_path / "d"), "layout": "clients", "image_size": 8}
    return {
        "data": {**data, "partition": {"name": "natural"}, "public": {"source": "client 0", "share": 0.1}},
        "data__limit": None,
        "data__test_limit": None,
        "clients": {"count": 5, "encoders": [TWO, ONE, TWO, ONE, TWO]},
        "train__batch_size": 8,
        "method__batch_size": 8,
        "evaluation": {
            "protocols": ["knn", "linear", "semi", "rank"],
            "every": 1,
            "linear": {"epochs": 2},
            "semi": {"fractions": [0.5], "epochs": 1, "batch_size": 8},
        },
    }


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with every encoder that is measured."""
    calls, evaluate = list[int](), evaluation.evaluate

    def counting(*args: Any) -> dict[str, float]:
        calls.append(1)
        return evaluate(*args)

    monkeypatch.setattr(evaluation, "evaluate", counting)
    return calls


def rows(document: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in document.items() if key != "evaluation"})


@pytest.mark.long
def test_a_run_and_its_evaluation_are_what_they_were(
    wards: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYFED_SSL_EVALUATIONS", "off")
    config, calls = tiny("feddf", **wards), counted(monkeypatch)
    run_locally(config, tmp_path / "once")
    rounds = config.train.rounds + 1
    assert len(calls) == 2 * rounds
    again = reevaluate(tmp_path / "once")
    assert len(calls) == 2 * rounds + 2 + 2  # and the untrained encoders

    monkeypatch.setattr(SharedEncoders, "distinct", lambda self, round, encoders: list(encoders))
    monkeypatch.setattr(reevaluation, "shareable", lambda config, encoder: False)
    calls.clear()
    run_locally(config, tmp_path / "each")
    assert len(calls) == 4 * rounds
    assert rows(reevaluate(tmp_path / "each")) == rows(again)
    assert len(calls) == 4 * rounds + 4 + 2
    found = measured(tmp_path / "once")
    assert found == measured(tmp_path / "each")
    own = {client for round, client, tag in found if tag == "eval/own_knn" and round == config.train.rounds}
    assert own == {1, 2, 3, 4}


@pytest.mark.long
@pytest.mark.parametrize(("method", "more"), [("fedmkd", {}), ("flesd", {"method__anchors": 16})])
def test_a_student_beside_clients_own_encoders(
    wards: dict[str, Any], tmp_path: Path, method: str, more: dict[str, object]
) -> None:
    """Each client's own tests are its own encoder's; what stands for the run in a line, its summary and its pairs, is
    the student's.
    """
    own = {"evaluation": {"protocols": ["knn"]}, "train__rounds": 1, "method__student": TWO}
    config, lines = tiny(method, **{**wards, **own, **more}), list[Progress]()
    summary = run_locally(config, tmp_path / "run", report=lines.append)
    found = measured(tmp_path / "run")  # no row twice
    clients = {client for round, client, tag in found if tag == "eval/own_knn" and round == 1}
    assert clients == {1, 2, 3, 4}
    theirs = [found[1, client, "eval/knn"] for client in (1, 2, 3, 4)]
    assert summary["accuracy"]["knn"] == found[1, None, "eval/knn"] != pytest.approx(np.mean(theirs))
    told = [line.values["eval/knn"] for line in lines if line.line == "evaluated round 1"]
    assert told[-1] == found[1, None, "eval/knn"]
    assert summary["paired"].keys() == {"untrained", "pixels"}
    outcomes = pq.read_table(tmp_path / "run" / FILE).to_pydict()
    (tmp_path / "run" / FILE).unlink()
    reevaluate(tmp_path / "run")
    assert pq.read_table(tmp_path / "run" / FILE).to_pydict() == outcomes


def shared(config: RunConfig) -> tuple[SharedEncoders, dict[str, Any]]:
    federation = load_federation(config)
    return SharedEncoders(config), {name: InitialWeights(config, federation)(name) for name in (ONE, TWO)}


def test_encoders_of_the_same_values_are_one_and_each_has_its_own_tests() -> None:
    sharing, weights = shared(tiny("feddf"))
    copy = replace(weights[TWO], vector=weights[TWO].vector.copy())  # the same bits in another place
    nearly = weights[TWO].vector.copy()
    nearly[0] = np.nextafter(nearly[0], np.float32(9))
    encoders = [
        EvaluatedEncoder(None, TWO, weights[TWO]),  # the server's
        EvaluatedEncoder(0, TWO, weights[TWO]),
        EvaluatedEncoder(1, ONE, weights[ONE]),
        EvaluatedEncoder(2, TWO, copy),
        EvaluatedEncoder(3, TWO, replace(copy, vector=nearly)),
        EvaluatedEncoder(4, TWO),  # kept by the client
        EvaluatedEncoder(5, TWO),
        EvaluatedEncoder(6, TWO, weights[TWO], classes=3),
        EvaluatedEncoder(7, ONE, weights[ONE]),
    ]
    found = sharing.distinct(2, encoders)
    assert [(one.client, one.holders) for one in found] == [
        (None, ()), (0, (0, 2)), (1, (1, 7)), (3, ()), (4, ()), (5, ()), (6, ()),
    ]  # fmt: skip
    values = {"knn": 0.5, "own_knn@0": 0.1, "own_knn@1": 0.2, "own_knn@2": 0.3, "own_knn@7": 0.4}
    given = list(sharing.each([(2, one.client, values) for one in found]))
    assert [client for _, client, _ in given] == [None, *range(8)]
    assert given[1] == (2, 0, {"knn": 0.5, "own_knn@0": 0.1})
    assert given[3] == (2, 2, {"knn": 0.5, "own_knn@2": 0.3})
    assert given[0] == (2, None, {"knn": 0.5})  # clients' own tests are their own encoders'
    assert list(sharing.each([(3, 0, values)])) == [(3, 0, values)]


def test_pixels_and_the_order_of_what_comes_late() -> None:
    sharing, weights = shared(tiny("feddf"))
    assert sharing.distinct(0, [EvaluatedEncoder(0, TWO, weights[TWO])]) == [EvaluatedEncoder(0, TWO, weights[TWO])]
    assert list(sharing.each([(0, PIXELS.client, {"a": 1.0}), (0, 0, {"b": 1.0})])) == [
        (0, None, {"a": 1.0}),
        (0, 0, {"b": 1.0}),
    ]


def test_what_others_bring_is_asked_for_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol or a method's way to evaluate may depend on the client."""
    config = tiny("feddf", evaluation__protocols=["knn"])

    def held(config: RunConfig) -> int:
        sharing, weights = shared(config)
        return len(sharing.distinct(1, [EvaluatedEncoder(client, TWO, weights[TWO]) for client in range(3)]))

    assert held(config) == 1

    class Own(EncoderClient[Any]):
        def evaluate(self, encoder: str, weights: Any) -> dict[str, float]:
            return {"knn": float(self.id)}

    with monkeypatch.context() as patched:
        patched.setitem(METHODS._rows, "feddf", replace(METHODS["feddf"], client=Own))
        assert held(config) == 3
    theirs = replace(PROTOCOLS["knn"], measure=lambda material, settings: {})
    monkeypatch.setitem(PROTOCOLS._rows, "knn", theirs)
    assert held(config) == 3
