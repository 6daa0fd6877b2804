"""SSD: whose dimensions, the loss by parts, FedAvg without its terms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.methods import ssd
from rayfed_ssl.objectives.align_uniform import align_uniform
from rayfed_ssl.objectives.separation import orthonormal, projector_distillation, separation
from tests.methods.rounds import client, config_of, played, started, worker

close = torch.testing.assert_close
WIDE = {"model__projector": {"hidden": [8], "dim": 32}}


def config(**changes: object) -> RunConfig:
    return config_of("ssd", **{**WIDE, **changes})


def test_dimensions_belong_to_a_client_not_to_its_position_among_those_asked() -> None:
    server, cohort = started(config(clients__count=10, clients__encoders="small_cnn", data__limit=120))
    rows = server.state["subspaces"]
    assert rows.shape == (10, 3)
    assert len(set(rows.ravel())) == 30
    cohort.begin_round(1, (3, 7))
    server.round(1, cohort)
    cohort.end_round()
    kept = {number: state["subspace"] for number, state in cohort.states() if "subspace" in state}
    assert sorted(kept) == [3, 7]
    for number in kept:
        np.testing.assert_array_equal(kept[number], rows[number])
    assert not np.array_equal(kept[3], rows[0])  # must not be: the first of those asked has the first row
    cohort.begin_round(2, (3, 5))
    server.round(2, cohort)
    cohort.end_round()
    down = [b for b in cohort.ledger.drain() if b.field == "subspace"]
    assert [(b.round, b.client, b.bytes) for b in down] == [(1, 3, 24), (1, 7, 24), (2, 5, 24)]  # once


def one_loss(**changes: object) -> tuple[float, list[torch.Tensor], list[torch.Tensor]]:
    """The loss of one batch, features and projections of both views."""
    member = client(worker(config(clients__encoders="small_cnn", **changes)))
    assert isinstance(member, ssd.Client)
    member.load(member.context.initial("small_cnn"))
    member.state["subspace"] = np.array([1, 4, 9])
    rows = torch.arange(6)
    views = member.views(member.pixels()[rows], member.generator("test"), 2)
    value = member.loss()(views, rows).loss
    with torch.no_grad():
        features = [member.network.represent(view) for view in views]
        return float(value.detach()), features, [member.network.project_features(h) for h in features]


def test_the_loss_is_the_sum_of_its_parts() -> None:
    value, features, z = one_loss(method__separation=2, method__distillation=0.3)
    q = orthonormal(32, generator(0, "basis")).float()
    diagonal = torch.ones(32)
    diagonal[[1, 4, 9]] = 10
    a = q @ torch.diag(diagonal) @ q.T
    base = align_uniform(z[0], z[1], 1.0, 2.0)
    apart = (separation(z[0], a) + separation(z[1], a)) / 2
    pairs = zip(features, z, strict=True)
    passed = sum(projector_distillation(h, x, 0.5) for h, x in pairs) / 2
    assert value == pytest.approx(float(base + 2 * apart + 0.3 * passed), rel=1e-5)
    assert float(apart) > 1e-3
    assert float(passed) > 1e-5
    # Must not be: features and projections exchanged, or another client's dimensions.
    exchanged = sum(projector_distillation(x, h, 0.5) for h, x in zip(features, z, strict=True)) / 2
    assert value != pytest.approx(float(base + 2 * apart + 0.3 * exchanged), rel=1e-6)
    diagonal = torch.ones(32)
    diagonal[[0, 2, 3]] = 10
    other = q @ torch.diag(diagonal) @ q.T
    wrong = (separation(z[0], other) + separation(z[1], other)) / 2
    assert value != pytest.approx(float(base + 2 * wrong + 0.3 * passed), rel=1e-5)


def test_a_scale_of_one_separates_nobody() -> None:
    value, _, z = one_loss(method__scale=1, method__distillation=0)
    assert value == pytest.approx(float(align_uniform(z[0], z[1], 1.0, 2.0)), abs=1e-5)


def test_without_its_terms_it_is_fedavg_bit_for_bit() -> None:
    none, _ = played(config(method__separation=0, method__distillation=0))
    fedavg, _ = played(config_of("fedprox", **WIDE, method__mu=0, objective={"name": "align_uniform"}))
    some, _ = played(config())
    np.testing.assert_array_equal(none.weights.vector, fedavg.weights.vector)
    assert np.abs(some.weights.vector - fedavg.weights.vector).max() > 1e-4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match=r"clients.count: found 33; ssd gives each client dimensions of its own"):
        config(clients__count=33)
    narrow = config_of("ssd")
    with pytest.raises(UserError, match=r"model.projector.dim: found 4; .*small_cnn_bn has 32"):
        ssd.check_federation(narrow, load_federation(narrow))
    without = config_of("ssd", method__distillation=0, clients__count=2)
    ssd.check_federation(without, load_federation(without))
