"""Centralized: plain training on the union of all shards, with nothing on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import centralized
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from rayfed_ssl.testing.tiny import encoders
from tests.dotted import dotted

BASE: dict[str, Any] = {
    "method": {"name": "centralized"},
    "data": {
        "name": "digits", "image_size": 8, "limit": 90, "test_limit": 40,
        "partition": {"name": "class_blocks", "classes": 3},
    },
    "clients": {"count": 3, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25, "projector": {"hidden": [8], "dim": 4}},
    "augment": {"preset": "digits"},
    "train": {"rounds": 2, "batch_size": 10, "optimizer": {"lr": 0.05}},
    "evaluation": {"protocols": ["knn"], "every": 0, "fewshot": {"draws": 1}},
}  # fmt: skip


def config_of(**changes: object) -> RunConfig:
    return build(BASE, dotted(**changes), origin="test")


def played(config: RunConfig, rounds: int) -> tuple[centralized.Server, LocalCohort]:
    federation = load_federation(config)
    cohort = LocalCohort(config, federation, Ledger())
    server = centralized.Server(Setup(config, federation, InitialWeights(config, federation)))
    server.start(cohort)
    for t in range(1, rounds + 1):
        cohort.begin_round(t, federation.clients)
        server.round(t, cohort)
        cohort.end_round()
    return server, cohort


def test_it_trains_on_every_clients_images_and_on_no_others() -> None:
    config = config_of(data__public={"source": "share", "share": 0.2})
    context = Worker(config, load_federation(config))
    learner = centralized.Client(context, SERVER, 1, "pretrain", {})
    assert context.federation.public_indices is not None
    held = np.concatenate([shard["train"] for shard in context.federation.shards])
    assert sorted(learner.indices.tolist()) == sorted(set(held.tolist()))
    assert not set(learner.indices.tolist()) & set(context.federation.public_indices.tolist())


def test_a_round_shows_each_image_once_per_epoch_or_takes_local_steps() -> None:
    server, cohort = played(config_of(train__local_epochs=2), 1)
    union = int(cohort.federation.sizes.sum())
    assert server.metrics["train/images"] == 2 * (union // 10) * 10
    server, _ = played(config_of(train__local_steps=3), 1)
    assert server.metrics["train/images"] == 30


def test_participation_and_partition_do_not_change_what_is_learnt() -> None:
    def learnt(**changes: object) -> np.ndarray:
        return played(config_of(data__partition={"name": "iid"}, **changes), 2)[0].weights.vector

    np.testing.assert_array_equal(learnt(), learnt(participation__fraction=0.34))
    np.testing.assert_array_equal(learnt(), learnt(clients__count=1))


def test_a_momentum_target_lives_on_between_rounds() -> None:
    kept = played(config_of(objective={"name": "byol", "target": "local"}), 2)[0]
    assert kept.state["target"] is not None
    reset = played(config_of(objective={"name": "byol", "target": "reset"}), 2)[0]
    assert reset.state["target"] is None
    assert not np.array_equal(kept.weights.vector, reset.weights.vector)


ADAM = {"name": "adam", "lr": 0.01}


def test_moments_live_on_between_rounds_where_they_are_kept() -> None:
    """Adam has counted the steps of all rounds; the first round is that of a run that keeps nothing."""
    keeping, anew = config_of(train__optimizer={**ADAM, "keep": True}), config_of(train__optimizer=ADAM)
    (kept, _), (fresh, _) = played(keeping, 1), played(anew, 1)
    np.testing.assert_array_equal(kept.weights.vector, fresh.weights.vector)
    (kept, cohort), (fresh, _) = played(keeping, 2), played(anew, 2)
    steps = int(cohort.federation.sizes.sum()) // 10  # of a round
    assert {float(moments["step"]) for moments in kept.state["optimizer"].values()} == {2.0 * steps}
    assert fresh.state["optimizer"] is None
    assert not np.array_equal(kept.weights.vector, fresh.weights.vector)


def test_a_resumed_run_has_the_moments_of_its_checkpoint(tmp_path: Path) -> None:
    config, seen = config_of(train__optimizer={**ADAM, "keep": True}, evaluation__protocols=[]), list[int]()
    loop.run(config, tmp_path / "whole", LocalCohort)
    parted = tmp_path / "parted"
    loop.run(config, parted, LocalCohort, report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= 1)
    loop.run(config, parted, LocalCohort, resume=True)
    assert encoders(parted) == encoders(tmp_path / "whole")


def test_a_checkpoint_of_a_version_that_kept_no_moments_goes_on() -> None:
    config = config_of(train__optimizer={**ADAM, "keep": True})
    server, cohort = played(config, 1)
    del server.state["optimizer"]
    cohort.begin_round(2, cohort.federation.clients)
    server.round(2, cohort)
    assert server.state["optimizer"]


def test_a_run_books_no_bytes_and_learns(tmp_path: Path) -> None:
    summary = loop.run(config_of(train__rounds=3), tmp_path / "run", LocalCohort)
    assert summary["communication"] == {"up_bytes": 0, "down_bytes": 0}
    assert pq.read_table(tmp_path / "run" / "communication.parquet").num_rows == 0
    assert 0 <= summary["accuracy"]["knn"] <= 1
    rows = pq.read_table(tmp_path / "run" / "metrics.parquet").to_pylist()
    losses = {row["round"]: row["value"] for row in rows if row["tag"] == "train/loss"}
    assert set(losses) == {1, 2, 3}
    assert losses[3] < losses[1]
    assert {row["client"] for row in rows} == {None}
    assert summary["train_images_per_s"] > 0


@pytest.mark.parametrize("objective", ["simsiam", "spectral", "autoencoder", "rotation", "supervised"])
def test_every_objective_trains(objective: str) -> None:
    server, _ = played(config_of(objective={"name": objective}, train__local_steps=2), 1)
    assert np.isfinite(server.metrics["train/loss"])


def test_plugins_are_refused() -> None:
    with pytest.raises(UserError, match=r"plugins: found fedfoa; .* allowed: none"):
        config_of(plugins=[{"name": "fedfoa"}], train__batch_size=16)
