"""FedMD without labels: whose mean the consensus is, one digest by hand, what a client's round is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.methods import fedmd
from tests.methods.rounds import client, config_of, played, worker

PUBLIC = {"data__public__source": "share", "data__public__share": 0.3}
MIXED = {"clients__encoders": ["small_cnn", "small_cnn_bn", "small_cnn"]}
PARTITION = {"data__partition": {"name": "dirichlet", "alpha": 1.0}}


def config(**changes: object) -> RunConfig:
    return config_of("fedmd", **{**PUBLIC, **changes})


def test_the_consensus_is_the_unweighted_mean_of_what_clients_say_of_the_rounds_subset() -> None:
    settings = config(**MIXED, **PARTITION, method__subset=12)
    server, cohort = played(settings)
    context, outputs = worker(settings), []
    public = cohort.federation.public
    assert public is not None
    rows = fedmd.subset(settings, 2, len(public))
    for number, state in cohort.states():
        network = context.network(settings.clients.encoder(number))
        unpack(state["model"], network)
        network.eval()
        with torch.no_grad():
            outputs.append(network.project(context.clean(context.images(public.pixels[rows]))).numpy())
    agreed = server.state["consensus"]
    np.testing.assert_allclose(agreed, np.mean(outputs, axis=0), atol=1e-5)
    by_size = np.average(outputs, axis=0, weights=cohort.shares)
    assert np.abs(agreed - by_size).max() > 1e-3  # must not count by size
    assert np.abs(np.mean(outputs[1:], axis=0) - agreed).max() > 1e-3


def test_a_subset_is_of_its_round_and_of_the_seed() -> None:
    settings = config(method__subset=12)
    first, second = fedmd.subset(settings, 1, 27), fedmd.subset(settings, 2, 27)
    assert len(set(first)) == 12
    assert sorted(first) == list(first)
    assert set(first) != set(second)
    assert np.array_equal(first, fedmd.subset(settings, 1, 27))
    assert list(fedmd.subset(config(), 1, 27)) == list(range(27))


@pytest.mark.parametrize("distance", ["l1", "mse"])
def test_one_digest_is_one_adam_step_down_the_mean_distance(distance: str) -> None:
    settings = config(method__distance=distance, method__digest_lr=0.01)
    context = worker(settings)
    member = client(context)
    assert isinstance(member, fedmd.Client)
    member.load_own()
    network = member.network
    pixels = member.pixels()[:8]
    consensus = torch.linspace(-1, 1, 32).reshape(8, 4)
    statistics = [b.clone() for b in network.buffers()]
    before = [p.detach().clone() for p in network.parameters()]
    network.eval()
    outputs = network.project(context.clean(pixels))
    gap = outputs - consensus
    value = (gap.abs() if distance == "l1" else gap.square()).mean()
    parameters = list(network.projector.parameters())  # type: ignore[union-attr]
    gradients = torch.autograd.grad(value, parameters)
    member.digest(pixels, consensus)
    assert member.metrics["digest"] == pytest.approx(float(value.detach()), rel=1e-5)
    start = len(before) - len(parameters) - len(list(network.predictor.parameters()))  # type: ignore[union-attr]
    for k, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        step = 0.01 * gradient / (gradient.abs() + 1e-8)  # Adam's first
        clear = gradient.abs() > 1e-5
        torch.testing.assert_close((before[start + k] - parameter)[clear], step[clear], rtol=1e-2, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(statistics, network.buffers(), strict=True))


def test_a_consensus_moves_a_client_and_its_absence_leaves_local_training() -> None:
    settings = config(method__digest_epochs=30, method__digest_lr=0.02, train__optimizer__lr=1e-9)
    public = load_federation(settings).public
    assert public is not None
    context = worker(settings, public=public.pixels)
    message = {"consensus": None, "consensus_round": 0}
    alone = context.execute("train", 1, 1, message, None)[0].reply["outputs"]
    goal = np.roll(alone, 1, axis=1)
    led, _ = context.execute("train", 1, 1, {"consensus": goal, "consensus_round": 1}, None)
    assert np.abs(led.reply["outputs"] - goal).mean() < np.abs(alone - goal).mean() / 2
    byol = worker(replace_method(settings, "local"))
    _, state = byol.execute("train", 1, 1, {}, None)
    _, own = context.execute("train", 1, 1, message, None)
    np.testing.assert_array_equal(own["model"].vector, state["model"].vector)


def test_a_consensus_is_digested_on_its_own_images_before_the_clients_are_revisited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, seen = config(method__subset=12), list[tuple[str, torch.Tensor | None]]()
    public = load_federation(settings).public
    assert public is not None
    monkeypatch.setattr(fedmd.Client, "digest", lambda self, pixels, consensus: seen.append(("digest", pixels)))
    monkeypatch.setattr(fedmd.Client, "fit", lambda self: seen.append(("fit", None)))
    context = worker(settings, public=public.pixels)
    context.execute("train", 1, 2, {"consensus": np.zeros((12, 4), np.float32), "consensus_round": 1}, None)
    assert [name for name, _ in seen] == ["digest", "fit"]
    (_, digested), _ = seen
    assert digested is not None
    assert torch.equal(digested, context.images(public.pixels[fedmd.subset(settings, 1, len(public))]))


def replace_method(settings: RunConfig, name: str) -> RunConfig:
    return config_of(name, objective={"name": "byol"}, train__optimizer__lr=settings.train.optimizer.lr, **PUBLIC)


def test_clients_meet_the_public_images_once_before_their_first_round() -> None:
    server, cohort = played(config(train__rounds=1, method__public_epochs=2))
    assert server.state["pretrained"] == [0, 1, 2]
    # images count both: two epochs of the public images and one of the shard, in whole batches of ten
    public, shard = cohort.federation.public, int(cohort.federation.sizes[0])
    assert public is not None
    assert cohort.metrics[0]["images"] == 2 * (len(public) // 10) * 10 + shard // 10 * 10
    again, cohort = played(config(train__rounds=2, method__public_epochs=2))
    assert again.state["pretrained"] == [0, 1, 2]
    assert cohort.metrics[0]["images"] == shard // 10 * 10
    without, _ = played(config(train__rounds=1, method__public_epochs=0))
    assert without.state["pretrained"] == []


def test_too_large_a_subset_is_one_line() -> None:
    settings = config(method__subset=28)
    federation = load_federation(settings)
    with pytest.raises(UserError, match=r"^data.public: found 27 public images; method.subset=28 needs at least 28 \("):
        fedmd.check_federation(settings, federation)
    with pytest.raises(UserError, match=r"found 0 public images; method\.subset=28 needs"):
        fedmd.check_federation(settings, replace(federation, public=None))
    with pytest.raises(UserError, match="found 0 public images; fedmd needs at least 2"):
        fedmd.check_federation(config(method__subset=1), replace(federation, public=None))
    with pytest.raises(UserError, match=r"data.public.source: fedmd needs public images"):
        config_of("fedmd")
