"""FedDF without labels: starts, ensemble, distances, and a student that is its only teacher."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import pack, unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.messages import SERVER, Reply
from rayfed_ssl.methods import feddf
from rayfed_ssl.objectives.distillation import ensemble_divergence
from tests.methods.rounds import client, config_of, played, started, worker

PUBLIC = {"data__public__source": "share", "data__public__share": 0.3}


def config(**changes: object) -> RunConfig:
    return config_of("feddf", **{**PUBLIC, "method__steps": 6, "method__batch_size": 9, **changes})


def rows(*values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_distances_by_hand() -> None:
    student, agreed = rows((3, 4), (1, 0)), rows((4, 3), (0, 1))
    assert feddf.distance(student, agreed, "mse").item() == pytest.approx(1)
    assert feddf.distance(student, agreed, "cosine").item() == pytest.approx((0.04 + 1) / 2, abs=1e-6)
    teachers = torch.stack([rows((4, 0, 0)), rows((0, 1, 0))])
    found = feddf.distance(rows((1, 2, 3)), teachers.mean(0), "kl", 2.0)
    torch.testing.assert_close(found, ensemble_divergence(rows((1, 2, 3)), teachers.mean(0), 2.0))
    # The mean of outputs, not of probabilities: must not be the second.
    p = rows((0.736125, 0.164252, 0.099624))
    expected = F.kl_div(rows((1, 2, 3)).log_softmax(1), p, reduction="batchmean")
    assert feddf.distance(rows((1, 2, 3)), teachers.mean(0), "kl").item() == pytest.approx(expected.item(), abs=1e-5)
    agreed.requires_grad_()
    feddf.distance(student.requires_grad_(), agreed, "cosine").backward()
    assert agreed.grad is None


@pytest.mark.parametrize("distance", ["mse", "cosine", "kl"])
def test_a_student_that_is_its_only_teacher_has_nothing_to_learn(distance: str) -> None:
    context = worker(config(clients__encoders="small_cnn", method__distance=distance, method__lr=1e-9))
    weights = context.initial("small_cnn")
    agreed = context.execute("embed", SERVER, 1, {"teachers": [("small_cnn", {"weights": weights})]}, None)[0].reply[
        "agreed"
    ]
    message = {"encoder": "small_cnn", "weights": weights, "agreed": agreed}
    outcome, _ = context.execute("distil", SERVER, 1, message, None)
    assert abs(outcome.metrics["small_cnn_first_loss"]) < 1e-6
    message["agreed"] = np.ascontiguousarray(agreed[::-1])
    assert context.execute("distil", SERVER, 1, message, None)[0].metrics["small_cnn_first_loss"] > 1e-6


def test_distilling_is_adam_whose_steps_shrink_by_a_cosine() -> None:
    context = worker(config(clients__encoders="small_cnn", method__steps=4, method__batch_size=9, method__lr=0.02))
    weights, public = context.initial("small_cnn"), context.federation.public
    assert public is not None
    agreed = np.random.default_rng(0).normal(size=(len(public), 4)).astype(np.float32)
    message = {"encoder": "small_cnn", "weights": weights, "agreed": agreed}
    found = context.execute("distil", SERVER, 1, message, None)[0].reply["weights"].vector
    service = client(context, SERVER, "distil")
    assert isinstance(service, feddf.Service)
    student = context.network("small_cnn", "a copy").train().requires_grad_(True)
    unpack(weights, student)
    optimizer = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], lr=0.02)
    for step, chosen in enumerate(service.steps(len(public), "small_cnn")):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 + math.cos(math.pi * step / 4)) / 2
        outputs = student.project(context.clean(context.images(public.pixels[chosen.numpy()])))
        optimizer.zero_grad()
        (outputs - torch.tensor(agreed)[chosen]).square().mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(student.parameters()), 5.0)
        optimizer.step()
    assert step == 3
    np.testing.assert_allclose(found, pack(student).vector, atol=1e-5)


def test_the_ensemble_is_the_mean_over_networks_of_any_architecture() -> None:
    context = worker(config(clients__encoders=["small_cnn", "small_cnn_bn", "small_cnn"]))
    teachers = [(name, context.initial(name)) for name in ("small_cnn", "small_cnn_bn")]
    sent = [(name, {"weights": weights}) for name, weights in teachers]
    agreed = context.execute("embed", SERVER, 1, {"teachers": sent}, None)[0].reply["agreed"]
    public, outputs = context.federation.public, []
    assert public is not None
    for name, weights in teachers:
        network = context.network(name, "a copy").eval()
        unpack(weights, network)
        with torch.no_grad():
            outputs.append(network.project(context.clean(context.images(public.pixels))).numpy())
    np.testing.assert_allclose(agreed, (outputs[0] + outputs[1]) / 2, atol=1e-6)
    assert np.abs(agreed - outputs[0]).max() > 1e-3


def test_an_architecture_starts_from_the_mean_of_its_own_clients_or_from_its_last_model() -> None:
    settings = config(clients__encoders=["small_cnn", "small_cnn_bn", "small_cnn"], data__limit=91)
    server, cohort = started(settings)
    assert isinstance(server, feddf.Server)
    first = server.models["small_cnn"]
    one, other = (first.with_vector(np.full(first.count, v, np.float32)) for v in (1, 4))
    found = server.start_of("small_cnn", [Reply(0, {"weights": one}), Reply(2, {"weights": other})])
    n = cohort.shares
    np.testing.assert_allclose(found.vector, (n[0] * 1 + n[2] * 4) / (n[0] + n[2]), rtol=1e-6)
    last = server.start_of("small_cnn_bn", [Reply(0, {"weights": one})])
    assert last is server.models["small_cnn_bn"]


def test_every_architecture_learns_each_round_and_distilling_brings_it_nearer() -> None:
    settings = config(
        clients__encoders=["small_cnn", "small_cnn_bn", "small_cnn"], method__steps=40, objective={"name": "simclr"}
    )
    server, cohort = started(settings)
    assert isinstance(server, feddf.Server)
    before = dict(server.models)
    cohort.begin_round(1, (0, 2))  # no client with small_cnn_bn
    server.round(1, cohort)
    assert all(np.abs(w.vector - before[name].vector).max() > 1e-4 for name, w in server.models.items())
    losses = cohort.metrics[SERVER]
    assert losses["small_cnn_bn_last_loss"] < losses["small_cnn_bn_first_loss"] / 2
    assert [s.client for s in server.evaluated_encoders()] == [0, 1, 2]


def test_an_architecture_is_distilled_as_if_it_were_the_only_one() -> None:
    """From its own mean towards the ensemble of all, with random numbers that no other architecture changes."""
    settings = config(clients__encoders=["small_cnn", "small_cnn_bn", "small_cnn"])
    (server, cohort), (before, _), context = started(settings), started(settings), worker(settings)
    assert isinstance(server, feddf.Server)
    assert isinstance(before, feddf.Server)
    cohort.begin_round(1, (0, 1, 2))
    server.round(1, cohort)
    replies = [
        Reply(c, context.execute("train", c, 1, {"weights": before.models[before.encoder(c)]}, None)[0].reply)
        for c in (0, 1, 2)
    ]
    teachers = [(before.encoder(reply.client), reply.fields) for reply in replies]
    agreed = context.execute("embed", SERVER, 1, {"teachers": teachers}, None)[0].reply["agreed"]
    assert list(server.models) == ["small_cnn", "small_cnn_bn"]
    for encoder in ("small_cnn_bn", "small_cnn"):
        message = {"encoder": encoder, "weights": before.start_of(encoder, replies), "agreed": agreed}
        alone = context.execute("distil", SERVER, 1, message, None)[0].reply["weights"]
        np.testing.assert_array_equal(server.models[encoder].vector, alone.vector)


def test_one_architecture_has_one_global_model() -> None:
    server, _ = played(config(train__rounds=1))
    (encoder,) = server.evaluated_encoders()
    assert encoder.client is None
    assert encoder.weights is server.state["models"]["small_cnn_bn"]


def test_what_has_no_use_is_refused() -> None:
    with pytest.raises(UserError, match=r"method.temperature: found 2.0; it needs method.distance=kl"):
        config(method__temperature=2)
    with pytest.raises(UserError, match=r"model.initial: found 'own'"):
        config(model__initial="own")
