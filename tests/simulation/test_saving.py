"""Checkpoints by rounds and by minutes: which rounds are saved, and that no result depends on it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.settings.blocks import CheckpointConfig
from rayfed_ssl.simulation import saving
from rayfed_ssl.simulation.saving import Saving
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.testing.tiny import booked, encoders, measured, outcomes, run_locally, tiny_run
from tests.tiny import tiny


class Clock:
    """Minutes that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.minutes = 1000.0
        monkeypatch.setattr(saving.time, "monotonic", lambda: 60 * self.minutes)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"every": 4, "minutes": None}, [4, 8, 10]),
        ({"every": 4, "minutes": 2.5}, [3, 4, 7, 8, 10]),  # the minutes count anew from every checkpoint
        ({"every": 100, "minutes": 2.5}, [3, 6, 9, 10]),
        ({"every": 100, "minutes": 10.0}, [10]),
        ({"every": 0, "minutes": 2.5}, [10]),
    ],
)
def test_rounds_are_saved_by_number_or_when_minutes_have_passed(
    config: dict[str, Any], expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    kept, saved = Saving(CheckpointConfig(**config), tmp_path / "checkpoints", 10), []
    for t in range(1, 11):
        clock.minutes += 1
        if kept.due(t):
            kept.write(t, {"t": t}, [])
            saved.append(t)
            assert kept.round == t
    assert saved == expected


def test_a_run_is_saved_by_minutes_and_is_the_same_run(tmp_path: Path) -> None:
    few = tiny("fedbyol", train__rounds=3, checkpoint__every=2, checkpoint__minutes=None, checkpoint__keep=9)
    often = tiny("fedbyol", train__rounds=3, checkpoint__every=2, checkpoint__minutes=1e-9, checkpoint__keep=9)
    folders = {"few": few, "often": often}
    for name, config in folders.items():
        run_locally(config, tmp_path / name)
    found = {name: sorted(p.name for p in (tmp_path / name / "checkpoints").iterdir()) for name in folders}
    assert found["few"] == ["round-00002", "round-00003"]
    assert found["often"] == ["round-00001", "round-00002", "round-00003"]
    for left in (encoders, measured, booked, outcomes):
        assert left(tmp_path / "few") == left(tmp_path / "often")


@pytest.mark.long
@pytest.mark.parametrize("method", ["flesd", "fedca", "fedmd"])
def test_checkpoints_name_the_public_images_and_hold_none(method: str, tmp_path: Path) -> None:
    config = tiny(method, train__rounds=2, checkpoint__keep=9)
    run_locally(config, tmp_path / "whole")
    for folder in (tmp_path / "whole" / "checkpoints").iterdir():
        tree, _ = checkpoint.load(folder)
        assert list(tree["published"].values()).count(saving.PUBLIC) == 1
        arrays = [array for file in folder.glob("*.safetensors") for array in load_file(file).values()]
        assert not any(array.shape[1:] == (8, 8, 3) for array in arrays)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "round-00002")
    run_locally(config, tmp_path / "resumed", resume=True)
    for left in (encoders, measured, booked):
        assert left(tmp_path / "resumed") == left(tmp_path / "whole")


def test_public_images_alone_are_named_and_put_back() -> None:
    public, model = load_federation(tiny("flesd")).public, np.zeros(3)
    assert public is not None
    given = {"public": public.pixels.view(), "model": model, "part": public.pixels[1:], "copy": public.pixels.copy()}
    named = saving.without_public_images(given, public)
    assert named["public"] == saving.PUBLIC
    assert all(named[name] is given[name] for name in ("model", "part", "copy"))
    assert saving.published_again(named, public) == {**given, "public": public.pixels}
    assert saving.without_public_images({"model": model}, None) == {"model": model}


PUBLISHES = """
from typing import Any, Literal

import numpy as np

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.method import Info, Method, anything
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.settings.blocks import MethodConfig


class Config(MethodConfig):
    name: Literal["publishes"] = "publishes"


class Client(EncoderClient[Config]):
    def train(self, anchors: list[Any], sums: Any) -> dict[str, Any]:
        return {"sums": sums}


class Server(MethodServer[Config]):
    def start(self, cohort):
        rows, of_columns = np.random.default_rng(0).random((2, 40, 50), np.float32)
        self.state |= {"anchors": [rows[:30], rows[30:]], "columns": np.asfortranarray(of_columns)}
        cohort.publish("anchors", self.state["anchors"])

    def round(self, t, cohort):
        sums = self.state["columns"].sum(1)
        for reply in cohort.ask("train", anchors=self.state["anchors"], sums=sums):
            self.metrics["sum"] = float(reply["sums"].astype(np.float64).sum())

    def evaluated_encoders(self):
        return []


METHODS = {"publishes": Method(Config, Client, Server, Info("mine", "nothing"), "simclr", anything)}
"""


def test_a_resumed_run_sends_nothing_again_that_was_published_and_adds_in_the_same_order(tmp_path: Path) -> None:
    """What is published goes by identity, in whichever two places it stands, and a sum of float32 by the order in
    memory.
    """
    (tmp_path / "publishes.py").write_text(PUBLISHES)
    config = tiny_run("publishes", {"imports": ["publishes.py"], "evaluation.protocols": []}, tmp_path)
    rounds = iter([False, True, True])
    run_locally(config, tmp_path / "whole")
    run_locally(config, tmp_path / "resumed", stopping=lambda: next(rounds))
    run_locally(config, tmp_path / "resumed", resume=True)
    assert {row[0] for row in booked(tmp_path / "whole") if row[4] == "anchors"} == {0}
    assert booked(tmp_path / "resumed") == booked(tmp_path / "whole")
    assert measured(tmp_path / "resumed") == measured(tmp_path / "whole")
