"""FedProx: the printed number, FedAvg at mu = 0, and clients that stay nearer the larger mu is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.methods.fedprox import proximal
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests.methods.rounds import config_of


def test_the_penalty_is_half_mu_times_the_square() -> None:
    parameters: list[Tensor] = [torch.tensor([1.0], requires_grad=True), torch.tensor([[2.0]], requires_grad=True)]
    loss = proximal(parameters, [torch.zeros(1), torch.zeros(1, 1)], 0.1)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(0.25)
    assert [float(p.grad) for p in parameters if p.grad is not None] == pytest.approx([0.1, 0.2])
    # FLESD's mu ||.||^2 is another penalty: .5 and (.2, .4), which is this one at twice the mu.
    assert proximal(parameters, [torch.zeros(1), torch.zeros(1, 1)], 0.2).item() == pytest.approx(0.5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two rounds of FedAvg and of FedProx without and with a penalty: name -> run folder."""
    root = tmp_path_factory.mktemp("fedprox")
    configs = {
        "fedavg": config_of("fedsimclr"),
        "zero": config_of("fedprox", method__mu=0),
        "some": config_of("fedprox", method__mu=0.1),
    }
    for name, config in configs.items():
        loop.run(config, root / name, LocalCohort)
    return {name: root / name for name in configs}


@pytest.mark.long
def test_without_a_penalty_it_is_fedavg_bit_for_bit(runs: dict[str, Path]) -> None:
    found = {name: (run / "encoder" / "global.safetensors").read_bytes() for name, run in runs.items()}
    assert found["zero"] == found["fedavg"]
    assert found["some"] != found["fedavg"]


@pytest.mark.long
def test_with_one_local_step_it_is_fedavg_too_and_says_so(tmp_path: Path) -> None:
    """Clients of 30 images: one batch of 30, where the penalty is zero and flat."""
    one = {"train.batch_size": 30, "method.mu": 10.0}
    found, said = [], []
    for name, changes in {"fedsimclr": {"train.batch_size": 30}, "fedprox": one}.items():
        loop.run(config_of(name, **changes), tmp_path / name, LocalCohort)
        found.append((tmp_path / name / "encoder/global.safetensors").read_bytes())
        said.append(json.loads((tmp_path / name / "environment.json").read_text()).get("notes", []))
    assert found[0] == found[1]
    assert [note for note in said[1] if note not in said[0]] == [
        "every client takes one local step a round, at which fedprox's penalty has no gradient: this run is FedAvg's, "
        "number for number; a smaller train.batch_size or more train.local_epochs take more steps"
    ]
    for silent in (config_of("fedprox", method__mu=0, train__batch_size=30), config_of("fedprox")):
        assert rehearse(silent, load_federation(silent))[0].server.notes() == []


def test_without_a_penalty_a_byol_client_is_fedavgs_target_included() -> None:
    found = []
    for config in (config_of("fedbyol"), config_of("fedprox", objective={"name": "byol"}, method__mu=0)):
        context = Worker(config, load_federation(config))
        outcome, state = context.execute("train", 1, 1, {"weights": context.initial("small_cnn_bn")}, None)
        found.append((outcome.reply["weights"].vector, state["target"].vector))
    for fedavg, fedprox in zip(*found, strict=True):
        np.testing.assert_array_equal(fedavg, fedprox)


def test_bytes_are_fedavgs(runs: dict[str, Path]) -> None:
    tables = {name: pq.read_table(run / "communication.parquet").to_pylist() for name, run in runs.items()}
    booked = {name: sorted(tuple(row.values()) for row in rows) for name, rows in tables.items()}
    assert booked["some"] == booked["fedavg"]
    assert booked["some"]


def test_a_larger_mu_keeps_a_client_nearer_the_global_model() -> None:
    drifts = []
    for mu in (0.0, 0.3, 3.0):
        config = config_of("fedprox", method__mu=mu, train__local_epochs=4, train__optimizer__momentum=0)
        context = Worker(config, load_federation(config))
        start = context.initial("small_cnn_bn")
        reply = context.execute("train", 0, 1, {"weights": start}, None)[0].reply["weights"]
        moved = (reply.vector - start.vector)[: start.parameters]
        drifts.append(float(np.linalg.norm(moved)))
    assert drifts[0] > drifts[1] > drifts[2] > 0


def test_the_first_step_is_fedavgs_whatever_the_penalty() -> None:
    """At theta = theta_t the penalty and its gradient are zero; from the second step on they are not."""

    def after(steps: int, mu: float) -> bytes:
        config = config_of("fedprox", method__mu=mu, train__local_steps=steps)
        context = Worker(config, load_federation(config))
        message = {"weights": context.initial("small_cnn_bn")}
        return bytes(context.execute("train", 0, 1, message, None)[0].reply["weights"].vector.tobytes())

    assert after(1, 0.0) == after(1, 5.0)
    assert after(2, 0.0) != after(2, 5.0)


@pytest.mark.parametrize("objective", ["simclr", "byol", "simsiam", "spectral", "autoencoder", "rotation"])
def test_every_objective_trains(objective: str) -> None:
    config = config_of("fedprox", objective={"name": objective}, method__mu=0.1)
    context = Worker(config, load_federation(config))
    outcome, _ = context.execute("train", 0, 1, {"weights": context.initial("small_cnn_bn")}, None)
    assert np.isfinite(outcome.metrics["loss"])


def test_a_negative_mu_is_refused() -> None:
    with pytest.raises(UserError, match=r"method.mu"):
        config_of("fedprox", method__mu=-1)
