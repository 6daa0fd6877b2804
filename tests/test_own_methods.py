"""Mistakes in a method of one's own are named where they are made; what its clients reply and keep is their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import settled
from rayfed_ssl.extensions import gather
from rayfed_ssl.extensions import load as add
from rayfed_ssl.federated.messages import ClientError
from rayfed_ssl.records.tables import read_metrics
from rayfed_ssl.testing import contract
from rayfed_ssl.testing.tiny import booked, run_locally, tiny_run

METHOD = """
from typing import Literal

import numpy as np
import torch

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.settings.blocks import MethodConfig


class Config(MethodConfig):
    name: Literal["mine"] = "mine"


class Client(EncoderClient[Config]):
    def train(self, weights):
        self.load(weights)
        self.fit()
        TRAINED


class Server(MethodServer[Config]):
    def start(self, cohort):
        STARTED

    def round(self, t, cohort):
        ROUND

    def asked(self, t):
        ASKED

    # MORE


METHODS = {"mine": Method(Config, Client, Server, Info("mine", "weights"), objective="simclr", accepts=unlabelled)}
"""
PARTS = {
    "TRAINED": "return {'weights': self.weights}",
    "STARTED": "self.weights = self.initial_weights()",
    "ROUND": "self.weights = cohort.mean('train', weights=self.weights)['weights']",
    "ASKED": "return super().asked(t)",
    "MORE": "",
}


PREDICTED = """
def workload(self, operation, client):
    return self.fitting(client, weights=self.weights)

def sends(self, t, client, met):
    return {"weights": self.weights}
"""


def run(folder: Path, changes: dict[str, object] | None = None, **parts: str) -> Path:
    """Runs METHOD with some of its PARTS replaced, and returns the run's folder."""
    text = METHOD
    for name, lines in {**PARTS, **parts}.items():
        text = text.replace(name, lines.replace("\n", "\n    " if name == "MORE" else "\n        "))
    (folder / "mine.py").write_text(text)
    keys = {"imports": ["mine.py"], "train.rounds": 1, "evaluation.protocols": [], **(changes or {})}
    run_locally(tiny_run("mine", keys, beside=folder), folder / "run")
    return folder / "run"


def recorded(folder: Path, tag: str) -> dict[tuple[int, int], float]:
    """(round, client) -> what clients recorded under the tag."""
    table = read_metrics(folder)
    rows = table.filter(pc.equal(table["tag"].cast("string"), tag)).to_pylist()
    return {(row["round"], row["client"]): row["value"] for row in rows}


def test_what_a_client_keeps_and_replies_stays_when_the_next_client_trains(tmp_path: Path) -> None:
    """Also where it keeps views of the network's own values, which every client of a process trains in turn."""
    kept = """
mine = self.network.projector[0].weight
self.metrics["before"] = float(np.abs(self.state["mine"]).sum()) if "mine" in self.state else 0.0
self.state["mine"] = mine.detach().numpy()[1:]
self.metrics["after"] = float(np.abs(self.state["mine"]).sum())
return {"weights": self.weights, "view": mine.detach().numpy(), "deep": [{"tensor": mine}]}
"""
    asked = """
replies = cohort.gather("train", weights=self.weights)
self.weights = replies[0]["weights"]
views = [reply["view"] for reply in replies]
assert all(np.array_equal(view, reply["deep"][0]["tensor"].numpy()) for view, reply in zip(views, replies))
self.metrics["different"] = len({view.tobytes() for view in views})
"""
    folder = run(tmp_path, {"train.rounds": 2}, TRAINED=kept, ROUND=asked)
    assert recorded(folder, "different") == {(1, None): 4, (2, None): 4}
    before, after = recorded(folder, "client/before"), recorded(folder, "client/after")
    assert {client: before[2, client] for client in range(4)} == {client: after[1, client] for client in range(4)}
    assert len({after[1, client] for client in range(4)}) == 4


def test_what_is_settled_is_as_it_is() -> None:
    """Only PyTorch's memory is copied, one object once, in the same order in memory."""
    tensor, own = torch.arange(6.0).reshape(2, 3), np.arange(3)
    turned = tensor.numpy().T
    copies = settled({"a": turned, "b": [turned, own, None], "t": tensor.requires_grad_()})
    assert copies["a"] is copies["b"][0]
    assert copies["b"][1] is own
    assert copies["a"].flags.f_contiguous
    assert not copies["t"].requires_grad
    tensor.detach().zero_()
    assert copies["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert copies["t"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"TRAINED": "pass"}, "operation 'train' returned nothing; must return a dict of the reply's fields"),
        ({"TRAINED": "return [self.weights]"}, "operation 'train' returned list; must return a dict"),
        ({"ROUND": "cohort.tell('trian')"}, "asked for 'trian', which Client does not define; it defines train"),
        (
            {"TRAINED": "self.state['seen'] = {'net': torch.ones(2)}\nreturn {}"},
            r"self\.state\['seen'\]\['net'\]: found Tensor; a checkpoint holds arrays of numbers, Weights",
        ),
        (
            {"TRAINED": "self.state['seen'] = [{np.int64(3): 1}]\nreturn {}"},
            r"self\.state\['seen'\]\[0\]: found the key .*3.* of type int64; a checkpoint holds",
        ),
        (
            {"TRAINED": "self.state['seen'] = np.array(['a'])\nreturn {}"},
            r"self\.state\['seen'\]: found an array of <U1; a checkpoint holds",
        ),
        (
            {"TRAINED": "self.metrics['hit'] = 'high'\nreturn {'weights': self.weights}"},
            r"self\.metrics\['hit'\]: found 'high'; must be a number",
        ),
        (
            {"TRAINED": "self.metrics['hit'] = np.ones(3)\nreturn {'weights': self.weights}"},
            r"self\.metrics\['hit'\]: found ndarray; must be a number",
        ),
    ],
)
def test_a_mistake_of_a_client_is_its_failure_and_named(parts: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=f"client 0 failed in round 1, (?s:.*){said}"):
        run(tmp_path, TRAINED=parts.pop("TRAINED", PARTS["TRAINED"]), **parts)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"ROUND": PARTS["ROUND"] + "\nself.state['bank'] = {'a': {1, 2}}"},
            r"mine: self\.state\['bank'\]\['a'\]: found set; a checkpoint holds",
        ),
        (
            {"ROUND": "self.weights = cohort.gather('train', weights=self.weights)[0]['weigths']"},
            "weigths: client 0 replied with weights",
        ),
        (
            {"ROUND": "self.weights = cohort.mean('train', weights=self.weights)['centres']"},
            "centres: the mean is of weights; its `fields` say what is averaged",
        ),
        (
            {"ROUND": "self.weights = cohort.mean('train', weights=self.weights)"},
            "mine: self.weights: found Mean; must be Weights",
        ),
        (
            {"ROUND": "self.weights = self.weights.with_vector(self.weights.vector[:-1])"},
            r"weights of \d+ values: found an array of shape \(\d+,\)",
        ),
        ({"STARTED": "pass"}, r"mine: self\.weights is not set; set it in `start`"),
        (
            {
                "TRAINED": "return {'m': np.ones(self.id + 1)}",
                "ROUND": "cohort.mean('train', fields=('m',), weights=self.weights)",
            },
            r"mean of 'm': found arrays of the shapes \(1,\) and \(2,\); must be of one shape in all clients",
        ),
        (
            {"ROUND": "cohort.tell('train', clients=[0, 9], weights=self.weights)"},
            "'train', clients: found client 9; must be one with training images: 0 to 3",
        ),
        (
            {"ROUND": "cohort.mean('train', clients=[1, 2, 1], weights=self.weights)"},
            "'train', clients: found client 1 twice; each client once",
        ),
        (
            {"ROUND": "cohort.mean('train', by={0: 1, 1: 1, 3: 1}, weights=self.weights)"},
            "mean of 'train': by has no weight for client 2, which is asked",
        ),
        ({"ASKED": "return (0, 7)"}, r"mine: asked\(1\): found client 7; must be one with training images: 0 to 3"),
        ({"ASKED": "pass"}, r"mine: asked\(1\): found None; must be clients' numbers"),
        (
            {"ROUND": PARTS["ROUND"] + "\nself.metrics['spread'] = 'wide'"},
            r"Server: self\.metrics\['spread'\]: found 'wide'; must be a number",
        ),
    ],
)
def test_a_mistake_of_a_server_is_named(parts: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, RuntimeError), match=said):
        run(tmp_path, **parts)


def test_the_contract_lets_predictions_read_the_state_that_is_rehearsed(tmp_path: Path) -> None:
    """As ``run --check`` does: a server that was not started has the global model's first values there."""
    folder = run(tmp_path, MORE=PREDICTED)
    keys = {"imports": ["mine.py"], "train.rounds": 1, "evaluation.protocols": []}
    contract("mine", keys, beside=tmp_path)().test_bytes_are_those_predicted(folder)


def test_a_tensor_that_is_not_finite_is_seen_in_a_reply(tmp_path: Path) -> None:
    lost = "return {'weights': self.weights, 'deep': [torch.full((2,), float('nan'))]}"
    folder = run(tmp_path, TRAINED=lost, ROUND="cohort.tell('train', weights=self.weights)")
    told = json.loads((folder / "summary.json").read_text())["diverged"]
    assert told["reason"].startswith(
        "diverged in round 1: client 0, operation 'train' replied with NaN or infinity in 'deep'"
    )


def test_own_encoders_that_no_client_keeps_are_not_measured_as_the_initial_ones(tmp_path: Path) -> None:
    everybody = PARTS["STARTED"] + "\nself.evaluated_encoders = self.own_encoders"
    with pytest.raises(RuntimeError, match=r"mine: the own encoder of client 0 .* calls self\.keep_own\(\)"):
        run(tmp_path, STARTED=everybody)
    (tmp_path / "kept").mkdir()
    run(tmp_path / "kept", STARTED=everybody, TRAINED="self.keep_own()\n" + PARTS["TRAINED"])


def test_a_servers_own_draw_of_clients_holds_on_a_virtual_clock_too(tmp_path: Path) -> None:
    """Of the clients that it asks for, those that can be reached: here client 1 cannot be in the first 10 s."""
    trace = tmp_path / "trace.csv"
    trace.write_text("client,start,end\n0,0,1000\n1,10,1000\n2,0,1000\n3,0,1000\n")
    speeds: dict[str, object] = {"system.seconds_per_image": 1.0}
    seen = {"system.availability": {"name": "trace", "path": str(trace)}}
    for name, system, asked in (("untimed", {}, {1, 3}), ("timed", speeds, {1, 3}), ("traced", speeds | seen, {3})):
        (tmp_path / name).mkdir()
        folder = run(tmp_path / name, system, ASKED="return (3, 1)", MORE=PREDICTED)
        assert {client for _, client, *_ in booked(folder)} == asked, name


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (METHOD, "Method(Config, Client, Server", "Method(Config, Server, Client", "method 'mine', whose client is no"),
        ("METHODS = {'mine': print}", "", "", "method 'mine', which is no rayfed_ssl.federated.method.Method"),
        (METHOD, 'Literal["mine"] = "mine"', 'Literal["my"] = "my"', r'name: Literal\["mine"\] = "mine"'),
        (METHOD, 'Info("mine", "weights")', '"weights"', "method 'mine', whose info is no rayfed_ssl"),
        (METHOD, "accepts=unlabelled", "accepts='simclr'", "method 'mine', whose accepts is no function"),
        (METHOD, "accepts=unlabelled", "accepts=unlabelled, step='men'", "whose step is 'men'; must be one of own"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_method_is_one_line(text: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=rf"^imports: own\.py: found .*{said}.*$"):
        add(gather(["own.py"], tmp_path))
