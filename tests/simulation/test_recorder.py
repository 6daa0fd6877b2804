"""What the recorder draws, and when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rayfed_ssl.testing.tiny import booked, encoders, measured, run_locally, tiny_run
from tests.tiny import tiny

DRAWN = {"partition.png", "accuracy.png", "accuracy_vs_trace.png", "fedfoa_distance.png"}


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "figures").iterdir()} if (folder / "figures").exists() else set()


def shown(folder: Path) -> list[str]:
    """The tags of TensorBoard's images."""
    events = EventAccumulator(str(folder))
    events.Reload()
    found: list[str] = events.Tags()["images"]
    return sorted(found)


@pytest.mark.long
def test_figures_change_nothing_else_and_may_be_asked_for_later(tmp_path: Path) -> None:
    drawn, bare = tmp_path / "drawn", tmp_path / "bare"
    run_locally(tiny("fedfoa", train__rounds=2, figures=True), drawn)
    rounds: list[int] = []
    run_locally(
        tiny("fedfoa", train__rounds=2, figures=False), bare, report=lambda p: rounds.append(p.round),
        stopping=lambda: max(rounds) >= 1,
    )  # fmt: skip
    assert names(drawn) == DRAWN
    assert shown(drawn) == ["clients/fedfoa_distance", "data/partition"]
    assert names(bare) == set()
    assert shown(bare) == []
    run_locally(tiny("fedfoa", train__rounds=2, figures=True), bare, resume=True)
    assert names(bare) == DRAWN - {"partition.png"}  # that belongs to a run's beginning
    assert (encoders(bare), measured(bare), booked(bare)) == (encoders(drawn), measured(drawn), booked(drawn))


LOOPS = """
from typing import Literal

from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.methods import fedavg


class Config(fedavg.Config):
    name: Literal["loops"] = "loops"


class Client(fedavg.Client[Config]):
    def train(self, weights, **beside):
        self.load(weights)
        self.metrics = {measured}
        return self.averaged


METHODS = {"loops": Method(Config, Client, fedavg.Server, Info("mine", "weights"), "simclr", unlabelled)}
"""


@pytest.mark.parametrize(
    ("written", "loss", "images"),
    [
        ('{"loss": 1.0 + self.id}', 2.5, None),  # of four clients: all count alike
        ('{"loss": 1.0 + self.id} | ({"images": 10.0 * self.id} if self.id > 1 else {})', (2 * 3 + 3 * 4) / 5, 50.0),
        ('{"grade": 1.0}', None, None),
    ],
)
def test_a_clients_own_training_loop_may_say_its_loss_and_nothing_else(
    written: str, loss: float | None, images: float | None, tmp_path: Path
) -> None:
    (tmp_path / "loops.py").write_text(LOOPS.replace("{measured}", written))
    config = tiny_run("loops", {"imports": ["loops.py"], "train.rounds": 1, "evaluation.protocols": []}, tmp_path)
    summary = run_locally(config, tmp_path / "run")
    found = {tag: value for (_, client, tag), value in measured(tmp_path / "run").items() if client is None}
    assert (found.get("train/loss"), found.get("train/images")) == (loss, images)
    assert "train/lr" not in found
    assert (summary["train_images_per_s"] is None) == (images is None)
