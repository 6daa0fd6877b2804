"""FedU and FedEMA: what a client starts its second round from, by hand; d = 0 is FedBYOL; misreadings differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights, named, unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.methods.parts.divergence import check_federation, convolutions, layer_divergence, model_divergence
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.simulation.worker import Worker
from rayfed_ssl.testing.tiny import tiny_run
from tests.tiny import encoders, run_locally, tiny

FAST: dict[str, Any] = {"train__local_steps": 2, "data__limit": 120}


class Twice:
    """A client's first two rounds, the second from other global weights; what its training started from each time."""

    def __init__(self, config: RunConfig, monkeypatch: pytest.MonkeyPatch, rounds: tuple[int, int] = (1, 2)) -> None:
        self.starts: list[tuple[Weights, Weights]] = []
        fit = EncoderClient.fit

        def watched(client: EncoderClient[Any], *args: Any, **kwargs: Any) -> None:
            assert client.target is not None
            parts = [p for p in (client.target.encoder, client.target.projector) if p is not None]
            self.starts.append((client.weights, _packed(*parts)))
            fit(client, *args, **kwargs)

        monkeypatch.setattr(EncoderClient, "fit", watched)
        worker = Worker(config, load_federation(config))
        self.network = worker.network("small_cnn_bn")
        first = worker.initial("small_cnn_bn")
        noise = np.random.default_rng(0).normal(scale=0.05, size=first.vector.size)
        self.received = first.with_vector((first.vector + np.abs(noise)).astype(np.float32))
        (_, self.first), (self.outcome, self.second) = self._rounds(worker, first, rounds)

    def _rounds(self, worker: Worker, first: Weights, rounds: tuple[int, int]) -> list[Any]:
        one = worker.execute("train", 1, rounds[0], {"weights": first}, None)
        return [one, worker.execute("train", 1, rounds[1], {"weights": self.received}, one[1])]

    def values(self, weights: Weights) -> dict[str, np.ndarray]:
        return named(weights, self.network)

    @property
    def parameters(self) -> set[str]:
        return {name for name, _ in self.network.named_parameters()}

    def expected(self, distance: str) -> float:
        """d_k of the second round, from what was seen."""
        before, own, received = (self.values(w) for w in (self.starts[0][0], self.first["model"], self.received))
        names = [f"encoder.{name}" for name in convolutions(self.network.encoder)]
        if distance == "easyfl":
            return layer_divergence({n: before[n] for n in names}, {n: own[n] for n in names})
        names = [n for n in self.parameters if n.startswith(("encoder.", "projector."))]
        return model_divergence({n: own[n] for n in names}, {n: received[n] for n in names})


def _packed(*modules: torch.nn.Module) -> Weights:
    from rayfed_ssl.base.weights import pack

    return pack(*modules)


@pytest.mark.parametrize("distance", ["easyfl", "paper"])
@pytest.mark.parametrize("below", [True, False])
def test_fedu_takes_the_encoder_always_and_the_predictor_below_the_threshold(
    distance: str, below: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = 1e6 if below else 0.0
    seen = Twice(tiny("fedu", method__divergence=distance, method__threshold=threshold, **FAST), monkeypatch)
    assert seen.outcome.metrics["divergence"] == pytest.approx(seen.expected(distance), rel=1e-5)
    assert seen.outcome.metrics["takes_predictor"] == float(below)
    start, received, own = (seen.values(w) for w in (seen.starts[1][0], seen.received, seen.first["model"]))
    for name, value in start.items():
        source = own if name.startswith("predictor.") and not below else received
        np.testing.assert_array_equal(value, source[name], err_msg=name)
    assert any(not np.array_equal(own[n], received[n]) for n in own if n.startswith("predictor."))
    np.testing.assert_array_equal(seen.starts[1][1].vector, seen.first["target"].vector)  # target stays


def test_fedu_at_the_threshold_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drift = Twice(tiny("fedu", **FAST), monkeypatch).first["drift"]
    assert drift > 0
    for threshold, taken in ((drift, 0.0), (float(np.nextafter(drift, 9)), 1.0)):
        seen = Twice(tiny("fedu", method__threshold=threshold, **FAST), monkeypatch)
        assert seen.outcome.metrics["takes_predictor"] == taken


@pytest.mark.parametrize("distance", ["easyfl", "paper"])
@pytest.mark.parametrize("tau", [0.7, 0.3])
def test_fedema_mixes_parameters_and_chooses_statistics(
    distance: str, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first mixture has mu = tau; the predictor's statistics are its own where that is more than a half."""
    config = tiny("fedema", method__tau=tau, method__divergence=distance, method__selective=False, **FAST)
    seen = Twice(config, monkeypatch)
    assert seen.outcome.metrics["divergence"] == pytest.approx(seen.expected(distance), rel=1e-5)
    assert seen.outcome.metrics["kept_share"] == pytest.approx(tau)
    assert seen.second["scaler"] == pytest.approx(tau / seen.expected(distance), rel=1e-5)
    start, received, own = (seen.values(w) for w in (seen.starts[1][0], seen.received, seen.first["model"]))
    for name, value in start.items():
        if name in seen.parameters:
            wanted = tau * own[name] + (1 - tau) * received[name]
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            source = own if name.startswith("predictor.") and tau > 0.5 else received
            np.testing.assert_array_equal(value, source[name], err_msg=name)
    assert any(n.startswith("predictor.") for n in start if n not in seen.parameters)
    weight = "encoder." + convolutions(seen.network.encoder)[0]
    turned = (1 - tau) * own[weight] + tau * received[weight]  # FedSC's reading
    assert np.abs(start[weight] - turned).max() > 1e-3
    np.testing.assert_array_equal(seen.starts[1][1].vector, seen.first["target"].vector)


def test_the_scaler_is_set_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("fedema", method__selective=False, **FAST)
    seen = Twice(config, monkeypatch)
    worker = Worker(config, load_federation(config))
    outcome, third = worker.execute("train", 1, 3, {"weights": seen.received}, seen.second)
    assert third["scaler"] == seen.second["scaler"]
    wanted = min(1.0, seen.second["scaler"] * seen.second["drift"])
    assert outcome.metrics["kept_share"] == pytest.approx(wanted)
    assert seen.second["drift"] != seen.first["drift"]


def test_who_sat_out_a_round_takes_everything_if_selective(monkeypatch: pytest.MonkeyPatch) -> None:
    for selective, rounds, everything in ((True, (1, 3), True), (True, (1, 2), False), (False, (1, 3), False)):
        seen = Twice(tiny("fedema", method__selective=selective, **FAST), monkeypatch, rounds)
        assert np.array_equal(seen.starts[1][0].vector, seen.received.vector) is everything
        fresh = seen.network
        unpack(seen.received, fresh)
        assert fresh.projector is not None
        copied = _packed(fresh.encoder, fresh.projector)
        assert np.array_equal(seen.starts[1][1].vector, copied.vector) is everything


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedema", "fedu"])
def test_without_divergence_it_is_fedbyol_bit_for_bit(method: str, tmp_path: Path) -> None:
    none = {"fedema": {"method.autoscale": False, "method.scaler": 0}, "fedu": {"method.threshold": 1e9}}[method]
    fast = {"train.local_steps": 2, "data.limit": 120, "participation.fraction": 0.75}
    for name, changes in (("fedbyol", {}), (method, none)):
        run_locally(tiny_run(name, {**fast, **changes}), tmp_path / name)
    assert encoders(tmp_path / method) == encoders(tmp_path / "fedbyol")
    run_locally(tiny_run(method, {**fast, "method.divergence": "paper"}), tmp_path / "paper")
    if method == "fedema":
        assert encoders(tmp_path / "paper") != encoders(tmp_path / "fedbyol")


@pytest.mark.parametrize("method", ["fedu", "fedema"])
def test_fedfoa_adds_its_term(method: str) -> None:
    """The plug-in's penalty changes a later round, where there are peers to read."""
    found = []
    for weight in (0.0, 0.5):
        plugin = {"name": "fedfoa", "weight": weight, "warmup": 0}
        config = tiny(method, plugins=[plugin], objective={"name": "byol"}, **FAST)
        worker = Worker(config, load_federation(config))
        message = {"weights": worker.initial("small_cnn_bn")}
        n = config.projection_dim
        packed = (10 * np.eye(n, dtype=np.float32))[np.triu_indices(n)]
        outcome, state = worker.execute("train", 1, 2, {**message, "fedfoa.peers": [packed]}, None)
        assert outcome.metrics["admitted"] == 1
        assert outcome.reply["fedfoa.correlation"].shape == packed.shape
        assert {"model", "target", "drift"} <= set(state)
        found.append(outcome.reply["weights"].vector)
    assert np.abs(found[0] - found[1]).max() > 1e-4


@pytest.mark.parametrize("method", ["fedu", "fedema"])
def test_what_they_need(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"objective\.name: found 'simclr'; {method} allows byol, simsiam"):
        tiny(method, objective={"name": "simclr"})
    with pytest.raises(ConfigError, match=r"objective\.target: found 'averaged'"):
        tiny(method, objective={"name": "byol", "target": "averaged"})
    for key, value in {"fedu": {"threshold": -1}, "fedema": {"tau": 1.1}}[method].items():
        with pytest.raises(ConfigError, match=rf"method\.{key}: found {value}"):
            tiny_run(method, {f"method.{key}": value})


FLAT = """
from torch import nn

from rayfed_ssl.models import Family
from rayfed_ssl.models.base import Encoder


class Flat(Encoder):
    dim = 6

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(192, 6)

    def forward(self, images):
        return self.layer(images.flatten(1))


ENCODERS = {"flat": Family(lambda config, image_size, channels: Flat(), minimum=8)}
"""


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedu", "fedema"])
@pytest.mark.parametrize(("encoder", "found"), [("flat", "0 of 1"), ("timm/test_vit", r"1 of \d\d")])
def test_an_encoder_of_few_convolutions_needs_the_papers_divergence(
    method: str, encoder: str, found: str, tmp_path: Path
) -> None:
    if encoder.startswith("timm/"):
        pytest.importorskip("timm")
    (tmp_path / "flat.py").write_text(FLAT)
    changes = {"imports": ["flat.py"], "clients.encoders": encoder, "data.channels": 3, "train.rounds": 2}
    small = {**changes, "model.width": 1.0, "data.limit": 80, "train.local_steps": 1, "evaluation.protocols": []}
    with pytest.raises(
        UserError, match=rf"^method\.divergence: found 'easyfl'.* {found} weights .*=paper\)$"
    ) as refusal:
        run_locally(tiny_run(method, small, tmp_path), tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()
    run_locally(tiny_run(method, {**small, "method.divergence": "paper"}, tmp_path), tmp_path / "run")


@pytest.mark.parametrize(
    "encoder", ["small_cnn", "resnet18", "vgg9", "alexnet", "cnn5", "fedlinked_cnn", "fixup_resnet20"]
)
def test_our_encoders_go_with_either_divergence(encoder: str) -> None:
    config = tiny_run("fedema", {"clients.encoders": encoder, "data.image_size": 32, "data.limit": 80})
    check_federation(config, load_federation(config))
