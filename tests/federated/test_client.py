"""What clients share: the optimisers against their formulas written out, the schedule, batches, and the epoch loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.federated.steps import descend
from rayfed_ssl.objectives.base import Step
from rayfed_ssl.simulation.worker import Worker
from tests import reference
from tests.tiny import tiny


def client_of(operation: str = "train", round: int = 1, **changes: Any) -> EncoderClient[Any]:
    """Client 1 of a tiny FedSimCLR."""
    config = tiny("fedsimclr", **changes)
    worker = Worker(config, load_federation(config))
    client = worker.method.client(worker, 1, round, operation, {})
    client.load(worker.initial("small_cnn_bn"))
    return client


def test_the_servers_work_has_the_first_clients_architecture() -> None:
    """Its number is -1, which would be the last client's place in a list."""
    config = tiny("feddf", clients__encoders=["small_cnn", "small_cnn_bn"] * 2)
    worker = Worker(config, load_federation(config))
    encoders = [worker.client(EncoderClient, number, 1, "serve", {}).encoder for number in (SERVER, 0, 1)]
    assert encoders == ["small_cnn", "small_cnn", "small_cnn_bn"]


def sgd(theta: float, gradients: list[float], lr: float, decay: float) -> float:
    """Polyak's momentum of 0.9, decay in the gradient."""
    velocity = 0.0
    for g in gradients:
        velocity = 0.9 * velocity + g + decay * theta
        theta -= lr * velocity
    return theta


def adam(theta: float, gradients: list[float], lr: float, decay: float, decoupled: bool) -> float:
    """Kingma and Ba 2015, Algorithm 1; decoupled: Loshchilov and Hutter 2019, Algorithm 2."""
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        if decoupled:
            theta -= lr * decay * theta
        else:
            g += decay * theta
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        theta -= lr * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return theta


def lars(theta: float, gradients: list[float], lr: float, decay: float, trust: float) -> float:
    """You et al. 2017, Algorithm 1, of one number: its gradient with decay counts by its sign alone."""
    velocity = 0.0
    for g in gradients:
        velocity = 0.9 * velocity + lr * trust * abs(theta) * math.copysign(1.0, g + decay * theta)
        theta -= velocity
    return theta


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_each_optimiser_is_its_formula(name: str) -> None:
    client = client_of(train__optimizer={"name": name, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.2})
    theta, gradients = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64)), [0.5, -0.3, 0.8, 0.1]
    optimizer = client.optimizer([theta])
    for g in gradients:
        descend(optimizer, g * theta)
    expected = sgd(2.0, gradients, 0.1, 0.2) if name == "sgd" else adam(2.0, gradients, 0.1, 0.2, name == "adamw")
    assert float(theta.detach()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("given", "trust"), [({}, 0.001), ({"trust_coefficient": 0.2}, 0.2)])
def test_lars_is_its_formula_and_plain_momentum_for_a_bias(given: dict[str, float], trust: float) -> None:
    settings = {"name": "lars", "lr": 0.3, "momentum": 0.9, "weight_decay": 0.2, **given}
    client, gradients = client_of(train__optimizer=settings), [0.5, -0.3, 0.8, -0.9]
    weight, bias = (torch.nn.Parameter(torch.full(shape, 2.0, dtype=torch.float64)) for shape in ((1, 1), (1,)))
    optimizer = client.optimizer([weight, bias])
    for g in gradients:
        descend(optimizer, g * (weight + bias).sum())
    assert float(weight.detach()) == pytest.approx(lars(2.0, gradients, 0.3, 0.2, trust), rel=1e-9)
    assert float(bias.detach()) == pytest.approx(sgd(2.0, gradients, 0.3, 0.0), rel=1e-9)


def test_clipping_bounds_the_norm_over_all_parameters() -> None:
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    descend(torch.optim.SGD([a, b], 1.0), (3 * a + 4 * b).sum(), clip_norm=1.0)
    assert (float(a.detach()), float(b.detach())) == pytest.approx((-0.6, -0.8), rel=1e-5)
    descend(torch.optim.SGD([a, b], 1.0), (0.3 * a + 0.4 * b).sum(), clip_norm=1.0)  # already within
    assert (float(a.detach()), float(b.detach())) == pytest.approx((-0.9, -1.2), rel=1e-5)


def test_the_cosine_goes_over_rounds_and_is_constant_within_one() -> None:
    """Printed values for lr 0.032 over 100 rounds."""
    schedule = {"train__optimizer": {"lr": 0.032, "schedule": "cosine"}, "train__rounds": 100}
    for c, lr in ((0, 0.032), (25, 0.0273137), (50, 0.016), (75, 0.0046863), (99, 0.0000079)):
        assert client_of(round=c + 1, **schedule).learning_rate == pytest.approx(lr, abs=5e-8)
    client = client_of(round=51, **schedule)
    assert client.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"] == pytest.approx(0.016)
    assert client_of(round=51, train__optimizer__lr=0.032).learning_rate == 0.032


def test_an_epoch_shows_every_image_once_in_a_new_order() -> None:
    client = client_of()
    drawn = [rows.tolist() for rows in client.batches(50, epochs=3, size=16)]
    assert [len(rows) for rows in drawn] == [16] * 9  # the short last batch of two is dropped
    epochs = [[*drawn[i], *drawn[i + 1], *drawn[i + 2]] for i in (0, 3, 6)]
    assert all(len(set(epoch)) == 48 and set(epoch) <= set(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    other = [rows.tolist() for rows in client_of(round=2).batches(50, epochs=1, size=16)]
    assert other != drawn[:3]
    assert [len(rows) for rows in client.batches(10, epochs=1, size=16)] == [10]


def test_training_mode_comes_back_after_a_look_between_epochs() -> None:
    client, modes = client_of(), []
    network, local = client.network, client.objective_loss()

    def loss(views: tuple[torch.Tensor, ...], rows: torch.Tensor) -> Step:
        modes.append(network.training)
        return local(views, rows)

    def look() -> bool:
        network.eval()
        return False

    network.eval()
    client.fit(loss, epochs=3, stop=look)
    assert modes == [True] * 3 * (len(client.indices) // 16)


def test_a_second_fit_of_an_operation_draws_by_a_purpose_of_its_own() -> None:
    client, drawn = client_of(), list[tuple[torch.Tensor, torch.Tensor]]()
    local = client.objective_loss()

    def loss(views: tuple[torch.Tensor, ...], rows: torch.Tensor) -> Step:
        drawn.append((rows.clone(), views[0].clone()))
        return local(views, rows)

    client.fit(loss)
    steps = len(drawn)
    with pytest.raises(ValueError, match="train: a second fit draws what the first one drew; give it a purpose"):
        client.fit(loss)
    client.fit(loss, purpose="head")
    first, second = drawn[:steps], drawn[steps:]
    assert len(second) == steps > 0
    for (rows, view), (other_rows, other_view) in zip(first, second, strict=True):
        assert not torch.equal(rows, other_rows)
        assert not torch.equal(view, other_view)


def test_the_reported_loss_is_the_mean_over_steps_of_what_was_minimised() -> None:
    """Three steps of SimCLR with momentum by hand: projections of the network as it was before each step."""
    changes = {"train__local_steps": 3, "train__optimizer": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}}
    client = client_of(**changes)
    start = client.weights
    client.fit()
    found = client.weights.vector

    by_hand = client_of(**changes)
    network, draws, losses = by_hand.network.train(), by_hand.generator("views"), []
    parameters = list(network.parameters())
    velocities = [torch.zeros_like(p) for p in parameters]
    for rows in by_hand.batches(len(by_hand.indices)):
        views = by_hand.views(by_hand.pixels()[rows], draws, 2)
        with torch.enable_grad():
            z = network.project(torch.cat(views))
            unit = z / z.norm(dim=1, keepdim=True)
            similar = (unit @ unit.T / 0.1).exp() * (1 - torch.eye(len(z)))
            half = len(z) // 2
            positive = similar[torch.arange(len(z)), (torch.arange(len(z)) + half) % len(z)]
            loss = -(positive / similar.sum(1)).log().mean()
        losses.append(float(loss.detach()))
        assert losses[-1] == pytest.approx(reference.nt_xent(z[:half].detach(), z[half:].detach(), 0.1), rel=1e-4)
        with torch.no_grad():
            for p, v, g in zip(parameters, velocities, torch.autograd.grad(loss, parameters), strict=True):
                v.mul_(0.9).add_(g + 0.01 * p)
                p.sub_(0.05 * v)
    assert len(losses) == 3
    assert client.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    apart, moved = found - by_hand.weights.vector, found - start.vector
    assert np.linalg.norm(apart[: start.parameters]) < 0.03 * np.linalg.norm(moved[: start.parameters])
