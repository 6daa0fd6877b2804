"""The baselines of FedLinked's setting: trunks averaged under heads that stay, everybody alone, FedAvg with labels."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from rayfed_ssl.base.weights import pack, unpack
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated.clock import drop_outs
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.methods import METHODS
from rayfed_ssl.methods.parts.tasks import TaskClient
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests.dotted import dotted

TASKS = [[0, 1], [6, 3, 1], [5, 2]]
TINY: dict[str, Any] = {
    "data": {"name": "digits", "image_size": 8, "limit": 300, "test_limit": 50, "tasks": TASKS,
             "public": {"share": 0.25}},
    "clients": {"count": 3, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25},
    "train": {"rounds": 2, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.02}},
    "augment": {"preset": "none"},
    "evaluation": {"protocols": []},
}  # fmt: skip


def tiny(method: str, **changes: Any) -> RunConfig:
    document = {**TINY, "method": {"name": method}, "objective": {"name": "supervised"}}
    return build(document, dotted(**changes), origin="tiny")


def run(folder: Path, method: str, **changes: Any) -> tuple[dict[str, Any], LocalCohort, list[tuple[Any, ...]]]:
    """The summary, the cohort and (round, operation, client, fields, new state) of every operation."""
    asked: list[tuple[Any, ...]] = []
    kept: list[LocalCohort] = []

    def connect(*args: Any) -> LocalCohort:
        cohort = LocalCohort(*args)
        inner = cohort.worker.execute

        def execute(operation: str, client: int, round: int, message: Any, state: Any, visit: int) -> Any:
            outcome, new = inner(operation, client, round, message, state, visit)
            asked.append((round, operation, client, {**message, **outcome.reply}, new))
            return outcome, new

        cohort.worker.execute = execute  # type: ignore[method-assign]
        kept.append(cohort)
        return cohort

    summary = loop.run(tiny(method, **changes), folder, connect)
    return summary, kept[0], asked


def worker_of(context: Worker, client: int, operation: str, state: dict[str, Any]) -> Any:
    return context.method.client(context, client, 1, operation, dict(state))


def parts(context: Worker, client: int, weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """(trunk, head) of a client's model as flat arrays."""
    network = worker_of(context, client, "train", {}).network
    unpack(weights, network)
    return pack(network.encoder).vector, pack(network.classifier).vector


# -- fedavg_trunk ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trunk_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    folder = tmp_path_factory.mktemp("trunk") / "run"
    return folder, *run(folder, "fedavg_trunk")


@pytest.mark.long
def test_trunks_are_averaged_uniformly_and_heads_stay(trunk_run: tuple[Any, ...]) -> None:
    """Fine-tuning aside, a head is what it was; the trunk is the plain mean, although sizes differ."""
    _, _, cohort, asked = trunk_run
    context = cohort.worker
    trained = {c: s["model"] for r, o, c, _, s in asked if (r, o) == (1, "train")}
    trunks = np.array([parts(context, c, trained[c])[0] for c in range(3)], np.float64)
    sent = next(m["trunk"] for r, o, c, m, _ in asked if (r, o, c) == (1, "adopt", 0))
    np.testing.assert_allclose(sent.vector, trunks.mean(0), atol=1e-7)
    sizes = context.federation.sizes
    assert len(set(sizes)) > 1
    assert np.abs(sent.vector - np.average(trunks, axis=0, weights=sizes)).max() > 1e-4
    for client in range(3):
        worker = worker_of(context, client, "adopt", {"model": trained[client]})
        head = parts(context, client, trained[client])[1]
        worker.load_own()
        unpack(sent, worker.network.encoder)
        np.testing.assert_array_equal(parts(context, client, worker.weights)[1], head)
        adopted = next(s["model"] for r, o, c, _, s in asked if (r, o, c) == (1, "adopt", client))
        np.testing.assert_array_equal(parts(context, client, adopted)[0], sent.vector)  # frozen while the head moves
        assert not np.array_equal(parts(context, client, adopted)[1], head)


def test_trunks_count_by_their_images_on_request(tmp_path: Path) -> None:
    changes = {"method__weights": "size", "train__rounds": 1, "method__rollback": False}
    _, cohort, asked = run(tmp_path / "run", "fedavg_trunk", **changes)
    trunks = np.array([m["trunk"].vector for _, o, _, m, _ in asked if o == "train"], np.float64)
    sent = next(m["trunk"].vector for _, o, _, m, _ in asked if o == "adopt")
    sizes = [len(shard["train"]) for shard in cohort.federation.shards]
    np.testing.assert_allclose(sent, sum(n * t for n, t in zip(sizes, trunks, strict=True)) / sum(sizes), atol=1e-7)
    assert np.abs(sent - trunks.mean(0)).max() > 1e-4


def test_heads_are_fine_tuned_for_the_configured_epochs() -> None:
    config = tiny("fedavg_trunk", method__fine_tune_epochs=3)
    context = Worker(config, load_federation(config))
    trunk = pack(worker_of(context, 1, "train", {}).network.encoder)
    steps: list[int] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(1))
    try:
        context.execute("adopt", 1, 1, {"trunk": trunk}, None)
    finally:
        handle.remove()
    images = len(context.federation.shards[1]["train"])
    assert len(steps) == 3 * (images // 16) > 0


def test_averaging_identical_trunks_changes_nothing(trunk_run: tuple[Any, ...]) -> None:
    """Equal up to the fixed point's 2^-40."""
    from rayfed_ssl.federated.aggregation import FixedPointSum

    trunk = next(m["trunk"] for r, o, c, m, _ in trunk_run[3] if (r, o) == (1, "adopt"))
    total = FixedPointSum()
    for _ in range(3):
        total.add(1 / 3, {"trunk": trunk})
    np.testing.assert_allclose(total.mean()["trunk"].vector, trunk.vector, atol=2.0**-39)


def test_trunk_bytes(trunk_run: tuple[Any, ...]) -> None:
    """The trunk each way per client and round, its BatchNorm buffers in rows of their own; no head."""
    folder, summary, cohort, _ = trunk_run
    rows = pq.read_table(folder / "communication.parquet").to_pylist()
    trunk = pack(cohort.worker.network("small_cnn_bn", classes=2).encoder)
    size, buffers = 4 * trunk.parameters, 4 * (trunk.vector.size - trunk.parameters)
    booked = {(r["round"], r["client"], r["direction"], r["operation"], r["field"]): r["bytes"] for r in rows}
    ways = [("up", "train"), ("down", "adopt")]
    expected: dict[tuple[Any, ...], int] = {}
    for t, c, way in itertools.product((1, 2), range(3), ways):
        expected |= {(t, c, *way, "trunk"): size, (t, c, *way, "trunk.buffers"): buffers}
    assert booked == expected
    assert set(summary["accuracy"]["task"]) == {"0", "1", "2"}


@pytest.mark.long
def test_the_labelled_public_images_of_the_own_task_join_in(tmp_path: Path) -> None:
    config = tiny("fedavg_trunk", method__labelled_public=True)
    federation = load_federation(config)
    context = Worker(config, federation)
    assert federation.public is not None
    for client, task in enumerate(TASKS):
        worker = worker_of(context, client, "train", {})
        pixels, labels = worker.images()
        own = federation.shards[client]["train"]
        mine = np.isin(federation.public.labels, task)
        assert len(pixels) == len(labels) == len(own) + mine.sum()
        raw = np.concatenate([federation.dataset.train.labels[own], federation.public.labels[mine]])
        assert labels.tolist() == [task.index(label) for label in raw]
        shown = np.concatenate([federation.dataset.train.pixels[own], federation.public.pixels[mine]])
        np.testing.assert_array_equal(pixels.permute(0, 2, 3, 1).numpy(), shown)
    shared = sum(1 in task for task in TASKS)
    assert shared == 2  # a class of two clients: each sees the public images of both
    _, _, asked = run(tmp_path / "with", "fedavg_trunk", method__labelled_public=True, train__rounds=1)
    _, _, plain = run(tmp_path / "without", "fedavg_trunk", train__rounds=1)
    one, other = (next(m["trunk"].vector for r, o, c, m, _ in a if o == "adopt") for a in (asked, plain))
    assert not np.array_equal(one, other)


def test_trunks_must_be_alike() -> None:
    with pytest.raises(ConfigError, match=r"clients\.encoders: fedavg_trunk averages weights"):
        tiny("fedavg_trunk", clients__encoders=["small_cnn", "small_cnn_bn", "small_cnn"])
    with pytest.raises(ConfigError, match=r"data\.tasks: found none; fedavg_trunk needs"):
        tiny("fedavg_trunk", data__tasks=None)


# -- local -------------------------------------------------------------------------------------------------------------


def test_alone_nothing_is_sent_and_nobody_matters_to_anybody(tmp_path: Path) -> None:
    summary, cohort, asked = run(tmp_path / "three", "local")
    assert summary["communication"] == {"up_bytes": 0, "down_bytes": 0}
    assert set(summary["accuracy"]["task"]) == {"0", "1", "2"}
    assert {operation for _, operation, *_ in asked} == {"pretrain", "train", "roll_back"}
    # the same client on a context of its own comes to the same bits
    context = Worker(cohort.config, cohort.federation)
    state: dict[str, Any] = {}
    for t, operation in ((1, "pretrain"), (1, "train"), (2, "train"), (2, "roll_back")):
        outcome, state = context.execute(operation, 1, t, {}, state)
        assert outcome.reply == {}
    np.testing.assert_array_equal(state["model"].vector, dict(cohort.states())[1]["model"].vector)


def test_everybody_starts_from_the_same_trunk() -> None:
    config = tiny("local")
    context = Worker(config, load_federation(config))
    trunks = [parts(context, c, context.initial("small_cnn_bn", len(TASKS[c])))[0] for c in range(3)]
    np.testing.assert_array_equal(trunks[0], trunks[1])
    np.testing.assert_array_equal(trunks[0], trunks[2])


def test_alone_on_a_self_supervised_objective(tmp_path: Path) -> None:
    """Per-client encoders under the usual protocols; the first client's round is that of FedAvg's first round."""
    changes = {
        "data": {"name": "digits", "image_size": 8, "limit": 120, "test_limit": 50, "tasks": None},
        "objective": {"name": "simclr"}, "evaluation__protocols": ["knn"], "train__rounds": 1,
        "clients__encoders": ["small_cnn", "small_cnn_bn", "small_cnn"], "model__initial": "common",
    }  # fmt: skip
    summary, _, asked = run(tmp_path / "ssl", "local", **changes)
    assert summary["communication"] == {"up_bytes": 0, "down_bytes": 0}
    assert set(summary["accuracy"]) == {"knn"}
    assert set(summary["accuracy"]["knn"]) == {"0", "1", "2"}
    assert [operation for _, operation, *_ in asked] == ["train"] * 3
    config = tiny("fedsimclr", **{**changes, "clients__encoders": "small_cnn"})
    outcome, _ = Worker(config, load_federation(config)).execute(
        "train", 0, 1, {"weights": Worker(config, load_federation(config)).initial("small_cnn")}, None
    )
    alone = next(s["model"] for _, o, c, _, s in asked if (o, c) == ("train", 0))
    np.testing.assert_array_equal(alone.vector, outcome.reply["weights"].vector)


def test_keys_that_only_tasks_use_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"method\.initial_epochs: found 3; it needs data\.tasks"):
        tiny("local", objective__name="simclr", method__initial_epochs=3)
    dumped = tiny("local", objective__name="simclr").model_dump(mode="json")
    assert RunConfig.model_validate(dumped) == tiny("local", objective__name="simclr")


def test_the_three_compare_by_name_alone() -> None:
    """``method.name`` replaces the method's block: the local work must then be the same by default."""
    configs = [METHODS[name].config() for name in ("fedlinked", "fedavg_trunk", "local")]  # type: ignore[call-arg]
    for key in ("batch_ratio", "initial_epochs", "patience", "rollback"):
        assert len({getattr(config, key) for config in configs}) == 1


# -- fedavg_supervised -------------------------------------------------------------------------------------------------


def test_fedavg_with_labels(tmp_path: Path) -> None:
    """Ten-class heads travel with the weights; the global encoder is evaluated; two clients' mean by size."""
    changes = {
        "data": {"name": "digits", "image_size": 8, "limit": 200, "test_limit": 80, "tasks": None},
        "evaluation__protocols": ["knn"], "train__rounds": 1, "clients__count": 2,
    }  # fmt: skip
    summary, cohort, asked = run(tmp_path / "run", "fedavg_supervised", **changes)
    assert set(summary["accuracy"]) == {"knn"}
    assert isinstance(summary["accuracy"]["knn"], float)
    network = cohort.worker.network("small_cnn_bn")
    assert network.classifier[-1].out_features == 10  # type: ignore[union-attr,index]
    whole = pack(network)
    replies = [m["weights"] for _, o, _, m, _ in asked if o == "train"]
    assert [w.vector.size for w in replies] == [whole.vector.size] * 2
    assert summary["communication"]["up_bytes"] == 2 * 4 * whole.vector.size


@pytest.mark.long
def test_labels_are_learnt() -> None:
    """A few epochs of the supervised objective fit the training labels far better than chance."""
    data = {"name": "digits", "image_size": 8, "limit": 200, "test_limit": 80, "tasks": None}
    config = tiny("fedavg_supervised", data=data, train__local_epochs=15, clients__count=1)
    context = Worker(config, load_federation(config))
    worker = worker_of(context, 0, "train", {})
    worker.train(context.initial("small_cnn_bn"))
    worker.network.eval()
    with torch.no_grad():
        features = worker.network.represent(context.clean(worker.pixels()))
        found = worker.network.through("classifier", features).argmax(1)
    assert float((found == worker.labels()).float().mean()) > 0.6


@pytest.mark.long
@pytest.mark.parametrize("seed", [21, 50])
@pytest.mark.parametrize("method", ["fedavg_trunk", "fedlinked", "local"])
def test_a_client_lost_in_the_last_round_returns_to_its_best_too(
    method: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the drop-outs of these seeds, clients 0 and 1 are lost in the last round, or all three, and it is void."""
    lost = drop_outs(0.4, seed, 3, 3)
    assert lost.tolist() == ([True, True, False] if seed == 21 else [True] * 3)
    monkeypatch.setattr(
        TaskClient, "accuracy", lambda client, *_: 1 / (1 + client.round)
    )  # each one's first is its best
    _, cohort, asked = run(tmp_path, method, train__rounds=3, system={"drop_out": 0.4}, seed=seed)
    trained: dict[int, dict[int, np.ndarray]] = {}
    for t, operation, client, _, state in asked:
        if operation in ("train", "adopt") and "best" in state:
            trained.setdefault(client, {})[t] = state["model"].vector
    assert any(lost[client] and len(models) > 1 for client, models in trained.items())
    for client, state in cohort.states():
        models = trained[client]
        np.testing.assert_array_equal(state["model"].vector, models[min(models)])
        assert not any(np.array_equal(model, models[min(models)]) for t, model in models.items() if t > min(models))
