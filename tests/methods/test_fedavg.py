"""FedAvg: a step of BYOL by hand, and averaged momentum targets, the third of its conventions, against a loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from rayfed_ssl.testing.tiny import tiny_run
from tests import reference
from tests.tiny import OWN, booked, encoders, run_locally, tiny


@pytest.mark.parametrize("method", ["fedbyol", "fedprox"])
def test_targets_travel_and_are_averaged_like_the_weights(method: str) -> None:
    config = tiny(method, objective={"name": "byol", "target": "averaged"})
    federation = load_federation(config)
    initial = InitialWeights(config, federation)
    cohort = LocalCohort(config, federation, Ledger())
    server = METHODS[method].server(Setup(config, federation, initial))
    server.start(cohort)
    model: dict[str, Weights | None] = {"weights": initial(config.clients.encoder(0)), "target": None}
    for t in (1, 2):
        cohort.begin_round(t, federation.clients)
        server.round(t, cohort)
        cohort.end_round()
        replies, context = [], Worker(config, federation)
        for client in federation.clients:
            outcome, state = context.execute("train", client, t, model, {})
            assert not state  # nothing stays with a client
            replies.append(outcome.reply)
        for name in ("weights", "target"):
            mean = sum(
                q * reply[name].vector.astype(np.float64) for q, reply in zip(federation.shares, replies, strict=True)
            )
            np.testing.assert_allclose(server.state[name].vector, mean, atol=1e-6)
        model = {name: server.state[name] for name in ("weights", "target")}
    assert not np.array_equal(model["weights"].vector[:100], model["target"].vector[:100])  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["fedsimclr", "fedbyol", "fedavg_sc", "fedavg_supervised", "fedprox"])
def test_a_client_starts_from_the_weights_that_came_down(method: str) -> None:
    config = tiny(method, train__optimizer={"lr": 1e-12, "momentum": 0})  # it stays where it starts
    federation = load_federation(config)
    weights = InitialWeights(config, federation)("small_cnn_bn")
    vector, draw = weights.vector.copy(), np.random.default_rng(3)
    vector[: weights.parameters] += 0.05 * draw.standard_normal(weights.parameters).astype(np.float32)
    given = weights.with_vector(vector)
    found = Worker(config, federation).execute("train", 1, 2, {"weights": given}, None)[0].reply["weights"]
    np.testing.assert_allclose(found.vector[: given.parameters], vector[: given.parameters], atol=1e-7)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_clients_count_by_their_images_or_alike(weights: str) -> None:
    config = tiny("fedsimclr", method__weights=weights)
    federation = load_federation(config)
    initial = InitialWeights(config, federation)
    cohort, worker = LocalCohort(config, federation, Ledger()), Worker(config, federation)
    server = METHODS["fedsimclr"].server(Setup(config, federation, initial))
    server.start(cohort)
    cohort.begin_round(1, federation.clients)
    server.round(1, cohort)
    message = {"weights": initial("small_cnn_bn")}
    vectors = [worker.execute("train", c, 1, message, None)[0].reply["weights"].vector for c in federation.clients]
    means = {"size": sum(q * v.astype(np.float64) for q, v in zip(federation.shares, vectors, strict=True)),
             "uniform": np.mean(vectors, axis=0, dtype=np.float64)}  # fmt: skip
    np.testing.assert_allclose(server.state["weights"].vector, means[weights], atol=1e-6)
    assert np.abs(means["size"] - means["uniform"]).max() > 1e-3


def test_the_target_is_in_training_mode_and_follows_after_the_step() -> None:
    """One step by hand: the loss has BatchNorm's batch statistics in both networks, the target's running statistics
    move by its own two forwards, its parameters by the decay.
    """
    config = tiny("fedbyol", objective={"name": "byol", "decay": 0.75}, train__local_steps=1)
    federation = load_federation(config)
    worker, initial = Worker(config, federation), InitialWeights(config, federation)
    weights = initial("small_cnn_bn")
    outcome, state = worker.execute("train", 1, 1, {"weights": weights}, None)

    client = worker.method.client(worker, 1, 1, "train", {})
    rows = next(client.batches(len(client.indices)))
    views = client.views(client.pixels()[rows], client.generator("views"), 2)
    online = initial.network("small_cnn_bn").train()
    target = initial.network("small_cnn_bn", without={"predictor"}).train()
    with torch.no_grad():
        z = [target.project(view) for view in views]
        p = [online.predict(online.project(view)) for view in views]
    assert outcome.metrics["loss"] == pytest.approx(reference.byol(*p, *z), rel=1e-5)
    unpack(outcome.reply["weights"], online)
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            parameter.copy_(0.75 * parameter + 0.25 * online.get_parameter(name))
    kept = initial.network("small_cnn_bn", without={"predictor"})
    unpack(state["target"], kept.encoder, kept.projector)  # type: ignore[arg-type]
    for (name, found), expected in zip(kept.state_dict().items(), target.state_dict().values(), strict=True):
        if found.is_floating_point():
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.long
def test_the_three_conventions_differ_and_only_one_sends_the_target(tmp_path: Path) -> None:
    found, sent = {}, {}
    for target in ("local", "reset", "averaged"):
        config = tiny("fedbyol", objective={"name": "byol", "target": target})
        run_locally(config, tmp_path / target)
        found[target] = tuple(encoders(tmp_path / target).values())
        sent[target] = [row for row in booked(tmp_path / target) if "target" in row]
    assert len(set(found.values())) == 3
    assert [bool(sent[target]) for target in ("local", "reset", "averaged")] == [False, False, True]
    directions = {(row[0], row[2]) for row in sent["averaged"]}
    assert directions == {(1, "up"), (2, "down"), (2, "up"), (3, "down"), (3, "up")}


@pytest.mark.parametrize("method", ["local", "centralized", "fedfoa"])
def test_targets_are_averaged_where_weights_are(method: str) -> None:
    changes: dict[str, Any] = {"objective": {"name": "byol", "target": "averaged"}}
    with pytest.raises(ConfigError, match=rf"objective\.target: found 'averaged'; {method} averages no weights"):
        tiny(method, **changes)


NAMED = {"fedsimclr": "simclr", "fedbyol": "byol", "fedmoco": "moco", "fedsimsiam": "simsiam", "fedavg_sc": "spectral",
         "fedae": "autoencoder", "fedmae": "mae", "fedpr": "rotation"}  # fmt: skip


@pytest.mark.parametrize("method", NAMED)
def test_a_name_is_fedavg_over_its_objective(method: str, tmp_path: Path) -> None:
    """Bit for bit, two rounds long; and the name takes no other objective."""
    run_locally(tiny(method, data__limit=100, train__rounds=2), tmp_path / "named")
    generic = tiny("fedavg", data__limit=100, train__rounds=2, objective__name=NAMED[method], **OWN.get(method, {}))
    run_locally(generic, tmp_path / "generic")
    assert encoders(tmp_path / "named") == encoders(tmp_path / "generic")
    assert booked(tmp_path / "named") == booked(tmp_path / "generic")
    with pytest.raises(ConfigError, match=rf"objective\.name: found 'barlow'; {method} allows {NAMED[method]}"):
        tiny_run(method, {"objective.name": "barlow"})


@pytest.mark.parametrize("objective", ["barlow", "vicreg", "swav", "align_uniform"])
def test_further_objectives_train(objective: str) -> None:
    config = tiny("fedavg", objective={"name": objective}, model__prototypes=12, data__limit=120, train__local_steps=2)
    worker = Worker(config, load_federation(config))
    start = worker.initial("small_cnn_bn")
    outcome, state = worker.execute("train", 0, 1, {"weights": start}, None)
    moved = np.abs(outcome.reply["weights"].vector - start.vector)[: start.parameters]
    assert (moved > 0).mean() > 0.5
    assert not state


def test_labels_are_not_for_fedavg() -> None:
    with pytest.raises(ConfigError, match=r"objective\.name: found 'supervised'; fedavg allows simclr, "):
        tiny("fedavg", objective={"name": "supervised"})


def test_fedmocos_key_encoder_starts_anew_and_nothing_stays() -> None:
    """Round 2 of a client that was there in round 1 is that of one that was not."""
    config = tiny("fedmoco", data__limit=120)
    worker = Worker(config, load_federation(config))
    message = {"weights": worker.initial("small_cnn_bn")}
    _, state = worker.execute("train", 0, 1, message, None)
    assert not state
    veteran, newcomer = (worker.execute("train", 0, 2, message, s)[0].reply["weights"].vector for s in (state, None))
    np.testing.assert_array_equal(veteran, newcomer)
