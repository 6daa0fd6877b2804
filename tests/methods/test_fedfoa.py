"""FedFoA's two halves: the penalty against printed numbers and an SVD's gradient, what is uploaded, who sees what.

The factorisations' own numbers are in tests/test_linalg.py, the traffic in tests/test_traffic.py.
Shape legend: m batch rows, n projection dimension, P peers.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import build
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.methods.fedfoa import (
    ClientHalf,
    Config,
    ServerHalf,
    admitted,
    distances,
    mutual_understanding,
    pack_triangle,
    packed_traces,
    prepared,
    unpack_triangle,
)
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.forecast import forecast
from rayfed_ssl.simulation.worker import Worker
from tests.tensors import normal
from tests.tiny import BASE, encoders, measured, run_locally, tiny

close = torch.testing.assert_close
F64 = torch.float64
Z = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=F64)
R = torch.tensor([[2, 1], [0, 1]], dtype=F64)


def positive_r(z: np.ndarray) -> np.ndarray:
    """The independent truth: R = cholesky(Z^T Z)^T."""
    return np.asarray(np.linalg.cholesky(z.T @ z).T)


def half(**options: Any) -> ClientHalf:
    client = SimpleNamespace(context=SimpleNamespace(device=torch.device("cpu")), metrics={})
    return ClientHalf(Config(**options), client)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ the penalty


def test_printed_values_of_the_three_norms() -> None:
    value = {norm: mutual_understanding(Z, R[None], norm) for norm in ("frobenius", "squared", "mean")}
    close(value["squared"], torch.tensor([0.423319316115], dtype=F64), rtol=0, atol=1e-11)
    close(value["frobenius"], torch.tensor([0.650629938], dtype=F64), rtol=0, atol=1e-9)
    close(value["mean"], value["squared"] / 6, rtol=1e-12, atol=0)


def test_the_own_r_costs_nothing_and_has_a_finite_gradient() -> None:  # the unsquared norm is 0/0 there
    z = Z.clone().requires_grad_()
    own = torch.tensor(positive_r(Z.numpy()))
    (value,) = mutual_understanding(z, own[None])
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() < 2e-6
    assert z.grad is not None
    assert z.grad.abs().max() < 1e-6


def through_svd(z: Tensor, r: Tensor) -> Tensor:
    """||Z - Q* R||_F^2 with the gradient going through Q*'s singular vectors as well: z (m, n), r (n, n)."""
    u, _, vh = torch.linalg.svd(r @ z.T, full_matrices=False)
    return (z - (u @ vh).T @ r).square().sum()


@pytest.mark.parametrize("norm", ["frobenius", "squared", "mean"])
def test_gradient_equals_autograd_through_the_svd(norm: str) -> None:
    def gradients(z: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        ours, truth = z.clone().requires_grad_(), z.clone().requires_grad_()
        mutual_understanding(ours, r, norm).sum().backward()  # type: ignore[no-untyped-call]
        for peer in r:
            squared = through_svd(truth, peer)
            value = {"squared": squared, "frobenius": squared.sqrt(), "mean": squared / z.numel()}[norm]
            value.backward()  # type: ignore[no-untyped-call]
        assert ours.grad is not None
        assert truth.grad is not None
        return ours.grad, truth.grad

    close(*gradients(normal(9, 4), torch.stack([normal(4, 4, seed=s).triu() for s in (1, 2, 3)])), rtol=0, atol=1e-9)
    ours, truth = gradients(Z, R[None])
    close(ours, truth, rtol=0, atol=1e-9)
    if norm == "squared":
        printed = [[-0.635318556, -0.353065739], [-0.353065739, 0.200043953], [-0.988384295, -0.153021786]]
        close(ours, torch.tensor(printed, dtype=F64), rtol=0, atol=1e-9)


def test_only_larger_traces_are_admitted() -> None:
    own = torch.eye(2)
    peers = torch.stack([0.5 * own, own, 1.5 * own, torch.diag(torch.tensor([-1.0, 4.0]))])
    assert admitted(peers, own).tolist() == [False, False, True, True]


def test_the_penalty_sums_over_admitted_peers_and_averages_over_views() -> None:
    z = [normal(9, 4, seed=s).float() for s in (0, 1)]
    z[1] = 4 * z[1]  # a trace above every peer's
    own = [positive_r(v.double().numpy()) for v in z]
    peers = np.stack([own[0] * scale for scale in (0.9, 1.2, 1.5)]).astype(np.float32)
    packed = {"peers": np.stack([pack_triangle(r) for r in peers])}
    single = [float(mutual_understanding(z[0], torch.tensor(peers[k])[None])) for k in range(3)]
    expected = 0.5 * (single[1] + single[2])  # the first has the smaller trace

    first, both = half(weight=0.5), half(weight=0.5, views="both")
    for plugin, factor in ((first, 1.0), (both, 0.5)):  # the second view admits nobody: it counts as zero
        plugin.receive(packed)
        term = plugin.penalty((z[0], z[1]))
        assert term is not None
        assert float(term) == pytest.approx(expected * factor, rel=1e-5)
    assert (float(first.used), first.batches) == (2, 1)
    assert (float(both.used), both.batches) == (2, 2)
    assert both.penalty((z[1], z[1])) is None  # nobody admitted
    assert half().penalty((z[0], z[1])) is None  # nobody known


def test_the_upload_is_the_mean_of_the_batches_canonical_r() -> None:  # eq. 12
    batches = [normal(9, 4, seed=s).float() for s in range(5)]
    plugin = half()
    for z in batches:
        plugin.penalty((z, z))
    mean = sum(positive_r(z.double().numpy()) for z in batches) / 5
    np.testing.assert_allclose(unpack_triangle(plugin.reply()["correlation"]), mean, atol=1e-5)
    assert plugin.client.metrics["trace"] == pytest.approx(np.trace(mean), rel=1e-5)
    assert plugin.client.metrics["admitted"] == 0


def test_the_mean_of_r_and_its_row_flipped_twin_is_r() -> None:
    """Both are triangular factors of the same Z; with the signs as QR leaves them a row would be lost."""
    r = torch.tensor([[2**0.5, 0.5**0.5], [0, 1.5**0.5]], dtype=F64)
    twin = torch.tensor([[-1.0], [1.0]], dtype=F64) * r
    for factor in (r, twin):
        close(factor.T @ factor, Z.T @ Z)
    lost = (torch.linalg.qr(r).R + torch.linalg.qr(twin).R) / 2  # of a triangle QR leaves the signs as they are
    close(lost, torch.stack([torch.zeros(2, dtype=F64), r[1]]))
    plugin = half()
    for batch in (r, twin):
        plugin.penalty((batch.float(),))
    np.testing.assert_allclose(unpack_triangle(plugin.reply()["correlation"]), r.numpy(), atol=1e-6)
    assert plugin.client.metrics["trace"] == pytest.approx(2.638958434, abs=1e-6)


@pytest.mark.parametrize("normalize", ["none", "rows", "columns"])
@pytest.mark.parametrize("scale", [False, True])
def test_features_are_normalised_before_the_factorisation(normalize: str, scale: bool) -> None:
    z = 3 * normal(9, 4) + 1
    expected = z.numpy().copy()
    if normalize == "rows":
        expected = np.stack([row / np.sqrt((row**2).sum()) for row in expected])
    if normalize == "columns":
        expected = np.stack([(column - column.mean()) / column.std() for column in expected.T], axis=1)
    expected = expected / 3 if scale else expected
    made = prepared(z, normalize, scale=scale)
    np.testing.assert_allclose(made.numpy(), expected, atol=1e-12)
    if normalize == "rows":
        assert (made**2).sum().item() == pytest.approx(1 if scale else 9)  # ||R||_F^2 = m
    plugin = half(normalize=normalize, scale=scale)
    plugin.penalty((z.float(),))
    np.testing.assert_allclose(unpack_triangle(plugin.reply()["correlation"]), positive_r(expected), atol=1e-5)


def test_triangles_there_and_back() -> None:
    r = normal(3, 5, 5).triu().float().numpy()
    packed = np.stack([pack_triangle(one) for one in r])
    assert packed.shape == (3, 15)
    assert packed.dtype == np.float32
    np.testing.assert_array_equal(unpack_triangle(packed), r)
    np.testing.assert_array_equal(packed[0], [r[0, i, j] for i in range(5) for j in range(i, 5)])
    np.testing.assert_array_equal(unpack_triangle(np.arange(1.0, 4)), [[1, 2], [0, 3]])
    apart = [[np.linalg.norm(a.astype(float) - b.astype(float)) for b in r] for a in r]
    np.testing.assert_allclose(distances(packed), apart, rtol=1e-12)
    assert not distances(np.stack([packed[0], packed[0]])).any()
    np.testing.assert_allclose(packed_traces(packed), [one.trace() for one in r], rtol=1e-6)


# ------------------------------------------------------------------------------------------ who sees what


def uploads(t: int) -> dict[int, np.ndarray]:
    return {client: np.array([100.0 * t + client, 0, 1], np.float32) for client in range(3)}


def bank_of(**options: Any) -> ServerHalf:
    setup = SimpleNamespace(federation=SimpleNamespace(sizes=np.ones(3)))
    return ServerHalf(Config(**options), setup)  # type: ignore[arg-type]


def test_double_buffer_round_t_reads_what_round_t_minus_1_wrote() -> None:
    server = bank_of(warmup=0)
    for t in (1, 2, 3):
        for client, packed in uploads(t).items():  # clients one after the other, as Algorithm 1 loops
            told = server.message(t, client)
            if t == 1:
                assert told == {}
            else:
                before = uploads(t - 1)
                np.testing.assert_array_equal(told["peers"], [before[j] for j in range(3) if j != client])
            server.collect(t, client, {"correlation": packed})
        server.end_round(t)


def test_warm_up_sends_nothing_and_an_absent_client_is_represented_by_its_last_matrix() -> None:
    server = bank_of(warmup=2)
    for t in (1, 2):
        for client, packed in uploads(t).items():
            assert server.message(t, client) == {}
            if t == 1 or client != 1:
                server.collect(t, client, {"correlation": packed})
        server.end_round(t)
    np.testing.assert_array_equal(server.message(3, 0)["peers"], [uploads(1)[1], uploads(2)[2]])


def test_the_server_holds_each_matrix_once() -> None:
    """Messages are held until the round ends: copies of the bank would be N^2."""
    server = bank_of(warmup=0)
    for client, packed in uploads(1).items():
        server.collect(1, client, {"correlation": packed})
    server.end_round(1)
    bank = server.state["bank"]
    for client in range(3):
        told = server.message(2, client)["peers"]
        assert all(peer is bank[j] for peer, j in zip(told, (j for j in range(3) if j != client), strict=True))


def test_distances_and_traces_are_recorded() -> None:
    server = bank_of()
    for client, packed in uploads(1).items():
        server.collect(1, client, {"correlation": packed})
    server.end_round(1)
    assert server.metrics == {
        "fedfoa/trace": 102.0,
        "fedfoa/distance": pytest.approx(4 / 3),
        "fedfoa/distance_0_1": 1.0,
        "fedfoa/distance_0_2": 2.0,
        "fedfoa/distance_1_2": 1.0,
    }
    np.testing.assert_array_equal(server.client_matrices()["fedfoa_distance"].values, [[0, 1, 2], [1, 0, 1], [2, 1, 0]])


# ------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("normalize", ["none", "columns"])
def test_r_of_the_round_is_that_of_the_stacked_projections_at_batch_scale(scale: bool, normalize: str) -> None:
    """evaluation.batch_size is below n here: parts of the shard need not have n rows."""
    config = tiny(
        "fedfoa",
        method__correlation="round",
        method__scale=scale,
        method__normalize=normalize,
        evaluation__batch_size=5,
    )
    context = Worker(config, load_federation(config))
    outcome, state = context.execute("train", 1, 1, {}, None)
    client = context.method.client(context, 1, 2, "look", state)
    client.load_own()
    z = torch.cat(list(client.projections(client.pixels()))).double().numpy()  # after training, eval mode, clean
    if normalize == "columns":
        z = (z - z.mean(0)) / z.std(0)
    rows = len(client.indices)
    assert rows > 16
    expected = positive_r(z) / rows**0.5 if scale else positive_r(z) * (16 / rows) ** 0.5
    np.testing.assert_allclose(unpack_triangle(outcome.reply["fedfoa.correlation"]), expected, atol=1e-4)
    assert outcome.metrics["trace"] == pytest.approx(np.trace(expected), rel=1e-4)


@pytest.mark.long
def test_weight_zero_is_the_method_without_the_plug_in(tmp_path: Path) -> None:
    common: dict[str, Any] = {"train__rounds": 2, "evaluation__protocols": [], "clients__count": 3}

    def run(name: str, **plugin: Any) -> dict[str, bytes]:
        plugins = [{"name": "fedfoa", "warmup": 0, **plugin}] if plugin else []
        run_locally(tiny("fedbyol", **common, plugins=plugins), tmp_path / name)
        return encoders(tmp_path / name)

    plain = run("plain")
    assert run("zero", weight=0) == plain
    assert run("some", weight=0.1) != plain
    values = measured(tmp_path / "zero")
    assert any(value > 0 for (t, _, tag), value in values.items() if t == 2 and tag == "client/admitted")


@pytest.mark.long
@pytest.mark.parametrize(("rounds", "warmup", "first"), [(1, 0, 2), (2, 0, 2), (2, 2, 3), (3, 2, 3)])
def test_a_run_without_the_term_says_so(tmp_path: Path, rounds: int, warmup: int, first: int) -> None:
    """The truth is in the weights: those of the method without the plug-in, exactly where the line is said."""
    common: dict[str, Any] = {"train__rounds": rounds, "evaluation__protocols": [], "clients__count": 3}
    run_locally(tiny("fedbyol", **common), tmp_path / "plain")
    plugged = tiny("fedbyol", **common, plugins=[{"name": "feddecorr", "weight": 0},
                                                 {"name": "fedfoa", "warmup": warmup, "weight": 0.1}])  # fmt: skip
    run_locally(plugged, tmp_path / "plugged")
    said = json.loads((tmp_path / "plugged" / "environment.json").read_text()).get("notes", [])
    lines = [note for note in said if "fedfoa" in note]
    assert bool(lines) == (encoders(tmp_path / "plugged") == encoders(tmp_path / "plain"))
    sooner = f"a plugins.1.warmup of at most {rounds - 1}, or " if rounds > 1 else ""
    assert (
        lines
        == [
            f"no round applies fedfoa's term: found train.rounds={rounds} and plugins.1.warmup={warmup}, by which it "
            f"begins in round {first}, so clients train as fedbyol's do without the plug-in; to have some, {sooner}"
            f"train.rounds of at least {first}"
        ][rounds >= first :]
    )
    assert [note for note in forecast(plugged).notes if "fedfoa" in note] == lines


def test_without_the_term_the_method_trains_its_clients_alone() -> None:
    """The reviewer's: three rounds by the default warm-up."""
    config = tiny("fedfoa", train__rounds=3, method__warmup=5)
    (line,) = texts(rehearse(config, load_federation(config))[0].notes())
    assert line == (
        "no round applies fedfoa's term: found train.rounds=3 and method.warmup=5, by which it begins in round 6, so "
        "clients train alone; to have some, a method.warmup of at most 2, or train.rounds of at least 6"
    )


@pytest.mark.long
def test_a_run_records_traces_distances_and_rounds_to_an_accuracy(tmp_path: Path) -> None:
    config = tiny("fedfoa", train__rounds=2, clients__count=3, clients__encoders="small_cnn",
                  evaluation__targets=[0.05, 1.0], figures=True)  # fmt: skip
    summary = run_locally(config, tmp_path / "run")
    values = measured(tmp_path / "run")
    for t in (1, 2):
        assert all(values[t, client, "client/trace"] > 0 for client in range(3))
        assert all(values[t, None, f"fedfoa/distance_{i}_{j}"] > 0 for i, j in itertools.combinations(range(3), 2))
    means = {t: np.mean([values[t, client, "eval/knn"] for client in range(3)]) for t in (1, 2)}
    assert summary["rounds_to"] == {"knn": {"0.05": 1, "1": None}}
    assert summary["best"]["knn"]["value"] == pytest.approx(max(means.values()))
    assert set(summary["accuracy"]["knn"]) == {"0", "1", "2"}
    figures = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
    assert {"accuracy_vs_trace.png", "fedfoa_distance.png"} <= figures
    sent = set(pq.read_table(tmp_path / "run" / "communication.parquet")["field"].to_pylist())
    assert sent == {"fedfoa.correlation", "fedfoa.peers"}  # features' correlations and nothing else


def test_bad_input_names_the_key() -> None:
    with pytest.raises(
        UserError, match=r"train\.batch_size: found 16; fedfoa with model\.projector\.dim=32 needs at least 32"
    ):
        tiny("fedfoa", model__calibration=32)
    with pytest.raises(
        UserError, match=r"train\.batch_size: found 16; fedfoa with model\.projector\.dim=32 needs at least 32"
    ):
        tiny("fedbyol", plugins=[{"name": "fedfoa"}], model__calibration=32)
    for option in ({"weight": -1}, {"warmup": -1}, {"norm": "nuclear"}, {"views": "second"}, {"normalize": "all"}):
        ((key, _),) = option.items()
        with pytest.raises(UserError, match=rf"method\.{key}"):
            tiny("fedfoa", **{f"method__{key}": value for key, value in option.items()})


def test_an_objective_without_projections_is_refused() -> None:
    document = {**BASE, "method": {"name": "centralized"}, "objective": {"name": "rotation"}}
    build(document, {}, origin="here")
    with pytest.raises(UserError, match=r"objective\.name: found 'rotation'; the plug-in fedfoa allows byol"):
        build({**document, "plugins": [{"name": "fedfoa"}]}, {}, origin="here")


def test_small_shards_are_refused_before_the_first_round(tmp_path: Path) -> None:
    config = tiny("fedfoa", data__limit=20, data__partition={"name": "iid"})
    with pytest.raises(
        UserError, match=r"client 0 has 5 images; fedfoa with model\.projector\.dim=8 needs batches of at least 8"
    ):
        run_locally(config, tmp_path / "run")
