"""Orchestra: the target moves before it looks, the loss by parts, the memory, what the server fits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayfed_ssl.base.weights import pack, unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.methods import orchestra
from rayfed_ssl.methods.parts.centroids import fit_centroids, local_centroids, spread
from rayfed_ssl.objectives.base import target_modules
from rayfed_ssl.objectives.byol import ema_
from rayfed_ssl.objectives.clustering import cluster_agreement
from tests.methods.rounds import client, config_of, played, started, worker

close = torch.testing.assert_close
SMALL = {"method__global_clusters": 6, "method__local_clusters": 3, "method__memory": 12, "method__fit_steps": 5}


def config(**changes: object) -> RunConfig:
    return config_of("orchestra", **{"clients__encoders": "small_cnn", **SMALL, **changes})


def test_the_target_follows_by_hand() -> None:
    online, target = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        online.weight.zero_()
        target.weight.fill_(1)
    for expected in (0.996, 0.992016):
        ema_(target, online, 0.996)
        assert target.weight.item() == pytest.approx(expected, abs=1e-7)


def one_step(**changes: object) -> dict[str, torch.Tensor]:
    """One batch of a client whose target is not its online network: its loss, and what that is made of."""
    context = worker(config(**changes))
    member = client(context)
    assert isinstance(member, orchestra.Client)
    weights = context.initial("small_cnn")
    member.load(weights)
    own = pack(*target_modules(member.target))
    member.load(weights, own.with_vector(own.vector[::-1] * np.float32(1.5)))
    member.remember()
    network, target, rows = member.network, member.target, torch.arange(4)
    unmoved = pack(*target_modules(target))
    centroids = F.normalize(torch.linspace(-1, 2, 24).reshape(6, 4), dim=1)
    views = member.views(member.pixels()[rows], member.generator("test"), 2)
    step = member.loss(centroids)(views, rows)

    def unit(z: torch.Tensor) -> torch.Tensor:
        return F.normalize(z, dim=1)

    with torch.no_grad():
        found = {"loss": step.loss.detach(), "moved": unit(target.project(views[0])), "memory": member.memory_rows}
        found |= {"z_a": network.project(views[0]), "z_b": network.project(views[1]), "centroids": centroids}
        expected = 0.996 * torch.tensor(unmoved.vector) + 0.004 * torch.tensor(pack(*target_modules(network)).vector)
        close(torch.tensor(pack(*target_modules(target)).vector), expected)
        unpack(unmoved, *target_modules(target))
        found["unmoved"] = unit(target.project(views[0]))
    return found


def test_a_client_moves_its_target_before_it_assigns_and_remembers() -> None:
    p = one_step(method__rotation=0)
    assert p["memory"].shape == (12, 4)
    close(p["memory"][-4:], p["moved"])
    assert (p["moved"] - p["unmoved"]).abs().max() > 1e-5
    assert (p["memory"][-4:] - p["unmoved"]).abs().max() > 1e-5
    close(p["loss"], cluster_agreement(p["moved"], p["z_b"], p["centroids"], 0.1))
    # Must not be: the other view, or the roles of target and online exchanged.
    for target, z in ((p["moved"], p["z_a"]), (p["z_b"], p["moved"]), (p["unmoved"], p["z_b"])):
        assert (p["loss"] - cluster_agreement(target, z, p["centroids"], 0.1)).abs() > 1e-6


def test_turns_are_predicted_beside_it() -> None:
    none, once, twice = (one_step(method__rotation=weight)["loss"].item() for weight in (0, 1, 2))
    assert twice - once == pytest.approx(once - none, rel=1e-4)
    assert 0.7 < once - none < 3  # about ln 4 before any training


def test_the_memory_is_of_own_images_and_leaves_no_trace_in_statistics() -> None:
    context = worker(config(clients__encoders="small_cnn_bn", method__memory=1000))
    member = client(context)
    assert isinstance(member, orchestra.Client)
    weights = context.initial("small_cnn_bn")
    member.load(weights)
    before = pack(member.target).vector
    member.remember()
    assert member.memory_rows.shape == (len(member.indices), 4)  # fewer images than rows
    close(member.memory_rows.norm(dim=1), torch.ones(len(member.indices)))
    np.testing.assert_array_equal(pack(member.target).vector, before)
    reply = context.execute("cluster", 0, 1, {"weights": weights, "target": None}, None)[0].reply
    assert reply.keys() == {"centroids"}  # never the memory itself
    again = client(context, operation="cluster")
    assert isinstance(again, orchestra.Client)
    again.load(weights)
    again.remember()
    np.testing.assert_array_equal(
        reply["centroids"], local_centroids(again.memory_rows, 3, again.generator("centroids")).numpy()
    )


def test_the_server_fits_everybodys_centroids_from_its_last_ones() -> None:
    context = worker(config())
    draws = np.random.default_rng(0)
    last, found = draws.normal(size=(6, 4)).astype(np.float32), draws.normal(size=(2, 3, 4)).astype(np.float32)
    message = {"centroids": last, "found": list(found)}
    fitted = context.execute("fit_global", SERVER, 1, message, None)[0].reply["centroids"]
    expected = fit_centroids(torch.tensor(last), torch.tensor(found.reshape(6, 4)), 0.1, steps=5)
    np.testing.assert_allclose(fitted, expected.numpy(), atol=1e-6)
    fresh = context.execute("fit_global", SERVER, 1, {"centroids": None, "found": list(found)}, None)[0]
    np.testing.assert_allclose(np.linalg.norm(fresh.reply["centroids"], axis=1), 1, atol=1e-6)


def test_both_networks_are_means_over_clients_by_size() -> None:
    settings = config(clients__encoders="small_cnn_bn", data__limit=91)
    server, cohort = started(settings)
    cohort.begin_round(1, (0, 1))
    server.round(1, cohort)
    first = dict(server.state)
    assert first["centroids"].shape == (6, 4)
    context, replies = worker(settings), []
    cohort.end_round()
    cohort.begin_round(2, (0, 1))
    message = {name: first[name] for name in ("weights", "target", "centroids")}
    for number in (0, 1):
        replies.append(context.execute("train", number, 2, message, None)[0].reply)
    server.round(2, cohort)
    for name in ("weights", "target"):
        mean = np.average([reply[name].vector for reply in replies], axis=0, weights=cohort.shares[:2])
        np.testing.assert_allclose(server.state[name].vector, mean, atol=1e-6)
    assert np.abs(server.state["weights"].vector - first["weights"].vector).max() > 1e-4


def test_a_run_without_rounds_of_fitting_keeps_its_first_centroids() -> None:
    server, _ = played(config(method__fit_steps=0))
    moved, _ = played(config(method__fit_steps=20))
    assert server.state["centroids"].shape == moved.state["centroids"].shape == (6, 4)
    assert np.abs(server.state["centroids"] - moved.state["centroids"]).max() > 1e-3


def test_clusters_in_use_are_counted_by_the_entropy_of_their_shares() -> None:
    centroids = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    x = np.array([[3.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 1.0]])  # two each to the first two
    clusters, cosine = spread(x, centroids)
    assert clusters == pytest.approx(2.0)
    assert cosine == pytest.approx((1 + 2 / np.hypot(2, 0.1) + 1 + 1 / np.hypot(0.1, 1)) / 4)
    uneven, _ = spread(x[:3], centroids)
    assert uneven == pytest.approx(np.exp(-(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))))
    assert spread(x[:2], centroids).clusters == pytest.approx(1.0)


def test_a_round_records_the_clusters_in_use() -> None:
    server, _ = played(config(method__fit_steps=2))
    assert 1 <= server.metrics["orchestra/clusters"] <= server.state["centroids"].shape[0]
    assert 0 < server.metrics["orchestra/cosine"] <= 1
