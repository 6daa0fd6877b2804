"""FedDecorr as a plug-in and as a method: a step by hand, nothing at weight 0, less correlation with weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.messages import ClientError
from rayfed_ssl.methods import feddecorr
from rayfed_ssl.methods.feddecorr import ClientHalf, Config
from rayfed_ssl.objectives.decorrelation import decorrelation
from rayfed_ssl.objectives.simclr import SimCLR
from rayfed_ssl.simulation.worker import Worker
from tests import reference
from tests.methods.rounds import client, started, worker
from tests.tiny import run_locally, tiny


def penalty(config: Config, *features: Tensor) -> Tensor | None:
    chosen = tiny("feddecorr")
    worker = Worker(chosen, load_federation(chosen))
    return ClientHalf(config, worker.method.client(worker, 0, 1, "train", {})).penalty((), features)


def trained(config: RunConfig) -> tuple[np.ndarray, dict[str, float]]:
    worker = Worker(config, load_federation(config))
    outcome, state = worker.execute("train", 0, 1, {"weights": worker.initial("small_cnn_bn")}, None)
    assert set(state) <= {"target"}
    return outcome.reply["weights"].vector, outcome.metrics


def test_the_penalty_is_the_mean_over_views() -> None:
    x, y = (torch.randn(9, 4, dtype=torch.float64, generator=generator(k, "feddecorr")) for k in range(2))
    expected = 0.3 * (reference.decorrelation(x) + reference.decorrelation(y)) / 2
    found = penalty(Config(weight=0.3), x, y)
    assert found is not None
    assert found.item() == pytest.approx(expected, rel=1e-6)
    free = penalty(Config(weight=0.3, batch_free=True), x)
    assert free is not None
    assert free.item() == pytest.approx(0.3 * reference.decorrelation(x) * (9 / 8**2) * (63**2 / 64), rel=1e-6)
    assert penalty(Config(weight=0), x) is None


@pytest.mark.parametrize("method", ["feddecorr", "fedsimclr"])
def test_a_loss_without_features_is_refused(method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A third-party loss may give none; no other code needs one."""
    step = SimCLR.step
    monkeypatch.setattr(SimCLR, "step", lambda *given: step(*given)._replace(features=()))
    config = tiny(method, train__rounds=1, evaluation__protocols=[])
    if method == "fedsimclr":
        assert run_locally(config, tmp_path / "run")["status"] == "complete"
        return
    with pytest.raises(ClientError, match="feddecorr needs the encoder's features of the views, and the loss gives"):
        run_locally(config, tmp_path / "run")


def test_one_steps_loss_is_the_objectives_plus_the_penalty_of_the_encoders_features() -> None:
    changes: dict[str, Any] = {"train__local_steps": 1, "objective": {"name": "simsiam"}}
    config = tiny("feddecorr", method__weight=0.3, **changes)
    _, metrics = trained(config)
    _, alone = trained(tiny("fedavg", **changes))
    worker = Worker(config, load_federation(config))
    client = worker.method.client(worker, 0, 1, "train", {})
    client.load(worker.initial("small_cnn_bn"))
    client.network.train()
    rows = next(client.batches(len(client.indices)))
    views = client.views(client.pixels()[rows], client.generator("views"), 2)
    with torch.no_grad():
        terms = [reference.decorrelation(client.network.represent(view).double()) for view in views]
    assert metrics["loss"] == pytest.approx(alone["loss"] + 0.3 * sum(terms) / 2, rel=1e-4)


@pytest.mark.parametrize("objective", ["simclr", "byol", "autoencoder"])
def test_weight_zero_is_fedavg_bit_for_bit(objective: str) -> None:
    changes: dict[str, Any] = {"objective": {"name": objective}, "train__local_steps": 3}
    plain = trained(tiny("fedavg", **changes))[0]
    zero = [{"name": "feddecorr", "weight": 0}]
    np.testing.assert_array_equal(trained(tiny("feddecorr", method__weight=0, **changes))[0], plain)
    np.testing.assert_array_equal(trained(tiny("fedavg", plugins=zero, **changes))[0], plain)
    some = trained(tiny("feddecorr", method__weight=0.1, **changes))[0]
    assert np.abs(some - plain).max() > 1e-4
    as_plugin = trained(tiny("fedavg", plugins=[{"name": "feddecorr", "weight": 0.1}], **changes))[0]
    np.testing.assert_array_equal(as_plugin, some)


@pytest.mark.parametrize("method", ["fedsimclr", "fedx", "fedu2", "orchestra", "fedca"])
def test_only_the_views_features_are_penalised(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedX also encodes random other images, FedU2 and Orchestra a turned third view, FedCA public images."""
    changes: dict[str, Any] = {"train__local_steps": 2, "participation__fraction": 1.0}
    if method == "fedca":
        changes["method__alignment_batch"] = 20  # not a multiple of the batch
    config = tiny(method, plugins=[{"name": "feddecorr", "weight": 0.3}], **changes)
    seen: list[Tensor] = []

    def watched(x: Tensor, *, batch_free: bool = False) -> Tensor:
        seen.append(x)
        return decorrelation(x, batch_free=batch_free)

    monkeypatch.setattr(feddecorr, "decorrelation", watched)
    server, cohort = started(config)
    before = server.weights
    cohort.begin_round(1, cohort.federation.clients)
    server.round(1, cohort)
    assert len(seen) == 2 * 2 * len(cohort.clients)  # two views, two steps
    member = client(worker(config), cohort.clients[0])
    member.load(before)
    member.network.train()
    rows = next(member.batches(len(member.indices)))
    views = member.views(member.pixels()[rows], member.generator("views"), 2)
    with torch.no_grad():
        h = member.network.encoder(torch.cat(views))  # all of them go through in one pass
    for v in range(2):
        expected = torch.stack([h[v * len(rows) + i] for i in range(len(rows))])
        torch.testing.assert_close(seen[v].detach(), expected)


@pytest.mark.parametrize("method", ["fedx", "fedu2", "orchestra", "fedca"])
def test_one_steps_loss_is_the_methods_plus_the_penalty_of_the_views(method: str) -> None:
    changes: dict[str, Any] = {"train__local_steps": 1, "participation__fraction": 1.0}
    losses = []
    for plugins in ([], [{"name": "feddecorr", "weight": 0.3}]):
        config = tiny(method, plugins=plugins, **changes)
        server, cohort = started(config)
        before = server.weights
        cohort.begin_round(1, cohort.federation.clients)
        server.round(1, cohort)
        losses.append(cohort.metrics[cohort.clients[0]]["loss"])
    member = client(worker(config), cohort.clients[0])
    member.load(before)
    member.network.train()
    rows = next(member.batches(len(member.indices)))
    views = member.views(member.pixels()[rows], member.generator("views"), 2)
    with torch.no_grad():
        h = member.network.encoder(torch.cat(views)).double()
    terms = [reference.decorrelation(h[v * len(rows) : (v + 1) * len(rows)]) for v in range(2)]
    assert losses[1] == pytest.approx(losses[0] + 0.3 * sum(terms) / 2, rel=1e-4)


def test_two_rows_are_refused() -> None:
    with pytest.raises(UserError, match=r"train\.batch_size: found 2; feddecorr needs at least 3"):
        tiny("feddecorr", train__batch_size=2)
