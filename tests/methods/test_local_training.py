"""What clients of all methods do alike: the learning rate, the clipped gradient, the own model; and what a plain mean
does with what they reply.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import TASKS, tiny


def test_the_learning_rate_falls_along_a_cosine_over_rounds() -> None:  # r = t - 1
    config = tiny("fedsimclr", train__rounds=100, train__optimizer={"lr": 0.032, "schedule": "cosine"})
    context = Worker(config, load_federation(config))
    for t, printed in ((1, 0.032), (26, 0.0273137), (51, 0.016), (76, 0.0046863), (100, 0.0000079)):
        client = EncoderClient(context, 0, t, "train", {})
        assert client.learning_rate == pytest.approx(printed, abs=5e-8)
        assert client.optimizer([torch.zeros(1)]).param_groups[0]["lr"] == client.learning_rate
    constant = tiny("fedsimclr", train__rounds=100, train__optimizer={"lr": 0.032})
    assert EncoderClient(Worker(constant, context.federation), 0, 76, "train", {}).learning_rate == 0.032


def test_the_gradient_of_a_step_is_clipped_to_the_norm() -> None:
    def moved(limit: float | None) -> float:
        optimizer = {"lr": 0.5, "momentum": 0, "clip_norm": limit}
        config = tiny("fedsimclr", train__local_steps=1, train__optimizer=optimizer)
        context = Worker(config, load_federation(config))
        start = context.initial("small_cnn_bn")
        end = context.execute("train", 0, 1, {"weights": start}, None)[0].reply["weights"]
        return float(np.linalg.norm((end.vector - start.vector)[: start.parameters].astype(np.float64)))

    assert moved(0.01) == pytest.approx(0.5 * 0.01, rel=1e-3)
    assert moved(None) == pytest.approx(moved(1e6), rel=1e-5)
    assert moved(None) > 0.05  # so the first was clipped


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedfoa", {}),
        ("local", {"objective": {"name": "simclr"}}),
        ("local", {"objective": {"name": "supervised"}, **TASKS}),
    ],
)
def test_a_client_that_keeps_its_model_goes_on_from_it(method: str, changes: dict[str, Any]) -> None:
    def context_of(lr: float) -> Worker:
        config = tiny(method, **changes, train__optimizer={"lr": lr, "momentum": 0})
        return Worker(config, load_federation(config))

    first, state = context_of(0.05).execute("train", 1, 1, {}, None)
    assert "weights" not in first.reply
    kept, count = state["model"].vector, state["model"].parameters
    still = context_of(1e-12)  # ends a round where it started it
    on, anew = (still.execute("train", 1, 2, {}, known)[1]["model"].vector for known in (state, None))
    np.testing.assert_allclose(on[:count], kept[:count], atol=1e-7)
    assert np.abs(on - anew)[:count].max() > 1e-3


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_models_count_by_their_images_or_alike(weights: str) -> None:
    config = tiny("fedsimclr", method__weights=weights)
    federation = load_federation(config)
    cohort = LocalCohort(config, federation, Ledger())
    server = METHODS["fedsimclr"].server(Setup(config, federation, InitialWeights(config, federation)))
    server.start(cohort)
    inner, replies = cohort.worker.execute, {}

    def execute(operation: str, client: int, round: int, message: Any, state: Any, visit: int) -> Any:
        outcome, state = inner(operation, client, round, message, state, visit)
        replies[client] = outcome.reply["weights"].vector.astype(np.float64)
        return outcome, state

    cohort.worker.execute = execute  # type: ignore[method-assign]
    asked = (0, 1, 3)
    cohort.begin_round(1, asked)
    server.round(1, cohort)
    sizes = {c: len(federation.shards[c]["train"]) for c in asked}
    by_images = sum(sizes[c] * replies[c] for c in asked) / sum(sizes.values())
    alike = sum(replies[c] for c in asked) / 3
    assert np.abs(by_images - alike).max() > 1e-3
    np.testing.assert_allclose(server.weights.vector, by_images if weights == "size" else alike, atol=1e-6)
