"""A step on fixed memory gives a plain one's bits, for every objective and optimiser; so does a GPU's graph of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated import steps
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.simulation.worker import Worker

OPTIMIZERS: dict[str, dict[str, object]] = {
    "sgd": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "clip_norm": 1.0},
    "adamw": {"name": "adamw", "lr": 0.01, "weight_decay": 1e-2},
    "lars": {"name": "lars", "lr": 0.3, "weight_decay": 1e-4, "trust_coefficient": 0.01, "clip_norm": 1.0},
}
ALL = [(name, "sgd") for name in OBJECTIVES] + [(n, rule) for rule in ("adamw", "lars") for n in ("simclr", "byol")]
COUNTING = {"sgd": False, "adamw": True, "lars": False}


def config(objective: str, optimizer: str, **resources: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "method": {"name": "fedavg_supervised" if objective == "supervised" else "fedavg"},
            "objective": {"name": objective},
            "data": {"name": "digits", "image_size": 16, "limit": 200, "test_limit": 20},
            "clients": {"count": 2, "encoders": "vit_tiny" if objective == "mae" else "small_cnn_bn"},
            "model": {"width": 0.25, "projector": {"hidden": [16], "dim": 8}},
            "train": {"batch_size": 8, "local_epochs": 1, "optimizer": OPTIMIZERS[optimizer]},
            "evaluation": {"protocols": []},
            "resources": {"device": "cpu", **resources},
        }
    )


def trained(settings: RunConfig, static: bool) -> tuple[np.ndarray, dict[str, Any], float, Worker]:
    """A client's weights, state and loss after its local epoch."""
    worker = Worker(settings, load_federation(settings))
    worker.step_maker.static = static
    weights = worker.initial(settings.clients.encoder(0))
    message = {"weights": weights}
    result, state = worker.execute("train", 0, 1, message, None)
    return result.reply["weights"].vector, state, result.metrics["loss"], worker


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return np.array_equal(getattr(a, "vector", a), getattr(b, "vector", b))


@pytest.mark.long
@pytest.mark.parametrize(("objective", "optimizer"), ALL)
def test_fixed_memory_gives_the_same_bits(objective: str, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[int] = []
    body = steps.StaticStep.body

    def watched(self: steps.StaticStep) -> None:
        assert self.counts_steps == COUNTING[optimizer]  # if it does, the optimiser is no part of the body
        body(self)
        bodies.append(1)
        assert all(self.memory[name] is fixed for name, fixed in self.fixed.items())  # where a graph would look for it

    monkeypatch.setattr(steps.StaticStep, "body", watched)
    settings = config(objective, optimizer)
    plain, static = trained(settings, False), trained(settings, True)
    assert np.array_equal(plain[0], static[0])
    assert same(plain[1], static[1])
    assert plain[2] == static[2]
    if objective in static[3].step_maker.refused or OBJECTIVES[objective].draws:  # what draws is never recorded
        assert not bodies
    else:
        assert len(bodies) >= 5  # all steps but the first two


def test_what_grows_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    settings = config("simclr", "sgd")
    worker = Worker(settings, load_federation(settings))
    worker.step_maker.static = True
    network = torch.nn.Linear(2, 1)
    memory = {"queue": torch.zeros(0, 2)}

    def loss(views: tuple[torch.Tensor, ...], rows: torch.Tensor) -> torch.Tensor:
        memory["queue"] = torch.cat([memory["queue"], views[0]])
        return network(memory["queue"]).square().mean()

    def stepped(wrapped: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        network.reset_parameters()
        memory["queue"] = torch.zeros(0, 2)
        total = torch.zeros(())
        step = steps.TrainStep(loss, torch.optim.SGD(network.parameters(), 0.1), None, lambda: None, total)
        if wrapped:
            step = worker.step_maker.made(step, "growing", 20, memory)
        for _ in range(10):
            step((torch.randn(3, 2),), torch.arange(3))
        return [p.detach().clone() for p in (*network.parameters(), memory["queue"], total)]

    assert all(torch.equal(a, b) for a, b in zip(stepped(False), stepped(True), strict=True))
    assert worker.step_maker.refused == {"growing"}
    assert "growing: no CUDA graph of its step (what it remembers changes its size)" in caplog.text


def test_what_cannot_be_recorded_goes_on_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(body: steps.Body, device: torch.device) -> steps.Body:
        raise steps.NotStatic("operation not permitted when stream is capturing")

    settings = config("byol", "sgd")
    plain = trained(settings, False)
    monkeypatch.setattr(steps, "recorded", failing)
    static = trained(settings, True)
    assert np.array_equal(plain[0], static[0])
    assert same(plain[1], static[1])
    assert plain[2] == static[2]
    assert static[3].step_maker.refused == {"byol"}


def test_few_steps_are_not_worth_a_graph() -> None:
    made = steps.StepMaker("auto", torch.device("cpu"))
    made.static = True
    plain = steps.TrainStep(
        lambda v, r: r.sum(), torch.optim.SGD([torch.ones(1)], 0.1), None, lambda: None, r := torch.zeros(())
    )
    assert made.made(plain, "simclr", steps.WORTH - 1, {}) is plain
    assert isinstance(made.made(plain, "simclr", steps.WORTH, {}), steps.StaticStep)
    assert r == 0


def test_a_graph_demanded_of_a_cpu_is_refused() -> None:
    with pytest.raises(UserError, match=r"resources\.cuda_graphs: found 'on', but this process trains on the CPU"):
        steps.StepMaker("on", torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(("objective", "optimizer"), ALL)
def test_a_graph_gives_the_bits_of_eager(objective: str, optimizer: str) -> None:
    plain = trained(config(objective, optimizer, device="cuda", cuda_graphs="off"), False)
    graphed = trained(config(objective, optimizer, device="cuda", cuda_graphs="auto"), True)
    assert np.array_equal(plain[0], graphed[0])
    assert same(plain[1], graphed[1])
    assert plain[2] == graphed[2]
