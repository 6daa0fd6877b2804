"""Objectives with momentum targets, memories and prototypes in whole runs: what lasts from round to round, and nothing
else; the same bits however interrupted.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import pack
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.objectives.base import ObjectiveConfig, TargetRule
from rayfed_ssl.simulation.memory import estimate
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import encoders, measured, run_locally, tiny

NEW: dict[str, dict[str, Any]] = {
    "moco": {"name": "moco", "queue": 48},
    "moco kept": {"name": "moco", "queue": 48, "keep_queue": True, "target": "local"},
    "swav": {"name": "swav", "freeze_rounds": 1},
    "swav queued": {"name": "swav", "queue": 24, "keep_queue": True},
    "nnclr": {"name": "nnclr", "queue": 48, "keep_queue": False},
    "nnclr kept": {"name": "nnclr", "queue": 48, "keep_queue": True},
    "dino": {"name": "dino", "target": "reset", "keep_center": False},
    "dino kept": {"name": "dino", "target": "local", "keep_center": True},
    "dino averaged": {"name": "dino", "target": "averaged", "keep_center": True},
    "barlow": {"name": "barlow"},
    "vicreg": {"name": "vicreg"},
    "align_uniform": {"name": "align_uniform"},
}


def config(case: str, method: str = "fedprox", **changes: object) -> RunConfig:
    own: dict[str, object] = {"method__mu": 0.0} if method == "fedprox" else {}
    return tiny(method, objective=NEW[case], model__prototypes=12, train__rounds=2, data__limit=120, **own, **changes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "method"),
    [
        ("moco kept", "fedprox"),
        ("moco kept", "centralized"),
        ("swav queued", "fedprox"),
        ("nnclr kept", "fedprox"),
        ("dino kept", "fedprox"),
        ("dino kept", "centralized"),
        ("dino averaged", "fedprox"),
    ],
)
def test_a_resumed_run_equals_the_whole_one(case: str, method: str, tmp_path: Path) -> None:
    chosen = config(case, method)
    run_locally(chosen, tmp_path / "whole")
    seen: list[int] = []
    run_locally(chosen, tmp_path / "run", report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= 1)
    run_locally(chosen, tmp_path / "run", resume=True)
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    values = measured(tmp_path / "whole")
    assert values == measured(tmp_path / "run")
    assert all(math.isfinite(value) for value in values.values())


@pytest.mark.parametrize("case", NEW)
def test_the_same_work_gives_the_same_finite_weights_on_any_bench(case: str) -> None:
    first, again = (trained(config(case), 2)[0]["weights"].vector for _ in range(2))
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, again)


def trained(chosen: RunConfig, rounds: int, states: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """The last reply and state of client 0 over rounds of its own, always from the initial weights."""
    federation = load_federation(chosen)
    context, state = Worker(chosen, federation), dict(states or {})
    weights = context.initial(chosen.clients.encoder(0))
    for t in range(1, rounds + 1):
        outcome, state = context.execute("train", 0, t, {"weights": weights}, state)
    return outcome.reply, state


def test_a_queue_is_kept_only_where_that_is_asked() -> None:
    assert trained(config("moco"), 1)[1] == {}
    _, state = trained(config("moco kept"), 1)
    assert sorted(state) == ["memory", "target"]
    queue = state["memory"]["queue"]
    assert queue.shape == (48, 8)
    np.testing.assert_allclose(np.linalg.norm(queue, axis=1), 1, rtol=1e-5)
    assert trained(config("swav"), 1)[1] == {}
    _, state = trained(config("swav queued"), 1)
    assert {name: values.shape for name, values in state["memory"].items()} == {"queue_a": (24, 8), "queue_b": (24, 8)}
    assert trained(config("nnclr"), 1)[1] == {}
    assert trained(config("nnclr kept"), 1)[1]["memory"]["queue"].shape == (48, 8)


def test_a_teacher_lasts_as_its_rule_says_with_its_own_prototypes_and_its_center() -> None:
    assert trained(config("dino"), 1)[1] == {}
    chosen = config("dino kept")
    _, state = trained(chosen, 1)
    assert sorted(state) == ["memory", "target"]
    assert state["memory"]["center"].shape == (12,)
    assert np.abs(state["memory"]["center"]).max() > 0
    federation = load_federation(chosen)
    context = Worker(chosen, federation)
    weights = context.initial(chosen.clients.encoder(0))
    assert state["target"].count == weights.count  # encoder, projector, prototypes: all that a client trains
    shifted = {**state, "target": state["target"].with_vector(state["target"].vector + np.float32(0.5))}
    client = context.method.client(context, 0, 2, "train", shifted)
    client.load(weights)
    assert client.target is not None
    online = context.network(chosen.clients.encoder(0))
    assert pack(client.target).vector.tobytes() == shifted["target"].vector.tobytes()
    assert not client.target.prototype_rows.equal(online.prototype_rows)
    kept = context.execute("train", 0, 2, {"weights": weights}, state)[0].reply["weights"].vector
    for other in (shifted, {**state, "memory": {"center": -state["memory"]["center"]}}):
        assert not np.array_equal(
            kept, context.execute("train", 0, 2, {"weights": weights}, other)[0].reply["weights"].vector
        )


def test_an_averaged_teacher_travels_with_its_prototypes() -> None:
    """In round 2 what comes down is the teacher; without it, in round 1, it is a copy of the network."""
    chosen = config("dino averaged")
    reply, state = trained(chosen, 1)
    assert sorted(reply) == ["target", "weights"]
    assert sorted(state) == ["memory"]
    context = Worker(chosen, load_federation(chosen))
    client = context.method.client(context, 0, 2, "train", {})
    client.load(reply["weights"], reply["target"])
    assert client.target is not None
    assert pack(client.target).vector.tobytes() == reply["target"].vector.tobytes()
    client.load(reply["weights"])
    assert pack(client.target).vector.tobytes() == reply["weights"].vector.tobytes()


def test_a_kept_queue_is_what_the_next_round_starts_with() -> None:
    chosen = config("moco kept")
    _, state = trained(chosen, 1)
    federation = load_federation(chosen)
    context = Worker(chosen, federation)
    weights = context.initial(chosen.clients.encoder(0))
    same, _ = context.execute("train", 0, 2, {"weights": weights}, state)
    other = {**state, "memory": {"queue": -state["memory"]["queue"]}}
    different, _ = context.execute("train", 0, 2, {"weights": weights}, other)
    assert not np.array_equal(same.reply["weights"].vector, different.reply["weights"].vector)
    again, _ = Worker(chosen, federation).execute("train", 0, 2, {"weights": weights}, state)
    assert np.array_equal(same.reply["weights"].vector, again.reply["weights"].vector)


def test_the_one_learners_queue_travels_with_its_weights() -> None:
    chosen = config("moco kept", "centralized")
    context = Worker(chosen, load_federation(chosen))
    message = {"weights": context.initial(chosen.clients.encoder(0)), "target": None}
    first, _ = context.execute("pretrain", SERVER, 1, {**message, "memory": None}, {})
    queue = first.reply["memory"]["queue"]
    assert queue.shape == (48, 8)
    found = [
        context.execute("pretrain", SERVER, 2, {**message, "memory": {"queue": values}}, {})[0].reply["weights"].vector
        for values in (queue, queue, -queue)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_the_key_encoder_starts_each_round_as_the_downloaded_one() -> None:
    chosen = config("moco", train__local_steps=1)
    federation = load_federation(chosen)
    context = Worker(chosen, federation)
    weights = context.initial(chosen.clients.encoder(0))
    client = context.method.client(context, 0, 2, "train", {})
    client.load(weights)
    assert client.target is not None
    online = dict(client.network.named_parameters())
    for name, parameter in client.target.named_parameters():
        assert parameter.equal(online[name])


def test_prototypes_are_unit_rows_that_move_after_the_first_round_only() -> None:
    chosen = config("swav")
    federation = load_federation(chosen)
    context = Worker(chosen, federation)
    weights = context.initial(chosen.clients.encoder(0))
    network = context.network(chosen.clients.encoder(0))
    moved = []
    for t in (1, 2):
        context.execute("train", 0, t, {"weights": weights}, {})
        trained_rows = network.prototype_rows.detach().clone()
        np.testing.assert_allclose(trained_rows.norm(dim=1).numpy(), 1, rtol=1e-5)
        client = context.method.client(context, 0, t, "train", {})
        client.load(weights)
        moved.append((trained_rows - network.prototype_rows.detach()).abs().max().item())
    assert moved[0] < 1e-6
    assert moved[1] > 1e-4


def test_memory_that_is_kept_is_counted() -> None:
    federation = load_federation(config("moco"))
    base, kept = (estimate(config(case), federation).state for case in ("moco", "swav queued"))
    assert base == 0
    assert kept == 2 * 24 * 8 * 4
    with_target = estimate(config("moco kept"), federation).state
    _, state = trained(config("moco kept"), 1)
    assert with_target == state["memory"]["queue"].nbytes + state["target"].vector.nbytes
    _, state = trained(config("dino kept"), 1)
    needed = state["memory"]["center"].nbytes + state["target"].vector.nbytes
    assert estimate(config("dino kept"), federation).state == needed


def test_a_third_party_key_called_target_is_no_momentum_target() -> None:
    class Distances(ObjectiveConfig):
        name: Literal["distances"] = "distances"
        target: Literal["local", "averaged"] = "local"  # which mean the distances are taken to, say

    class Following(ObjectiveConfig):
        name: Literal["following"] = "following"
        teacher: TargetRule = "averaged"

        @property
        def momentum_target(self) -> TargetRule:
            return self.teacher

    run = tiny("fedavg")
    for block in (Distances(), Distances(target="averaged")):
        other = run.model_copy(update={"objective": block})
        assert (other.keeps_target, other.averages_target) == (False, False)
    for rule in ("local", "reset", "averaged"):
        other = run.model_copy(update={"objective": Following(teacher=rule)})
        assert (other.keeps_target, other.averages_target) == (rule == "local", rule == "averaged")


@pytest.mark.parametrize(
    ("method", "objective", "message"),
    [
        ("fedbyol", {"decay": "x"}, "objective.decay: found 'x'; must be a number"),  # the method's, not named
        ("local", {"name": "moco", "queue": 0}, "objective.queue: found 0; must be at least 1"),
        (
            "local",
            {"name": "swav", "prototypes": 9},
            "objective.prototypes: found 9; unknown key, allowed here: name, temperature, epsilon, iterations, "
            "freeze_rounds, queue, keep_queue",
        ),
        ("fedbyol", {"name": "moco"}, "objective.name: found 'moco'; fedbyol allows byol"),
        (
            "local",
            {"name": "moco", "target": "averaged"},
            "objective.target: found 'averaged'; local averages no weights with targets; allowed: local, reset",
        ),
    ],
)
def test_mistakes_are_one_line(method: str, objective: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build({"method": {"name": method}, "objective": objective}, {}, origin="run.yaml")
    assert str(caught.value) == message
