"""L-DAWA: angles tensor by tensor, by hand and against misreadings."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.methods.ldawa import LayerwiseSum, angular_divergence
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import encoders, run_locally, tiny

G = {"a": np.array([1.0, 0]), "b": np.array([2.0])}
X = [{"a": np.array([1.0, 0]), "b": np.array([2.0])}, {"a": np.array([0.6, 0.8]), "b": np.array([-2.0])}]


def layerwise_mean(
    clients: Sequence[Mapping[str, np.ndarray]],
    start: Mapping[str, np.ndarray],
    shares: Sequence[float] | None = None,
    averaged: Collection[str] = (),
    *,
    normalize: bool = False,
) -> dict[str, np.ndarray]:
    """What the server's sum makes of clients one after the other."""
    total = LayerwiseSum(start, averaged)
    for k, client in enumerate(clients):
        total.add(client, *(() if shares is None else (shares[k],)))
    return total.mean(normalize=normalize)


def test_by_hand() -> None:
    assert [angular_divergence(x["a"], G["a"]) for x in X] == pytest.approx([1, 0.6])
    assert [angular_divergence(x["b"], G["b"]) for x in X] == [1, -1]
    new = layerwise_mean(X, G)
    np.testing.assert_allclose(new["a"], [0.68, 0.24], atol=1e-12)
    np.testing.assert_allclose(new["b"], [2.0], atol=1e-12)  # the opposite tensor is turned round


def test_misreadings_differ() -> None:
    only = [{"a": x["a"]} for x in X]
    start = {"a": G["a"]}
    np.testing.assert_allclose(layerwise_mean(only, start, averaged={"a"})["a"], [0.8, 0.4], atol=1e-12)  # FedAvg
    np.testing.assert_allclose(layerwise_mean(only, start, normalize=True)["a"], [0.85, 0.3], atol=1e-12)
    whole = [{"ab": np.concatenate([x["a"], x["b"]])} for x in X]
    together = layerwise_mean(whole, {"ab": np.concatenate([G["a"], G["b"]])})["ab"]  # one angle for both
    np.testing.assert_allclose(together, [0.296, -0.272, 1.68], atol=1e-12)


def test_clients_equal_to_the_start_change_nothing() -> None:
    draws = np.random.default_rng(0)
    start = {"w": draws.normal(size=(3, 4)), "zero": np.zeros(5), "count": np.array(7.0)}
    new = layerwise_mean([start] * 3, start)
    for name, value in start.items():
        np.testing.assert_allclose(new[name], value, rtol=1e-12)


def test_properties() -> None:
    draws = np.random.default_rng(1)
    start = {"w": draws.normal(size=(3, 4))}
    clients = [{"w": draws.normal(size=(3, 4))} for _ in range(3)]
    new = layerwise_mean(clients, start)["w"]
    np.testing.assert_allclose(layerwise_mean(clients, {"w": 7 * start["w"]})["w"], new)  # g only has a direction
    np.testing.assert_allclose(layerwise_mean([{"w": 2 * c["w"]} for c in clients], start)["w"], 2 * new)
    np.testing.assert_allclose(layerwise_mean(clients[::-1], start)["w"], new)


def test_a_start_of_zeros_has_no_direction() -> None:
    clients = [{"bias": np.array([1.0, 2])}, {"bias": np.array([3.0, -2])}]
    new = layerwise_mean(clients, {"bias": np.zeros(2)})
    np.testing.assert_allclose(new["bias"], [2, 0])
    assert angular_divergence(np.zeros(2), np.ones(2)) == 1


def test_statistics_and_single_numbers_are_plain_means_by_share() -> None:
    start = {"mean": np.array([1.0, 0]), "count": np.array(1.0)}
    clients = [
        {"mean": np.array([1.0, 0]), "count": np.array(2.0)},
        {"mean": np.array([0.0, 1]), "count": np.array(6.0)},
    ]
    new = layerwise_mean(clients, start, shares=[0.75, 0.25], averaged={"mean"})
    np.testing.assert_allclose(new["mean"], [0.75, 0.25])
    np.testing.assert_allclose(new["count"], 3.0)
    assert new["count"].shape == ()


def test_float32_stays_and_opposite_tensors_are_normalised_too() -> None:
    start = {"a": np.array([1.0, 0], np.float32)}
    assert layerwise_mean([start], start)["a"].dtype == np.float32
    assert angular_divergence(np.float32([0.1, 0.7, 0.3]), np.float32([0.1, 0.7, 0.3])) <= 1
    np.testing.assert_array_equal(layerwise_mean([start, {"a": -start["a"]}], start, normalize=True)["a"], start["a"])
    across = {"a": np.array([0.0, 1], np.float32)}
    np.testing.assert_array_equal(layerwise_mean([across], start, normalize=True)["a"], [0, 0])


def test_sums_client_by_client_are_the_means_of_all() -> None:
    draws = np.random.default_rng(2)
    start = {"w": draws.normal(size=(3, 4)), "mean": draws.normal(size=4)}
    clients = [{name: draws.normal(size=value.shape) for name, value in start.items()} for _ in range(3)]
    shares = np.array([0.2, 0.3, 0.5])
    total = LayerwiseSum(start, {"mean"})
    for share, client in zip(shares, clients, strict=True):
        total.add(client, share)
    cosines = [np.vdot(c["w"], start["w"]) / np.linalg.norm(c["w"]) / np.linalg.norm(start["w"]) for c in clients]
    by_hand = sum(v * c["w"] for v, c in zip(cosines, clients, strict=True)) / 3
    np.testing.assert_allclose(total.mean()["w"], by_hand)
    np.testing.assert_allclose(total.mean()["mean"], sum(q * c["mean"] for q, c in zip(shares, clients, strict=True)))


FAST: dict[str, Any] = {"data.limit": 120, "train.local_steps": 2}


class Round:
    """One round of L-DAWA: the global model before and after, and every client's."""

    def __init__(self, **changes: object) -> None:
        config = tiny("ldawa", **{key.replace(".", "__"): value for key, value in {**FAST, **changes}.items()})
        federation = load_federation(config)
        initial = InitialWeights(config, federation)
        cohort, worker = LocalCohort(config, federation, Ledger()), Worker(config, federation)
        self.network = initial.network("small_cnn_bn")
        with torch.no_grad():  # biases and statistics that are not 0
            for tensor in (*self.network.parameters(), *self.network.buffers()):
                if tensor.is_floating_point():
                    tensor.add_(0.1)
        self.start = pack(self.network)
        server = METHODS["ldawa"].server(Setup(config, federation, initial))
        server.start(cohort)
        server.weights = self.start
        cohort.begin_round(1, federation.clients)
        server.round(1, cohort)
        self.shares, self.metrics = federation.shares, server.metrics
        message = {"weights": self.start}
        self.replies = [worker.execute("train", c, 1, message, None)[0].reply["weights"] for c in federation.clients]
        self.new = server.weights

    def tensors(self, weights: Weights) -> dict[str, torch.Tensor]:
        unpack(weights, self.network)
        tensors = (*self.network.named_parameters(), *self.network.named_buffers())
        return {name: t.detach().double().clone() for name, t in tensors if t.is_floating_point()}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("as_code", [False, True])
def test_the_servers_step_by_a_loop(normalize: bool, as_code: bool) -> None:
    settings = {"method.warmup": 0, "method.normalize": normalize, "method.as_code": as_code}
    run = Round(**settings)
    start, new = run.tensors(run.start), run.tensors(run.new)
    clients = [run.tensors(reply) for reply in run.replies]
    parameters = {name for name, _ in run.network.named_parameters()}
    cosines = []
    for name, old in start.items():
        xs = [client[name] for client in clients]
        if name in parameters or as_code:
            v = torch.stack([F.cosine_similarity(x.flatten(), old.flatten(), dim=0) for x in xs])
            factors = v / (v.abs().sum() if normalize else len(xs))
            cosines.append(v.mean().item())
        else:
            factors = torch.from_numpy(np.array(run.shares))
        wanted = sum(f * x for f, x in zip(factors, xs, strict=True))
        torch.testing.assert_close(new[name], wanted, rtol=1e-5, atol=1e-6, msg=name)
    assert run.metrics["ldawa/cosine"] == pytest.approx(np.mean(cosines), rel=1e-5)
    fedavg = sum(q * reply.vector.astype(np.float64) for q, reply in zip(run.shares, run.replies, strict=True))
    assert np.abs(run.new.vector - fedavg)[: run.new.parameters].max() > 1e-4


@pytest.mark.long
def test_warm_up_is_fedavg(tmp_path: Path) -> None:
    """Bit for bit while it lasts, and not after it."""
    common = {"data__limit": 120, "train__local_steps": 2, "train__rounds": 2, "evaluation__protocols": []}
    found = {}
    for name, method, own in (("avg", "fedavg", {}), ("warm", "ldawa", {"method__warmup": 2}),
                              ("not", "ldawa", {"method__warmup": 1})):  # fmt: skip
        run_locally(tiny(method, **common, **own), tmp_path / name)
        found[name] = encoders(tmp_path / name)
    assert found["warm"] == found["avg"]
    assert found["not"] != found["avg"]
    said = {name: json.loads((tmp_path / name / "environment.json").read_text()).get("notes", []) for name in found}
    assert [note for note in said["warm"] if note not in said["avg"]] == [
        "every round takes FedAvg's mean: found train.rounds=2 and method.warmup=2; for ldawa's own, a method.warmup "
        "of at most 1, or train.rounds of at least 3"
    ]
    assert said["not"] == said["avg"]
