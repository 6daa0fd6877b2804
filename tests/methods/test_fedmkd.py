"""FedMKD: who learns from which term, what is kept of a round, and a target that comes nearer to the student."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.methods import fedmkd
from rayfed_ssl.methods.fedmkd import Attention, distillation
from rayfed_ssl.objectives.base import target_modules
from rayfed_ssl.objectives.byol import regression
from rayfed_ssl.objectives.distillation import mixed_teacher
from rayfed_ssl.objectives.moco import queue_contrast
from tests.methods.rounds import client, config_of, played, started, worker
from tests.tensors import rows

close = torch.testing.assert_close
MIXED = ["small_cnn", "small_cnn_bn", "small_cnn"]
SMALL = {
    "data__public__source": "share",
    "data__public__share": 0.3,
    "clients__encoders": MIXED,
    "method__student": "small_cnn_bn",
    "method__epochs": 1,
    "method__batch_size": 9,
    "method__queue": 7,
    "method__attention_hidden": 6,
}


def config(**changes: object) -> RunConfig:
    return config_of("fedmkd", **{**SMALL, **changes})


def test_each_term_trains_its_query_only() -> None:
    o, mixed = rows((1, 1)).requires_grad_(), rows((1.2449187, 0.3775407)).requires_grad_()
    queue = rows((1, 0), (0, 1))
    of_student, of_attention = distillation(o, mixed, queue, queue, 0.1)
    assert of_student.item() == pytest.approx(0.2988560783, abs=1e-6)
    assert of_attention.item() == pytest.approx(1.1382494738, abs=1e-6)  # the released code's only term
    (gradient,) = torch.autograd.grad(of_student, o, retain_graph=True)
    assert gradient.abs().sum() > 0
    assert torch.autograd.grad(of_attention, o, allow_unused=True) == (None,)
    assert torch.autograd.grad(of_student, mixed, allow_unused=True) == (None,)
    one, other = rows((1, 0), (0, 1)), rows((-1, 0), (0, -1))
    terms = distillation(o, mixed, one, other, 0.1)  # each has negatives of its own
    close(terms[0], queue_contrast(o, mixed, one, 0.1))
    close(terms[1], queue_contrast(mixed, o, other, 0.1))


def test_attention_shares_a_head_and_divides_scores_by_its_width() -> None:
    torch.manual_seed(0)
    attention = Attention(4, 6, 3).eval()
    student, teachers = torch.randn(5, 4), torch.randn(2, 5, 4)
    found = attention(student, teachers)
    q = attention.head(student) @ attention.w_q
    scores = torch.stack([(q * (attention.head(t) @ attention.w_k)).sum(1) / 3 for t in teachers], dim=1)
    close(found, scores.softmax(dim=1))
    mixed_teacher(found, teachers).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in (attention.w_q, attention.w_k))


def distilled(**changes: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The student's state before and after a round with two teachers."""
    context = worker(config(**changes))
    drawn = [(name, context.initial(name)) for name in MIXED[:2]]
    teachers = [
        (name, {"weights": w.with_vector(w.vector * np.float32(1 + k))}) for k, (name, w) in enumerate(drawn, 1)
    ]
    before = {"student": context.initial("small_cnn_bn")}
    first = context.execute("distil", SERVER, 1, {"state": before, "teachers": teachers}, None)[0].reply
    return before, context.execute("distil", SERVER, 2, {"state": first, "teachers": teachers}, None)[0].reply | {
        "first": first
    }


def moved(a: Weights, b: Weights) -> float:
    return float(np.abs(a.vector[: a.parameters] - b.vector[: b.parameters]).max())


@pytest.mark.parametrize(
    ("changes", "student", "attention"),
    [
        ({"method__distillation": 0, "method__self_weight": 0}, False, False),
        ({"method__distillation": 0}, True, False),
        ({"method__self_weight": 0}, True, True),  # with the code's term alone the student would learn nothing
    ],
)
def test_student_and_attention_learn_from_their_terms(
    changes: dict[str, object], student: bool, attention: bool
) -> None:
    _, after = distilled(**changes, method__weight_decay=0)
    first = after["first"]
    assert (moved(after["student"], first["student"]) > 1e-6) == student
    assert (moved(after["attention"], first["attention"]) > 1e-6) == attention


def test_the_student_learns_nothing_through_the_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs ask the attention for weights, as constants: the attention's term alone leaves the student alone."""

    def attentions_term(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        of_student, of_attention = distillation(*given)
        return 0 * of_student, of_attention

    monkeypatch.setattr(fedmkd, "distillation", attentions_term)
    before, after = distilled(method__self_weight=0, method__weight_decay=0)
    assert moved(after["first"]["student"], before["student"]) == 0
    assert moved(after["student"], before["student"]) == 0
    assert moved(after["attention"], after["first"]["attention"]) > 1e-6


def test_queues_are_replaced_in_turn_and_kept() -> None:
    before, after = distilled()
    for name in ("mixtures", "students"):
        assert after[name].shape == (7, 4)
        assert np.abs(after[name] - after["first"][name]).max() > 1e-4
    _, long = distilled(method__queue=400)
    kept = long["first"]["mixtures"][-54:]  # 27 public images in two views; the second round added as many
    np.testing.assert_array_equal(long["mixtures"][-108:-54], kept)
    assert moved(after["first"]["student"], before["student"]) > 1e-4


def test_alignment_brings_a_client_nearer_to_the_frozen_student() -> None:
    context = worker(config(method__alignment_epochs=15))
    student = context.initial("small_cnn_bn")
    own = context.initial("small_cnn")
    message = {"encoder": "small_cnn", "sent": {"weights": own}, "student": student}
    target = context.execute("align", SERVER, 1, message, None)[0].reply["target"]
    public, near = context.federation.public, []
    assert public is not None
    images = context.clean(context.images(public.pixels))
    anchor, model = context.network("small_cnn_bn", "a copy").eval(), context.network("small_cnn", "a copy").eval()
    unpack(student, anchor)
    unpack(own, model)
    before = pack(*target_modules(model))
    predictor = context.network("small_cnn")  # as trained beside the target
    assert moved(target, before) > 1e-4
    with torch.no_grad():
        goal = anchor.project(images)
        for network in (model, predictor):
            outputs = network.predict(network.project(images))
            near.append(F.cosine_similarity(outputs, goal, dim=1).mean().item())
    assert near[1] > near[0]
    np.testing.assert_array_equal(pack(anchor).vector, student.vector)


def test_each_clients_alignment_has_randomness_of_its_own() -> None:
    """Of one model at one student, so that nothing else differs."""
    context = worker(config())
    message = {"encoder": "small_cnn", "sent": {"weights": context.initial("small_cnn")}}
    message["student"] = context.initial("small_cnn_bn")
    targets = [context.execute("align", SERVER, 1, message, None, number)[0].reply["target"] for number in (0, 1, 2, 1)]
    assert moved(targets[0], targets[1]) > 0
    assert moved(targets[1], targets[2]) > 0
    np.testing.assert_array_equal(targets[1].vector, targets[3].vector)


def test_a_client_keeps_what_it_trained_and_takes_the_servers_target() -> None:
    server, cohort = started(config())
    cohort.begin_round(1, (0, 2))
    server.round(1, cohort)
    cohort.end_round()
    states = dict(cohort.states())
    context = worker(config())
    for number in (0, 2):
        reply = context.execute("train", number, 1, {}, None)[0].reply
        np.testing.assert_array_equal(states[number]["model"].vector, reply["weights"].vector)
        message = {"encoder": MIXED[number], "sent": reply, "student": server.state["student"]["student"]}
        aligned = context.execute("align", SERVER, 1, message, None, number)[0].reply["target"]
        np.testing.assert_array_equal(states[number]["target"].vector, aligned.vector)
        # and it is what the next round begins with
        _, state = context.execute("train", number, 2, {}, states[number])
        _, other = context.execute("train", number, 2, {}, {"model": states[number]["model"]})
        assert moved(state["model"], other["model"]) > 0
    assert 1 not in states or "target" not in states[1]


def test_the_student_is_global_beside_the_clients_own() -> None:
    server, _ = played(config(train__rounds=1))
    assert [s.client for s in server.evaluated_encoders()] == [None, 0, 1, 2]
    assert isinstance(server, fedmkd.Server)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match=r"method.student: found null with several clients.encoders"):
        config(method__student=None)
    for target in ("reset", "averaged"):
        said = f"^objective.target: found '{target}'; fedmkd sends each client its target; allowed: local$"
        with pytest.raises(UserError, match=said):
            config(objective={"name": "byol", "target": target})
    with pytest.raises(UserError, match=r"method.student"):
        config(method__student="nobody")


def test_the_students_own_loss_is_byols_across_views() -> None:
    context = worker(config(clients__encoders="small_cnn", method__student="small_cnn", method__batch_size=27))
    weights = context.initial("small_cnn")
    message = {"state": {"student": weights}, "teachers": [("small_cnn", {"weights": weights})]}
    found = context.execute("distil", SERVER, 1, message, None)[0].metrics["byol"]
    service, network = client(context, SERVER, "distil"), context.network("small_cnn", "a copy")
    unpack(weights, network)
    public = context.federation.public
    assert public is not None
    (rows,) = service.batches(27, 1, 27)
    views = service.views(context.images(public.pixels)[rows], service.generator("views"), 2)
    with torch.no_grad():
        (z_a, z_b) = (network.project(view) for view in views)
        p_a, p_b = network.predict(z_a), network.predict(z_b)
    assert found == pytest.approx(float(regression(p_a, z_b) + regression(p_b, z_a)), rel=1e-5)
    assert found != pytest.approx(float(regression(p_a, z_a) + regression(p_b, z_b)), rel=1e-5)  # must not be one view


def test_teachers_are_asked_in_eval_mode_and_stay_as_they_were_sent() -> None:
    context = worker(config())
    teachers = [(name, {"weights": context.initial(name)}) for name in MIXED[:2]]
    context.execute(
        "distil", SERVER, 1, {"state": {"student": context.initial("small_cnn_bn")}, "teachers": teachers}, None
    )
    for name, sent in teachers:
        network = context.network(name, "teacher")
        assert not network.training
        np.testing.assert_array_equal(pack(network).vector, sent["weights"].vector)  # running statistics, too


def test_teachers_of_an_architecture_share_a_module_and_each_teaches_what_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = worker(config(method__batch_size=27))
    initial = context.initial("small_cnn_bn")
    teachers = [initial.with_vector(initial.vector * np.float32(1 + k / 4)) for k in range(3)]
    taught: list[torch.Tensor] = []

    def watched(weights: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        taught.append(outputs)
        return mixed_teacher(weights, outputs)

    monkeypatch.setattr(fedmkd, "mixed_teacher", watched)
    counts = []
    for asked in (teachers[:1], teachers):
        message = {"state": {"student": initial}, "teachers": [("small_cnn_bn", {"weights": t}) for t in asked]}
        context.execute("distil", SERVER, 1, message, None)
        counts.append(len(context.networks))
    assert counts[0] == counts[1]
    service, network = client(context, SERVER, "distil"), context.network("small_cnn_bn", "a copy").eval()
    images = context.federation.public
    assert images is not None
    (rows,) = service.batches(27, 1, 27)
    views = service.views(context.images(images.pixels)[rows], service.generator("views"), 2)
    expected = []
    for weights in teachers:
        unpack(weights, network)
        expected.append(torch.cat([network.project(view) for view in views]))
    close(taught[-1], torch.stack(expected))


def test_a_step_of_alignment_is_towards_the_students_other_view() -> None:
    one = {"method__alignment_epochs": 1, "method__batch_size": 27, "method__weight_decay": 0, "method__momentum": 0}
    context = worker(config(**one))
    student, own = context.initial("small_cnn_bn"), context.initial("small_cnn")
    message = {"encoder": "small_cnn", "sent": {"weights": own}, "student": student}
    found = context.execute("align", SERVER, 1, message, None)[0].reply["target"]
    service, public = client(context, SERVER, "align"), context.federation.public
    assert public is not None
    anchor, model = context.network("small_cnn_bn", "a copy").eval(), context.network("small_cnn", "a copy").train()
    model.requires_grad_()
    unpack(student, anchor)
    unpack(own, model)
    (rows,) = service.batches(27, 1, 27)
    views = service.views(context.images(public.pixels)[rows], service.generator("views"), 2)
    with torch.no_grad():
        goals = [anchor.project(view) for view in views[::-1]]
    loss = sum(regression(model.predict(model.project(v)), goal) for v, goal in zip(views, goals, strict=True))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= context.config.method_as(fedmkd.Config).lr * parameter.grad
    np.testing.assert_allclose(found.vector, pack(*target_modules(model)).vector, rtol=1e-5, atol=1e-6)
