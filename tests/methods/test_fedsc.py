"""FedSC's server against loops and the printed numbers; the round's conversation; DP-CalR from config to summary.

The losses' own numbers stand in tests/objectives/test_spectral.py, the accountant's in
tests/test_privacy.py. Shape legend: D projection, N clients.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated import client as client_module
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.messages import Mean, Reply
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods.fedsc import Config, Server, alpha_of, weighted_sum, without
from rayfed_ssl.methods.parts import privacy
from rayfed_ssl.objectives.spectral import correlation, spectral_loss
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.worker import Worker
from tests import reference
from tests.tiny import encoders, measured, run_locally, tiny

close = np.testing.assert_allclose
needs_accounting = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting (extra [privacy]) is not installed"
)


def matrices(count: int, d: int = 3) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(0)
    return {k: rng.normal(size=(d, d)).astype(np.float32) for k in range(count)}


# ------------------------------------------------------------------------------------------ the server's mathematics


def test_rest_equals_the_loop_over_the_others() -> None:
    bank, q = matrices(5), np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    del bank[3]  # never heard of
    total, everybody = weighted_sum(bank, q), sum(q[k] for k in bank)
    for j in bank:
        expected, weight = np.zeros((3, 3)), 0.0
        for k in bank:
            if k != j:
                expected, weight = expected + q[k] * bank[k].astype(np.float64), weight + q[k]
        close(without(total, bank[j], q[j], everybody), expected / weight, rtol=1e-6)
    known = sum(q[k] * bank[k].astype(np.float64) for k in bank) / everybody
    close(without(total, None, q[3], everybody), known, rtol=1e-6)


def test_printed_alphas_and_means() -> None:  # c = t - 1
    for c, expected in ((0, 1.0), (50, 0.8), (100, 0.6), (199, 0.204)):
        assert alpha_of(c + 1, 200, 0.2) == pytest.approx(expected, abs=1e-12)
    bank = {k: np.array([[value]], np.float32) for k, value in enumerate((1, 2, 4))}

    def rests(q: np.ndarray) -> list[float]:
        return [float(without(weighted_sum(bank, q), bank[j], q[j], q.sum())[0, 0]) for j in bank]

    exact, code = [2.8, 1.857143, 1.375], [3, 2.5, 1.5]
    close(rests(np.array([0.5, 0.3, 0.2])), exact, atol=5e-7)
    close(rests(np.ones(3)), code, atol=5e-7)  # rest: uniform
    close(rests(np.full(3, 1 / 3)), code, atol=5e-7)  # the same only for equal shares


def gradient_of_the_federation(by: Callable[[np.ndarray], np.ndarray]) -> torch.Tensor:
    """sum_j q_j grad L_j of the linear encoder above at alpha = q_j; ``by``: shares -> weights of R_{-j}."""
    w = torch.tensor([[1, 0.5], [0, 1]], dtype=torch.float64, requires_grad=True)
    shift = torch.tensor([0.5, 0], dtype=torch.float64)
    shards = ([[1.0, 0], [1, 1]], [[0.0, 1]], [[2.0, 1]])
    q = np.array([0.5, 0.25, 0.25])

    def views(x: torch.Tensor) -> torch.Tensor:
        pairs = [(x + a * shift, x + b * shift) for a, b in itertools.product((1, -1), repeat=2)]
        return torch.stack([torch.cat([pair[v] for pair in pairs]) for v in (0, 1)]) @ w.T

    z = [views(torch.tensor(x, dtype=torch.float64)) for x in shards]
    bank = {k: correlation(one).detach().numpy() for k, one in enumerate(z)}
    weights = by(q)
    total = weighted_sum(bank, weights)
    locals_ = [
        q[j] * spectral_loss(z[j], torch.tensor(without(total, bank[j], weights[j], weights.sum())), q[j]) for j in bank
    ]
    (local,) = torch.autograd.grad(torch.stack(locals_).sum(), w, retain_graph=True)
    (whole,) = torch.autograd.grad(spectral_loss(torch.cat(z, dim=1)), w)
    return (local - whole).abs().max()


def test_the_servers_rest_aligns_the_gradients_and_the_unweighted_one_does_not() -> None:  # eq. 6
    assert gradient_of_the_federation(lambda q: q) < 1e-6  # R_{-j} is sent in float32
    assert gradient_of_the_federation(np.ones_like) > 0.1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"method.alpha": "share"}, lambda t, q: q),
        ({}, lambda t, q: 1 - (1 - q) * (t - 1) / 3),
        ({"method.alpha_floor": 0.2}, lambda t, q: 1 - 0.8 * (t - 1) / 3),
    ],
)
def test_alpha_schedules(options: dict[str, Any], expected: Callable[[int, float], float]) -> None:
    server = scripted(**options)[0]
    for t, client in itertools.product((1, 2, 3), range(4)):
        assert server.alpha(t, client) == pytest.approx(expected(t, float(server.setup.shares[client])), rel=1e-12)


# ------------------------------------------------------------------------------------------ the round's conversation


class Script:
    """Clients that answer with constant matrices (100 t + client), and a record of what each was told."""

    def __init__(self, federation: Federation) -> None:
        self.shares, self.clients, self.t = federation.shares, federation.clients, 0
        self.told: dict[int, Mapping[str, Any]] = {}
        self.by: Any = None
        self.asked: list[int] = []
        self.silent: set[int] = set()

    def ask(self, operation: str, *, weights: Any) -> Iterator[Reply]:
        assert operation == "correlation"
        for client in self.clients:
            self.asked.append(client)
            if client not in self.silent:
                yield Reply(client, {"correlation": np.full((2, 2), 100 * self.t + client, np.float32)})

    def mean(self, operation: str, *, by: Any = None, weights: Any, each: Callable[[int], Mapping[str, Any]]) -> Mean:
        assert operation == "train"
        self.told, self.by = {client: each(client) for client in self.clients}, by
        return Mean({"weights": weights}, [])


def scripted(**options: Any) -> tuple[Server, Callable[..., Script]]:
    """A server of four clients, and a function that plays one round: (t, clients) -> what happened."""
    changes = {key.replace(".", "__"): value for key, value in options.items()}
    config = tiny("fedsc", participation__fraction=1.0, **changes)
    federation = load_federation(config)
    server = Server(Setup(config, federation, lambda name: None))  # type: ignore[arg-type, return-value]
    server.start(None)

    def play(t: int, clients: tuple[int, ...] = (0, 1, 2, 3), silent: frozenset[int] = frozenset()) -> Script:
        script = Script(federation)
        script.t, script.clients, script.silent = t, clients, set(silent)
        server.round(t, script)
        return script

    return server, play


def expected_rest(values: dict[int, float], q: np.ndarray, j: int) -> float:
    return float(sum(q[k] * v for k, v in values.items() if k != j) / sum(q[k] for k in values if k != j))


def test_unsampled_clients_stay_in_the_bank_with_their_last_matrix() -> None:
    server, play = scripted(**{"method.alpha": "share"})
    first = play(1)
    assert first.asked == [0, 1, 2, 3]
    second = play(2, clients=(1, 3))
    assert second.asked == [1, 3]
    values = {0: 100.0, 1: 201.0, 2: 102.0, 3: 203.0}  # of rounds 1 and 2
    assert {k: float(r[0, 0]) for k, r in server.state["bank"].items()} == values
    assert set(second.told) == {1, 3}
    for j, fields in second.told.items():
        assert fields["alpha"] == server.alpha(2, j)
        close(fields["rest"], expected_rest(values, server.setup.shares, j), rtol=1e-6)
    assert server.state["releases"] == {0: 1, 1: 2, 2: 1, 3: 2}


def test_rounds_without_sharing_reuse_the_last_matrices_and_before_the_first_there_is_none() -> None:
    server, play = scripted(**{"method.share_rounds": [2]})
    assert [t for t in (1, 2, 3) if server.asks_everybody(t)] == [2]
    first = play(1)
    assert first.asked == []
    assert all(fields == {"rest": None, "alpha": 1.0} for fields in first.told.values())
    assert server.metrics["train/alpha"] == 1
    second, third = play(2), play(3)
    assert (second.asked, third.asked) == ([0, 1, 2, 3], [])
    for j in range(4):
        np.testing.assert_array_equal(second.told[j]["rest"], third.told[j]["rest"])
        assert third.told[j]["alpha"] == server.alpha(3, j) != second.told[j]["alpha"]


def test_every_other_round() -> None:
    _, play = scripted(**{"method.share_every": 2})
    assert [bool(play(t).asked) for t in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize(
    ("rounds", "options", "expected"),
    [
        (4, {}, (2, 3, 4)),  # alpha is 1 in round 1, and round 2 brings new matrices
        (4, {"alpha": "share"}, (1, 2, 3, 4)),
        (4, {"alpha_floor": 0.2}, (2, 3, 4)),
        (4, {"alpha_floor": 1.0}, ()),
        (5, {"share_every": 2}, (1, 3, 5)),  # round 1's matrices serve in round 2
        (5, {"share_rounds": [4, 1]}, (1, 4)),
        (5, {"share_rounds": [1, 2, 4]}, (2, 4)),
        (1, {}, ()),
        (1, {"alpha": "share"}, (1,)),
    ],
)
def test_an_exchange_that_no_loss_would_use_is_left_out(
    rounds: int, options: dict[str, Any], expected: tuple[int, ...]
) -> None:
    config = tiny("fedsc", train__rounds=rounds, **{f"method__{key}": value for key, value in options.items()})
    server = Server(Setup(config, load_federation(config), lambda name: None))  # type: ignore[arg-type, return-value]
    assert server.sharing == expected
    assert [t for t in range(1, rounds + 1) if server.asks_everybody(t)] == list(expected[:1])
    server.start(None)
    for t in range(1, rounds + 1):
        script = Script(server.setup.federation)
        server.round(t, script)
        assert script.asked == ([0, 1, 2, 3] if t in expected else [])


def test_at_alpha_one_the_others_change_no_bit() -> None:
    """Why round 1 of the decay can do without its exchange."""
    _, context = context_of()
    rest = np.random.default_rng(2).normal(size=(8, 8)).astype(np.float32)
    message = {"weights": context.initial("small_cnn_bn"), "alpha": 1.0}
    with_others, alone, less = (
        context.execute("train", 1, 1, {**message, **fields}, None)[0].reply["weights"].vector
        for fields in ({"rest": rest}, {"rest": None}, {"rest": rest, "alpha": 0.9})
    )
    np.testing.assert_array_equal(with_others, alone)
    assert not np.array_equal(less, alone)


UNSHARED = {
    "one round": ({"train__rounds": 1}, "method.alpha=decay and train.rounds=1, and alpha is 1 in round 1; to have "
                  "some, method.alpha=share or train.rounds of at least 2"),
    "a floor of 1": ({"method__alpha_floor": 1.0}, "method.alpha_floor=1, and others' matrices have the weight 1 - "
                     "alpha; to have some, one below 1"),
    "one client": ({"clients__count": 1}, "one client that trains, and there are no others; to have some, at least 2"),
    "one round that shares": ({"train__rounds": 1, "method__alpha": "share"}, None),
    "two rounds": ({"clients__count": 2}, None),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("changes", "why"), UNSHARED.values(), ids=UNSHARED)
def test_a_run_that_exchanges_no_matrix_says_so(changes: dict[str, Any], why: str | None, tmp_path: Path) -> None:
    """The truth is in the weights: those of fedavg_sc, exactly where the line is said."""
    common = {"train__rounds": 2, "train__local_steps": 2, "participation__fraction": 0.5, **changes}
    run_locally(config := tiny("fedsc", **common), tmp_path / "fedsc")
    plain = {key: value for key, value in common.items() if not key.startswith("method")}
    run_locally(tiny("fedavg_sc", **plain), tmp_path / "plain")
    assert (encoders(tmp_path / "fedsc") == encoders(tmp_path / "plain")) == (why is not None)
    line = f"no round exchanges correlation matrices, so clients train as fedavg_sc's do: found {why}"
    assert texts(rehearse(config, load_federation(config))[0].notes()) == ((line,) if why else ())


def test_the_others_count_by_their_images_unless_they_are_to_count_alike() -> None:
    values = {k: 100.0 + k for k in range(4)}
    for options, uniform in (({}, False), ({"method.rest": "uniform"}, True)):
        server, play = scripted(**{"method.alpha": "share"}, **options)
        told, shares = play(1).told, server.setup.shares
        by_images, alike = ([expected_rest(values, q, j) for j in range(4)] for q in (shares, np.ones(4)))
        assert np.abs(np.subtract(by_images, alike)).max() > 0.01
        for j in range(4):
            close(told[j]["rest"], (alike if uniform else by_images)[j], rtol=1e-6)


def test_models_count_by_their_images_unless_they_are_to_count_alike() -> None:
    assert scripted()[1](1).by is None  # the cohort's default: by images
    assert scripted(**{"method.weights": "uniform"})[1](1).by == dict.fromkeys(range(4), 1.0)


def test_a_client_whose_matrix_was_lost_contrasts_against_everybody_who_is_known() -> None:
    server, play = scripted(**{"method.alpha": "share"})
    told = play(1, silent=frozenset({2})).told
    values = {0: 100.0, 1: 101.0, 3: 103.0}
    for j in range(4):
        close(told[j]["rest"], expected_rest(values, server.setup.shares, j), rtol=1e-6)
    alone = scripted(**{"method.alpha": "share"})[1](1, silent=frozenset({0, 1, 2})).told
    assert alone[3] == {"rest": None, "alpha": 1.0}
    close(alone[0]["rest"], 103, rtol=1e-6)


# ------------------------------------------------------------------------------------------ the client


def context_of(**changes: object) -> tuple[RunConfig, Worker]:
    large = {"data__limit": 240, "data__image_size": 16}  # client 1 has several batches, and a smaller one
    config = tiny("fedsc", **{**large, **changes})
    return config, Worker(config, load_federation(config))


def test_views_are_made_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 224 pixels ten views of 500 images would be 3 GB. Here the bound is that of three views of five images."""
    _, context = context_of(method__sharing_passes=3)
    client = context.method.client(context, 1, 2, "correlation", {})
    pixels = client.pixels()
    monkeypatch.setattr(client_module, "VIEW_BYTES", 4 * 3 * 5 * pixels[0].numel())
    shapes = [tuple(part.shape) for part in client.projections(pixels, views=3)]
    assert sum(rows for _, rows, _ in shapes) == len(pixels) > 10
    assert {views for views, _, _ in shapes} == {3}
    assert max(rows for _, rows, _ in shapes) <= 5
    assert len(list(client.projections(pixels))) == 1  # clean images are not bound by it


def shared(context: Worker, client: int = 1, round: int = 2) -> np.ndarray:
    message = {"weights": context.initial("small_cnn_bn")}
    outcome, _ = context.execute("correlation", client, round, message, None)
    return np.asarray(outcome.reply["correlation"])


def test_the_matrix_is_the_mean_over_all_images_and_views_of_the_clipped_outer_products() -> None:
    _, context = context_of(objective__clip=0.01, method__sharing_passes=3, evaluation__batch_size=20)
    client = context.method.client(context, 1, 2, "correlation", {})
    parts = [part.double().numpy() for part in client.projections(client.pixels(), views=3)]
    assert len(parts) > 1
    total, rows = np.zeros((8, 8)), 0
    for z in (row for part in parts for view in part for row in view):
        length = float(np.sqrt(z @ z))
        z = z * min(1.0, np.sqrt(0.01) / length)
        total, rows = total + np.outer(z, z), rows + 1
    assert rows == 3 * len(client.indices)
    close(shared(context), total / rows, atol=1e-8)


def sent_to(config: RunConfig, context: Worker) -> tuple[Weights, Any]:
    """Weights unlike the initial ones, and a module of their own that holds them."""
    network = InitialWeights(config, context.federation).network("small_cnn_bn")
    weights = context.initial("small_cnn_bn")
    moved = weights.vector.copy()
    moved[: weights.parameters] += 0.1 * np.random.default_rng(1).standard_normal(weights.parameters).astype(np.float32)
    weights = weights.with_vector(moved)
    unpack(weights, network)
    return weights, network


def clipped_rows(z: torch.Tensor, mu: float) -> np.ndarray:
    """(V, B, D) float64, every row scaled down to ||z||^2 <= mu, one by one; some rows are, some are not."""
    rows = z.double().numpy().copy()
    lengths = [float(row @ row) for view in rows for row in view]
    assert min(lengths) < mu < max(lengths)
    for row in (row for view in rows for row in view):
        row *= min(1.0, (mu / float(row @ row)) ** 0.5)
    return rows


def test_the_matrix_is_that_of_the_weights_that_came_down() -> None:
    config, context = context_of(objective__clip=0.5, evaluation__batch_size=240)  # one part
    weights, network = sent_to(config, context)
    outcome, _ = context.execute("correlation", 1, 2, {"weights": weights}, None)
    worker = context.method.client(context, 1, 2, "correlation", {})
    pixels = worker.pixels()
    with torch.no_grad():
        views = worker.views(pixels, worker.generator("views"), 2)
        z = clipped_rows(torch.stack([network.eval().project(view) for view in views]), 0.5)
    total = np.zeros((8, 8))
    for row in (row for view in z for row in view):
        total += np.outer(row, row)
    close(outcome.reply["correlation"], total / (2 * len(pixels)), atol=1e-7)
    assert np.abs(outcome.reply["correlation"] - shared(context)).max() > 1e-3  # of the initial weights


def test_a_step_minimises_the_loss_against_the_rest_at_the_given_alpha() -> None:
    """Eq. 5 by loops over pairs of rows: of two views, and with the rows behind the others' matrix."""
    config, context = context_of(train__local_steps=1, objective__clip=0.5)
    weights, network = sent_to(config, context)
    others = np.random.default_rng(2).normal(size=(5, 8))
    rest = (others.T @ others / 5).astype(np.float32)
    message = {"weights": weights, "rest": rest, "alpha": 0.3}
    loss = context.execute("train", 1, 2, message, None)[0].metrics["loss"]

    worker = context.method.client(context, 1, 2, "train", {})
    rows = next(worker.batches(len(worker.indices)))
    views = worker.views(worker.pixels()[rows], worker.generator("views"), 2)
    with torch.no_grad():
        z = clipped_rows(torch.stack(network.train().project(torch.cat(views)).chunk(2)), 0.5)
    assert loss == pytest.approx(reference.spectral_against(z, others, 0.3), rel=1e-5)
    assert loss != pytest.approx(reference.spectral(z), rel=0.05)  # as if there were nobody else
    assert loss != pytest.approx(reference.spectral_against(z, others, 0.6), rel=0.05)
    alone = context.execute("train", 1, 2, {**message, "rest": None, "alpha": 1.0}, None)[0].metrics["loss"]
    assert alone == pytest.approx(reference.spectral(z), rel=1e-5)


def test_sharing_keeps_images_apart_in_eval_mode_only() -> None:
    _, context = context_of()
    client = context.method.client(context, 0, 1, "correlation", {})
    client.load(context.initial("small_cnn_bn"))
    pixels = client.pixels()[:8]
    other = torch.cat([pixels[:7], 255 - pixels[7:]])

    def moved(training: bool) -> float:
        (before,), (after,) = (list(client.projections(p, training=training)) for p in (pixels, other))
        return float((before - after)[:7].abs().max())

    assert moved(training=False) == 0
    assert moved(training=True) > 1e-3
    assert not np.allclose(shared(context), shared(context_of(method__sharing_mode="train")[1]), atol=1e-3)


def test_the_training_loss_is_clipped_with_the_same_mu() -> None:
    def loss(clip: float | None) -> float:
        _, context = context_of(objective__clip=clip)
        message = {"weights": context.initial("small_cnn_bn"), "rest": None, "alpha": 1.0}
        return context.execute("train", 0, 1, message, None)[0].metrics["loss"]

    mu = 1e-4
    assert abs(loss(mu)) <= 2 * mu + mu * mu
    assert abs(loss(None)) > 10 * mu


def test_noise_of_the_clients_own_address_is_added_before_the_upload() -> None:
    config, context = context_of(method__privacy={"sigma": 0.25})
    plain, noisy = shared(context_of()[1]), shared(context)
    expected = 0.25 * torch.randn(8, 8, generator=generator(config.seed, 2, 1, "correlation", "noise")).numpy()
    close(noisy - plain, expected, atol=1e-6)
    assert not np.allclose(shared(context, client=2) - shared(context_of()[1], client=2), expected, atol=0.05)
    assert not np.allclose(shared(context, round=3) - shared(context_of()[1], round=3), expected, atol=0.05)


# ------------------------------------------------------------------------------------------ DP-CalR, whole runs


@needs_accounting
@pytest.mark.parametrize("replies", [1, 4])
def test_what_came_too_late_or_to_nothing_is_a_release(replies: int, tmp_path: Path) -> None:
    """Client 3 is never in time; where four replies are wanted, no round comes to anything."""
    table = pa.table({"client": [0, 1, 2, 3], "latency_s": [1.0, 1.0, 1.0, 50.0]})
    pq.write_table(table, tmp_path / "devices.parquet")
    system = {"devices": str(tmp_path / "devices.parquet"), "deadline_s": 20.0, "minimum_replies": replies}
    config = tiny("fedsc", method__privacy={"sigma": 0.05}, method__share_rounds=[2], system=system,
                  participation__fraction=1.0)  # fmt: skip
    found = run_locally(config, tmp_path / "run")["privacy"]
    assert set(found["releases"].values()) == {1}
    assert min(found["epsilon"].values()) > 0


@needs_accounting
def test_a_client_alone_releases_nothing(tmp_path: Path) -> None:
    """Nobody is there whose loss its matrix could serve in."""
    config = tiny("fedsc", clients__count=1, method__privacy={"epsilon": 1.0}, method__alpha="share")
    summary = run_locally(config, tmp_path)
    assert {row["field"] for row in pq.read_table(tmp_path / "communication.parquet").to_pylist()} == {
        "weights",
        "weights.buffers",
    }
    assert (summary["privacy"]["releases"], summary["epsilon"]) == ({0: 0}, {"0": 0.0})


@pytest.mark.long
@needs_accounting
def test_epsilon_is_what_each_client_released(tmp_path: Path) -> None:
    config = tiny("fedsc", method__privacy={"sigma": 0.05, "delta": 1e-3}, method__share_rounds=[2, 3])
    whole = run_locally(config, tmp_path / "whole")
    federation, spent = load_federation(config), whole["privacy"]
    assert sorted(spent["releases"].values()) == [1, 1, 2, 2]  # round 2 asks everybody, round 3 two of four
    for client, releases in spent["releases"].items():
        record = privacy.spent(privacy.Mechanism(4.0, 0.05, int(federation.sizes[client]), releases), 1e-3)
        assert spent["epsilon"][client] == record.epsilon == whole["epsilon"][str(client)]
        assert spent["epsilon_closed_form"][client] == record.epsilon_closed_form >= record.epsilon > 0
        assert spent["rho"][client] == pytest.approx(releases * (4 / 0.05 / federation.sizes[client]) ** 2)
    stated = {key: spent[key] for key in ("delta", "neighbours", "covers", "not_covered", "planned_releases", "clip")}
    assert stated == {
        "delta": 1e-3,
        "neighbours": "replace one image of one client",
        "covers": "correlation matrices R_j",
        "not_covered": "weights theta_j and the running statistics of BatchNorm",
        "planned_releases": 2,
        "clip": 4.0,
    }
    values = measured(tmp_path / "whole")
    assert values[1, None, "privacy/epsilon"] == 0
    assert values[3, None, "privacy/epsilon"] == max(spent["epsilon"].values())
    assert values[3, None, "privacy/epsilon_closed_form"] == max(spent["epsilon_closed_form"].values())

    seen: list[int] = []
    run_locally(config, tmp_path / "run", report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= 2)
    halted = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert set(halted["releases"].values()) == {1}
    assert run_locally(config, tmp_path / "run", resume=True)["privacy"] == spent


@needs_accounting
@pytest.mark.parametrize("every", [1, 2])
def test_a_target_is_kept_by_clients_asked_every_time(every: int, tmp_path: Path) -> None:
    lines: list[str] = []
    config = tiny("fedsc", method__privacy={"epsilon": 3.0}, method__share_every=every)
    summary = run_locally(config, tmp_path / "run", report=lambda p: lines.append(p.line))
    spent, sizes = summary["privacy"], load_federation(config).sizes
    assert spent["planned_releases"] == 2  # rounds 1 and 3 of 3; with an exchange in every round 2 and 3
    for client, releases in spent["releases"].items():
        assert spent["sigma"][client] == pytest.approx(privacy.sigma_for(3.0, 4.0, int(sizes[client]), 2, 1e-2))
        closed = spent["epsilon_closed_form"][client]
        assert closed == pytest.approx(3.0) if releases == 2 else closed < 3.0
        assert spent["epsilon"][client] < closed
    assert {1, 2} == set(spent["releases"].values())
    (said,) = [line for line in lines if line.startswith("privacy: ")]
    assert "closed form 3)" in said
    assert "not covered: weights theta_j" in said

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "run")).Reload()
    assert {"privacy/epsilon", "privacy/epsilon_closed_form"} <= set(board.Tags()["scalars"])
    (statement,) = board.Tensors("privacy/text_summary")
    text = statement.tensor_proto.string_val[0].decode()
    for words in ("epsilon", "delta: 0.01", "replace one image of one client", "not_covered: weights theta_j"):
        assert words in text


@needs_accounting
def test_a_delta_that_allows_publishing_an_image_is_said() -> None:
    sizes = load_federation(tiny("fedsc")).sizes
    largest = int(sizes.max())
    for delta, said in ((1 / largest, True), (0.99 / largest, False)):
        config = tiny("fedsc", method__privacy={"epsilon": 3.0, "delta": delta})
        lines = texts(rehearse(config, load_federation(config))[0].notes())
        assert any(f"set method.privacy.delta below 1/{largest}" in line for line in lines) == said


@needs_accounting
def test_where_no_exchange_is_of_use_nothing_is_spent(tmp_path: Path) -> None:
    config = tiny("fedsc", method__privacy={"epsilon": 3.0}, train__rounds=1, evaluation__protocols=[])
    spent = run_locally(config, tmp_path / "run")["privacy"]
    assert spent["planned_releases"] == 0
    assert set(spent["epsilon"].values()) == set(spent["releases"].values()) == {0}


def test_without_privacy_nothing_is_claimed(tmp_path: Path) -> None:
    summary = run_locally(tiny("fedsc", train__rounds=1, evaluation__protocols=[]), tmp_path / "run")
    assert summary["epsilon"] is None
    assert "privacy" not in summary


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {}}, "exactly one of sigma and epsilon, found neither"),
        ({"privacy": {"sigma": 1, "epsilon": 1}}, "exactly one of sigma and epsilon, found both"),
        ({"privacy": {"sigma": -1}}, "method.privacy.sigma: found -1; must be at least 1e-30"),
        ({"privacy": {"sigma": 0}}, "method.privacy.sigma: found 0"),
        ({"privacy": {"sigma": float("inf")}}, "method.privacy.sigma"),
        ({"privacy": {"epsilon": 0}}, "method.privacy.epsilon: found 0"),
        ({"privacy": {"sigma": 1, "delta": 0}}, "method.privacy.delta: found 0; must be greater than 0"),
        ({"privacy": {"sigma": 1, "delta": 1}}, "method.privacy.delta: found 1; must be less than 1"),
        ({"privacy": {"sigma": 1, "clip": 4}}, "method.privacy.clip"),
        ({"privacy": {"sigma": 1}, "sharing_mode": "train"}, "batch statistics"),
        ({"share_rounds": [2, 4]}, "method.share_rounds: found 4; allowed: 1 to train.rounds=3"),
        ({"share_rounds": []}, "method.share_rounds"),
        ({"share_rounds": [0]}, "method.share_rounds"),
        ({"share_rounds": [2], "share_every": 2}, "method.share_every: found 2"),
        ({"alpha": "share", "alpha_floor": 0.2}, "method.alpha_floor: found 0.2; allowed beside method.alpha=share"),
    ],
)
def test_bad_input_names_the_key(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        tiny("fedsc", **{f"method__{key}": value for key, value in changes.items()})
    assert words in str(caught.value)


def test_privacy_needs_the_clip() -> None:
    with pytest.raises(UserError, match=r"objective\.clip: found null"):
        tiny("fedsc", method__privacy={"sigma": 1}, objective__clip=None)
    assert tiny("fedsc", objective__clip=None).method.privacy is None  # type: ignore[union-attr]


def test_privacy_allows_no_plugin_which_it_would_not_cover() -> None:
    plugins = [{"name": "fedfoa"}]
    with pytest.raises(UserError, match=r"plugins: found fedfoa beside method\.privacy.*allowed then: none"):
        tiny("fedsc", method__privacy={"sigma": 1}, plugins=plugins)
    assert len(tiny("fedsc", plugins=plugins).plugins) == 1


def test_a_missing_accountant_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'rayfed-ssl\[privacy\]'"):
        run_locally(tiny("fedsc", method__privacy={"sigma": 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_last_round_is_above_the_floor_as_its_key_says() -> None:
    assert alpha_of(10, 10, 0.2) == pytest.approx(0.28)
    said = Config.model_json_schema()["properties"]["alpha_floor"]["description"]
    assert said == "Alpha falls from 1 towards it: 1 - (1 - floor) (t - 1) / rounds in round t; null: q_j."
