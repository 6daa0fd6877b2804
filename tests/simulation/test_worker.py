"""An operation gets lists and dicts of its own, as it does where another process runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl.base.weights import plain
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.simulation.worker import Worker
from rayfed_ssl.testing.tiny import measured, run_locally, tiny_run

LOGS = """
from typing import Any, Literal

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.method import Info, Method, anything
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.settings.blocks import MethodConfig


class Config(MethodConfig):
    name: Literal["logs"] = "logs"


class Client(EncoderClient[Config]):
    def train(self, notes: dict[str, list[int]]) -> dict[str, Any]:
        log = self.state.setdefault("log", [])
        log.append(self.round)
        told = self.context.published["told"]["deep"]
        for readers in (notes["read by"], told):
            readers.append(self.id)
        self.metrics |= {"rounds": float(len(log)), "readers": float(len(notes["read by"])), "told": float(len(told))}
        if self.id == 1 and self.round == 2:
            raise ValueError("fails after it has changed its state")
        return {"log": log}


class Server(MethodServer[Config]):
    def start(self, cohort):
        cohort.publish("told", {"deep": []})

    def round(self, t, cohort):
        notes = {"read by": []}
        for reply in cohort.gather("train", notes=notes):
            reply["log"].append(-t)
        self.metrics["readers"] = float(len(notes["read by"]))

    def evaluated_encoders(self):
        return []


METHODS = {"logs": Method(Config, Client, Server, Info("mine", "nothing"), "simclr", anything)}
"""


def test_what_an_operation_does_to_what_it_is_given_reaches_nobody_else(tmp_path: Path) -> None:
    """Neither the other clients, nor the server, nor, where it fails, its own next round; and the server's changes of a
    reply do not reach the client. It is given its message, its state, and what was published.
    """
    (tmp_path / "logs.py").write_text(LOGS)
    changes = {"imports": ["logs.py"], "on_client_error": "drop", "evaluation.protocols": []}
    run_locally(tiny_run("logs", changes, tmp_path), tmp_path / "run")
    found = measured(tmp_path / "run")
    rounds = {client: [found.get((t, client, "client/rounds")) for t in (1, 2, 3)] for client in range(4)}
    assert rounds == {0: [1, 2, 3], 1: [1, None, 2], 2: [1, 2, 3], 3: [1, 2, 3]}
    for tag in ("client/readers", "client/told"):
        assert {value for (_, client, name), value in found.items() if name == tag} == {1.0}
    assert [found[t, None, "readers"] for t in (1, 2, 3)] == [0.0, 0.0, 0.0]


class Reading(Worker):
    """Its evaluations change what was published."""

    def evaluate(self, *given: object, **named: object) -> dict[str, float]:
        self.published["read"].append(given)
        return {"reads": float(len(self.published["read"]))}


def test_what_an_evaluation_does_to_what_was_published_reaches_no_other() -> None:
    config, images = tiny_run("fedsimclr", {}), np.zeros(3)
    reading = Reading(config, load_federation(config), {"read": [], "images": images})
    encoder = EvaluatedEncoder(None, "small_cnn_bn", holders=(0, 1))
    assert [reading.assess(1, encoder, None) for _ in range(2)] == [{"reads": 1.0}] * 2
    assert reading.published == {"read": [], "images": images}


CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("array", [CUBE, CUBE.T, CUBE[:, ::2], CUBE.transpose(1, 0, 2), CUBE[::-1]])
def test_an_array_is_in_one_order_wherever_it_was_made(array: np.ndarray) -> None:
    """Pickling keeps some orders and not others, a checkpoint keeps none."""
    (found,) = plain({"deep": [(array,)]})["deep"][0]
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, array)
    assert not array.flags.c_contiguous or found is array  # nothing is copied needlessly
