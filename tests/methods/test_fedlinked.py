"""FedLinked against the thesis' own tables, hand-computed numbers and loops; its runs against Algorithm 3."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from torch.optim.optimizer import register_optimizer_step_post_hook

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import pack, unpack
from rayfed_ssl.config import RunConfig, build, load
from rayfed_ssl.data import loading
from rayfed_ssl.data.augment import clean
from rayfed_ssl.data.images import Dataset, Images
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import Reply
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.methods.fedlinked import Config, gains, target, utilities
from rayfed_ssl.methods.parts.tasks import EarlyStopping
from rayfed_ssl.objectives.base import Batch
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests.dotted import dotted
from tests.places import ROOT
from tests.tiny import encoders

# Tables 5.1 and 5.2 print A by target (row): M0 from M1, M2; M1 from M0, M2; M2 from M0, M1.
CIFAR = (2.97347, (1, 0.70710, 0.81369), [(2.4278, 1.7167), (2.3064, 1.8767), (1.9504, 2.2444)])
SVHN = (2.22118, (1, 0.64899, 0.71425), [(1.8632, 1.2092), (1.8075, 1.2910), (1.4937, 1.6439)])


def symmetric(g01: float, g02: float, g12: float) -> torch.Tensor:
    return torch.tensor([[0, g01, g02], [g01, 0, g12], [g02, g12, 0]], dtype=torch.float64)


def by_target(a: torch.Tensor) -> np.ndarray:
    """(N, N - 1): what each target gets from the others, in their order."""
    return np.array([[float(a[k, j]) for k in range(len(a)) if k != j] for j in range(len(a))])


@pytest.fixture(scope="module")
def alpha() -> torch.Tensor:
    """(4, 30, 5) representations; client 3's are a rotation of client 0's."""
    draw = torch.Generator().manual_seed(0)
    alpha = torch.randn(4, 30, 5, generator=draw, dtype=torch.float64)
    alpha[3] = alpha[0] @ torch.linalg.qr(torch.randn(5, 5, generator=draw, dtype=torch.float64)).Q
    return alpha


# -- the mathematics ---------------------------------------------------------------------------------------------------


def test_a_rotation_is_recovered() -> None:
    """Thesis, eq. 3.8: the polar factor, computed by hand."""
    p_k = torch.tensor([[1.0, 0], [0, 2], [1, 1]], dtype=torch.float64)
    turn = torch.tensor([[0.0, -1], [1, 0]], dtype=torch.float64)
    both = torch.stack([p_k, p_k @ turn.T])
    g, maps = gains(both)
    torch.testing.assert_close(maps[0, 1], turn, atol=1e-12, rtol=0)
    assert float(g[0, 1]) == pytest.approx(7, abs=1e-12)
    torch.testing.assert_close(torch.linalg.svdvals(both[0].T @ both[1]).sum(), g[0, 1])
    u, _, vh = torch.linalg.svd(both[0].T @ both[1])
    assert float(((u @ vh) @ (both[0].T @ both[1])).trace()) == pytest.approx(-7)  # U V^T in place of V U^T
    assert float(gains(both, transformation=False)[0][0, 1]) == pytest.approx(0, abs=1e-12)


def test_gains_are_nuclear_norms_and_symmetric(alpha: torch.Tensor) -> None:
    """Computed by hand, and scipy's solution of the same problem."""
    g, maps = gains(alpha)
    torch.testing.assert_close(g, g.T, atol=0, rtol=0)
    assert not g.diagonal().any()
    draw = torch.Generator().manual_seed(1)
    for k, j in itertools.permutations(range(4), 2):
        r = alpha[k].T @ alpha[j]
        expected, value = orthogonal_procrustes(alpha[k].numpy(), alpha[j].numpy())
        np.testing.assert_allclose(maps[k, j].T, expected, atol=1e-9)
        assert float(g[k, j]) == pytest.approx(value, rel=1e-10)
        assert float(g[k, j]) == pytest.approx(float((alpha[j] * (alpha[k] @ maps[k, j].T)).sum()), rel=1e-10)
        other = torch.linalg.qr(torch.randn(5, 5, generator=draw, dtype=torch.float64)).Q
        assert float((other @ r).trace()) < float(g[k, j])
    assert float(g[0, 3]) == pytest.approx(float(alpha[0].square().sum()))  # a perfect fit


def test_without_the_transformation_gains_are_plain_products(alpha: torch.Tensor) -> None:
    g, maps = gains(alpha, transformation=False)
    for k, j in itertools.permutations(range(4), 2):
        assert float(g[k, j]) == pytest.approx(float((alpha[k] * alpha[j]).sum()))
        torch.testing.assert_close(maps[k, j], torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize(("norm", "g", "table"), [CIFAR, SVHN])
def test_utilities_reproduce_the_published_tables(norm: float, g: tuple[float, ...], table: list[Any]) -> None:
    """s = eta; the printed (3.5), over all pairs, gives something else and breaks the constraint."""
    found = by_target(utilities(symmetric(*g), norm))
    np.testing.assert_allclose(found, table, atol=1.2e-4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), norm)
    printed = by_target(norm**0.5 * symmetric(*g) / symmetric(*g).norm())
    assert np.abs(np.sum(printed**2, axis=1) - norm).max() > 0.1
    assert np.abs(printed - table).max() > 0.5


def test_the_printed_normalisation_in_numbers() -> None:
    """What eq. 3.5 would give for CIFAR-10, were eta = 2.9735."""
    g = symmetric(*CIFAR[1])
    printed = by_target(2.9735**0.5 * g / g.norm())
    np.testing.assert_allclose(printed, [(0.8292, 0.5864), (0.8292, 0.6747), (0.5864, 0.6747)], atol=1e-4)
    np.testing.assert_allclose((printed**2).sum(1), [1.031, 1.143, 0.799], atol=1e-3)


def test_the_scale_is_the_square_root_unless_tables_are_wanted() -> None:
    assert Config(eta=2.25).scale == 1.5
    assert Config(eta=2.25, utility_scale="eta").scale == 2.25
    a = utilities(symmetric(*CIFAR[1]), Config(eta=2.25).scale)
    torch.testing.assert_close(a.square().sum(0), torch.full((3,), 2.25, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1.0, 2.0, 3.0])
def test_targets_do_not_depend_on_the_scale(scale: float) -> None:
    """G = (3, 4) gives weights 3/7 and 4/7 for any s."""
    g = symmetric(0.0, 3.0, 4.0)  # sources 0 and 1 of target 2
    a = utilities(g, scale)
    np.testing.assert_allclose(by_target(a)[2], [0.6 * scale, 0.8 * scale], atol=1e-12)
    sources = torch.zeros(3, 1, 2, dtype=torch.float64)
    sources[0, 0, 0] = sources[1, 0, 1] = 1
    same = {pair: torch.eye(2, dtype=torch.float64) for pair in itertools.permutations(range(3), 2)}
    found = target(2, sources, a, same)
    assert found is not None
    np.testing.assert_allclose(found[0], [0.428571, 0.571429], atol=1e-6)


def test_the_update_drops_a_factor() -> None:
    """sum_k A_k ||e_k - f||^2 = (sum_k A_k) ||f - f*||^2 + constant."""
    weights, f = torch.tensor([0.6, 0.8], dtype=torch.float64), torch.tensor([0.3, 0.1], dtype=torch.float64)
    sources = torch.eye(2, dtype=torch.float64)
    star = (weights @ sources) / weights.sum()
    assert float(weights @ (sources - f).square().sum(1)) == pytest.approx(1.02)
    assert 1.4 * float((f - star).square().sum()) == pytest.approx(0.334285714)
    assert 0.334285714 + float(weights @ (sources - star).square().sum(1)) == pytest.approx(1.02)  # 0.685714286


def test_the_literal_minimisation_is_negative_and_reversed() -> None:
    """(3.3) taken literally against the surrogate (3.4) that is used."""
    g = np.array([0.9, 0.1])
    distance = 2 - 2 * g  # unit norms
    np.testing.assert_allclose(-distance / np.linalg.norm(distance), [-0.110432, -0.993884], atol=1e-6)
    used = by_target(utilities(symmetric(0.0, 0.9, 0.1), 1.0))[2]
    np.testing.assert_allclose(used, [0.993884, 0.110432], atol=1e-6)


def test_targets_equal_a_loop_over_images_and_sources(alpha: torch.Tensor) -> None:
    g, maps = gains(alpha)
    a = utilities(g, 1.7)
    assert not np.allclose(a, a.T)  # normalised per target, so the order of the indices matters
    for j in range(4):
        found = target(j, alpha, a, maps)
        assert found is not None
        for x in (0, 17):
            above = sum(float(a[k, j]) * (maps[k, j] @ alpha[k, x]) for k in range(4) if k != j)
            below = sum(float(a[k, j]) for k in range(4) if k != j)
            torch.testing.assert_close(found[x], above / below)
        swapped = target(j, alpha, a.T, maps)
        assert swapped is not None
        assert not torch.allclose(found, swapped)


def test_utilities_that_cancel_give_no_target(alpha: torch.Tensor) -> None:
    opposed = torch.stack([alpha[0], -alpha[0], alpha[0]])
    g, maps = gains(opposed, transformation=False)
    assert target(1, opposed, utilities(g, 1.0), maps) is None  # everybody opposes client 1
    assert target(0, opposed, utilities(g, 1.0), maps) is None  # one for, one against
    nothing = torch.zeros_like(opposed)
    g, maps = gains(nothing)
    assert target(0, nothing, utilities(g, 1.0), maps) is None
    g, maps = gains(opposed)  # with the transformation a reflection is as good as equality
    assert target(1, opposed, utilities(g, 1.0), maps) is not None


def test_early_stopping_keeps_the_lowest() -> None:
    losses = iter([3.0, 2.0, 2.5, 2.0, 9.0])
    values: Any = lambda: f"epoch {watch.epochs}"  # noqa: E731
    watch = EarlyStopping(lambda: next(losses), values, 2)
    assert [watch() for _ in range(4)] == [False, False, False, True]
    assert (watch.lowest, watch.best, watch.epochs) == (2.0, "epoch 2", 4)


# -- runs --------------------------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    "method": {"name": "fedlinked"},
    "objective": {"name": "supervised"},
    "data": {"name": "digits", "image_size": 8, "limit": 300, "test_limit": 50, "tasks": [[0, 1], [6, 3, 1], [5, 2]],
             "public": {"share": 0.25}},
    "clients": {"count": 3, "encoders": "fedlinked_cnn"},
    "model": {"channels": 4, "representation": 6, "dropout": 0.1, "initial": "common"},
    "train": {"rounds": 2, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.02}},
    "augment": {"preset": "none"},
    "evaluation": {"protocols": []},
    "figures": False,
}  # fmt: skip

PLAIN = {"channels": None, "representation": None, "dropout": None}  # fedlinked_cnn's own keys


def tiny(**changes: Any) -> RunConfig:
    return build(TINY, dotted(**changes), origin="tiny")


class Watched(LocalCohort):
    """Remembers what every operation was asked with and left behind."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[tuple[int, str, int, dict[str, Any], dict[str, Any]]] = []
        inner = self.worker.execute

        def execute(operation: str, client: int, round: int, message: Any, state: Any, visit: int) -> Any:
            outcome, new = inner(operation, client, round, message, state, visit)
            self.asked.append((round, operation, client, {**message, **outcome.reply}, new))
            return outcome, new

        self.worker.execute = execute  # type: ignore[method-assign]


def run(folder: Path, **changes: Any) -> tuple[dict[str, Any], Watched]:
    kept: list[Watched] = []

    def connect(*args: Any) -> Watched:
        kept.append(Watched(*args))
        return kept[0]

    return loop.run(tiny(**changes), folder, connect), kept[0]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Watched]:
    folder = tmp_path_factory.mktemp("fedlinked") / "run"
    return folder, *run(folder, figures=True)


@pytest.mark.long
def test_the_conversation_is_algorithm_3(done: tuple[Path, dict[str, Any], Watched]) -> None:
    asked = [(operation, client) for round, operation, client, _, _ in done[2].asked if round == 1]
    every = [0, 1, 2]
    assert asked == [
        *(("pretrain", c) for c in every), *(("represent", c) for c in every), ("link", -1),
        *(("follow", c) for c in every), *(("train", c) for c in every),
    ]  # fmt: skip
    later = [operation for round, operation, client, _, _ in done[2].asked if round == 2 and client == 0]
    assert later == ["represent", "follow", "train", "roll_back"]


def test_bytes_are_those_of_the_table(done: tuple[Path, dict[str, Any], Watched]) -> None:
    """N0 r floats each way, per client and round; no A, no weights, nobody else's representations."""
    folder, summary, _ = done
    rows = pq.read_table(folder / "communication.parquet").to_pylist()
    public = load_federation(tiny()).public
    assert public is not None
    size = 4 * len(public) * 6
    booked = {(r["round"], r["client"], r["direction"], r["field"]): r["bytes"] for r in rows}
    assert booked == {
        (t, c, *way): size for t in (1, 2) for c in range(3) for way in (("up", "representations"), ("down", "target"))
    }
    assert summary["communication"] == {"up_bytes": 6 * size, "down_bytes": 6 * size}


def test_utilities_are_recorded_and_drawn(done: tuple[Path, dict[str, Any], Watched]) -> None:
    folder, _, cohort = done
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    found = {(r["round"], r["tag"]): r["value"] for r in rows if r["tag"].startswith("fedlinked/A_")}
    assert len(found) == 2 * 6
    linked = {round: fields["utility"] for round, operation, _, fields, _ in cohort.asked if operation == "link"}
    for (round, tag), value in found.items():
        _, k, j = tag.split("_")
        assert value == linked[round][int(k), int(j)]
    for round in (1, 2):
        for j in range(3):
            total = sum(found[round, f"fedlinked/A_{k}_{j}"] ** 2 for k in range(3) if k != j)
            assert total == pytest.approx(2.97)
    representations = {
        (t, c): fields["representations"] for t, operation, c, fields, _ in cohort.asked if operation == "represent"
    }
    likeness = {(r["round"], r["tag"]): r["value"] for r in rows if r["tag"].startswith("fedlinked/likeness_")}
    assert len(likeness) == 2 * 3
    for (round, tag), value in likeness.items():
        p, q = (representations[round, int(client)].astype(np.float64) for client in tag.split("_")[1:])
        nuclear = np.linalg.svd(p.T @ q, compute_uv=False).sum()
        assert value == pytest.approx(nuclear / np.linalg.norm(p) / np.linalg.norm(q), rel=1e-9)
    assert (folder / "figures" / "utility.png").stat().st_size > 1000


def test_task_accuracy_is_reported_every_round(done: tuple[Path, dict[str, Any], Watched]) -> None:
    """Round 0, the first, the middle ones and the last, on each client's own test split."""
    folder, summary, _ = done
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    assert {(r["round"], r["client"]) for r in rows if r["tag"] == "eval/task"} == {
        (t, c) for t in range(3) for c in range(3)
    }
    assert set(summary["accuracy"]) == {"task"}
    assert set(summary["accuracy"]["task"]) == set(summary["untrained"]["task"]) == {"0", "1", "2"}
    assert summary["pixels"] == {}


def test_images_are_counted_over_everything_a_client_trains_in_a_round(
    done: tuple[Path, dict[str, Any], Watched],
) -> None:
    folder, _, cohort = done
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    shown = {row["round"]: row["value"] for row in rows if row["tag"] == "train/images"}
    sizes = [len(shard["train"]) for shard in cohort.federation.shards]
    epoch = sum(n // min(16, n) * min(16, n) for n in sizes)
    assert shown == {1: 2 * epoch, 2: epoch}  # the first round has the pre-training, too


def test_partition_holds_the_splits(done: tuple[Path, dict[str, Any], Watched]) -> None:
    rows = pq.read_table(done[0] / "partition.parquet").to_pylist()
    assert {r["split"] for r in rows} == {"train", "es", "rb", "test", "public"}
    indices = [r["index"] for r in rows]
    assert len(indices) == len(set(indices))
    for client, task in enumerate(TINY["data"]["tasks"]):
        assert {r["label"] for r in rows if r["client"] == client and r["split"] != "public"} == set(task)


def test_following_moves_the_trunk_and_fine_tuning_the_head(done: tuple[Path, dict[str, Any], Watched]) -> None:
    _, _, cohort = done
    context = cohort.worker
    before = next(s for r, o, c, _, s in cohort.asked if (r, o, c) == (2, "represent", 1))["model"]
    message = next(m for r, o, c, m, _ in cohort.asked if (r, o, c) == (2, "follow", 1))
    worker: Any = context.method.client(context, 1, 2, "follow", {"model": before})
    worker.load_own()
    network, public = worker.network, torch.tensor(message["target"])
    head = pack(network.classifier).vector
    first = (worker.represented(network, worker.public_pixels()) - public).square().sum()
    worker.distil(public, 1.0)
    second = (worker.represented(network, worker.public_pixels()) - public).square().sum()
    assert second < first
    np.testing.assert_array_equal(pack(network.classifier).vector, head)
    trunk = pack(network.encoder).vector
    worker.fine_tune(2)
    np.testing.assert_array_equal(pack(network.encoder).vector, trunk)
    assert not np.array_equal(pack(network.classifier).vector, head)


def test_following_sees_the_public_images_in_training_mode() -> None:
    """Loss and step by hand, the same dropout drawn from torch's global generator; in eval mode there is none."""
    changes = {"train__local_steps": 1, "train__optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0}}
    config = tiny(model={"channels": 4, "representation": 6, "dropout": 0.5, "initial": "common"}, **changes)
    context = Worker(config, load_federation(config))
    worker: Any = context.method.client(context, 1, 1, "follow", {})
    worker.load_own()
    network, target = (
        worker.network,
        torch.randn(len(worker.public_pixels()), 6, generator=torch.Generator().manual_seed(0)),
    )
    before = [p.detach().clone() for p in network.encoder.parameters()]
    (rows,) = worker.batches(len(target))
    losses = {}
    for training in (True, False):
        torch.manual_seed(7)
        images = context.clean(worker.public_pixels()[rows])
        losses[training] = 0.7 * (network.train(training).represent(images) - target[rows]).square().mean()
    gradients = torch.autograd.grad(losses[True], list(network.encoder.parameters()))
    assert abs(float(losses[True].detach() - losses[False].detach())) > 1e-4
    torch.manual_seed(7)
    worker.distil(target, 0.7)
    assert worker.metrics["distillation"] == pytest.approx(float(losses[True].detach()), rel=1e-5)
    for new, old, gradient in zip(network.encoder.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(new.detach(), old - 0.1 * gradient, atol=1e-7, rtol=1e-5)


def test_the_head_is_fine_tuned_with_its_dropout_on_the_frozen_trunks_features() -> None:
    changes = {"train__local_steps": 1, "train__optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0}}
    config = tiny(model={"channels": 4, "representation": 6, "dropout": 0.5, "head_dropout": 0.5}, **changes)
    context = Worker(config, load_federation(config))
    worker: Any = context.method.client(context, 1, 1, "follow", {})
    worker.load_own()
    (rows,) = worker.batches(len(worker.indices), purpose="order of the head")
    with torch.no_grad():
        features = worker.network.eval().represent(context.clean(worker.pixels()))[rows]
    weight, bias = (p.detach().clone().requires_grad_() for p in worker.network.classifier.parameters())
    torch.manual_seed(5)
    logits = torch.nn.functional.dropout(features, 0.5) @ weight.T + bias
    labels = worker.labels()[rows]
    loss = -(logits.log_softmax(1)[torch.arange(len(rows)), labels]).mean()
    gradients = torch.autograd.grad(loss, (weight, bias))
    torch.manual_seed(5)
    worker.fine_tune(None)
    for new, old, gradient in zip(worker.network.classifier.parameters(), (weight, bias), gradients, strict=True):
        torch.testing.assert_close(new.detach(), old.detach() - 0.5 * gradient, atol=1e-6, rtol=1e-5)


def right(cohort: LocalCohort, client: int, model: Any, split: str) -> float:
    """The share of a split's images, or of the test images of its classes (``classes``), that a client's model names
    rightly, image by image.
    """
    federation = cohort.federation
    network = InitialWeights(cohort.config, federation).network("fedlinked_cnn", federation.task_classes(client)).eval()
    unpack(model, network)
    images, task, hits = federation.dataset.train, TINY["data"]["tasks"][client], []
    rows = list(federation.shards[client].get(split, ()))
    if split == "classes":
        images = federation.dataset.test
        rows = [index for index, label in enumerate(images.labels) if label in task]
    for index in rows:
        pixels = torch.tensor(np.array(images.pixels[index]))[None].permute(0, 3, 1, 2)
        with torch.no_grad():
            features = network.represent(clean(pixels, cohort.config.augment.recipe()))
            logits = network.through("classifier", features)
        hits.append(task[int(logits.argmax())] == images.labels[index])
    return float(np.mean(hits))


def test_the_best_round_is_chosen_by_rb_and_the_task_measured_on_test(
    done: tuple[Path, dict[str, Any], Watched],
) -> None:
    _, summary, cohort = done
    apart: dict[str, set[float]] = {"rb": set(), "test": set()}
    for client in range(3):
        trained = {t: s for t, o, c, _, s in cohort.asked if (o, c) == ("train", client)}
        for t, state in trained.items():
            scores = {split: right(cohort, client, state["model"], split) for split in ("train", "es", "rb", "test")}
            if state["best_round"] == t:
                assert state["best_accuracy"] == pytest.approx(scores["rb"], abs=1e-6)
            apart["rb"] |= {abs(scores["rb"] - scores[split]) for split in ("train", "es", "test")}
        ((_, state),) = cohort.states([client])
        found = summary["accuracy"]["task"][str(client)]
        assert found == pytest.approx(right(cohort, client, state["model"], "test"), abs=1e-6)
        worker: Any = cohort.worker.method.client(cohort.worker, client, 3, "evaluate", dict(state))
        chosen_by = worker.evaluate("fedlinked_cnn", None)["select/task"]  # what sweeps choose by
        assert chosen_by == pytest.approx(right(cohort, client, state["model"], "rb"), abs=1e-6)
        apart["test"] |= {abs(found - right(cohort, client, state["model"], split)) for split in ("rb", "es", "train")}
    assert all(max(gaps) > 0.02 for gaps in apart.values())  # the splits can be told apart


def test_the_task_can_be_measured_on_the_test_images_of_its_classes(
    done: tuple[Path, dict[str, Any], Watched],
) -> None:
    cohort = done[2]
    evaluation = cohort.config.evaluation.model_copy(update={"tasks_on": "test"})
    context = Worker(cohort.config.model_copy(update={"evaluation": evaluation}), cohort.federation)
    for client in range(3):
        ((_, state),) = cohort.states([client])
        worker: Any = context.method.client(context, client, 3, "evaluate", dict(state))
        found = worker.evaluate("fedlinked_cnn", None)["task"]
        assert found == pytest.approx(right(cohort, client, state["model"], "classes"), abs=1e-6)
        assert found != done[1]["accuracy"]["task"][str(client)]


def test_a_client_that_follows_comes_back_with_a_fine_tuned_head(
    done: tuple[Path, dict[str, Any], Watched],
) -> None:
    cohort = done[2]
    for client, t in itertools.product(range(3), (1, 2)):
        mine = {o: s for r, o, c, _, s in cohort.asked if (r, c) == (t, client)}
        before, after = mine["represent"], mine["follow"]
        worker: Any = cohort.worker.method.client(cohort.worker, client, t, "look", dict(before))
        worker.load_own()
        old = pack(worker.network.classifier)
        worker.state = dict(after)
        worker.load_own()
        assert np.abs(pack(worker.network.classifier).vector - old.vector).max() > 1e-4
        tuned = worker.cross_entropy("train")
        unpack(old, worker.network.classifier)
        assert tuned < worker.cross_entropy("train")  # the old head on the same trunk


def test_learning_ends_with_the_epoch_that_was_best_for_early_stopping() -> None:
    config = tiny(train__optimizer={"name": "sgd", "lr": 0.3}, method__patience=2)
    context = Worker(config, load_federation(config))
    worker: Any = context.method.client(context, 0, 1, "pretrain", {})
    worker.load_own()
    worker.learn(40)
    assert 2 < worker.metrics["epochs"] < 40  # it was stopped, so two worse epochs came after the best
    assert worker.cross_entropy("es") == pytest.approx(worker.metrics["es_loss"], rel=1e-6)


def test_weighted_distillation_counts_what_a_target_gets_from_all_sources(
    done: tuple[Path, dict[str, Any], Watched], tmp_path: Path
) -> None:
    """sum_k A_kj, a column of A, not the row of what the client gives to others."""
    _, cohort = run(tmp_path / "run", method__weighted_distillation=True, train__rounds=1)
    (a,) = (m["utility"] for _, o, _, m, _ in cohort.asked if o == "link")
    columns = {j: sum(float(a[k, j]) for k in range(3) if k != j) for j in range(3)}
    rows = [sum(float(a[k, j]) for j in range(3) if j != k) for k in range(3)]
    assert min(abs(rows[j] - columns[j]) for j in range(3)) > 1e-3
    assert {c: m["utility"] for _, o, c, m, _ in cohort.asked if o == "follow"} == pytest.approx(columns)
    assert {m["utility"] for _, o, _, m, _ in done[2].asked if o == "follow"} == {1.0}


def test_every_part_of_a_round_has_its_own_number_of_epochs() -> None:
    own = {"initial": 4, "distillation": 2, "fine_tune": 3}
    config = tiny(**{f"method__{part}_epochs": n for part, n in own.items()}, method__patience=50)
    context = Worker(config, load_federation(config))
    images, public = len(context.federation.shards[1]["train"]), len(context.federation.public)  # type: ignore[arg-type]
    assert context.execute("pretrain", 1, 1, {}, None)[0].metrics["images"] == 4 * (images // 16 * 16)
    assert context.execute("train", 1, 1, {}, None)[0].metrics["images"] == images // 16 * 16  # local_epochs

    network = context.network("fedlinked_cnn", classes=3)
    steps = {"trunk": 0, "head": 0}

    def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        (part,) = (name for name, module in (("trunk", network.encoder), ("head", network.classifier))
                   if stepped == {id(p) for p in module.parameters()})  # type: ignore[union-attr]  # fmt: skip
        steps[part] += 1

    handle = register_optimizer_step_post_hook(count)
    try:
        message = {"target": np.zeros((public, 6), np.float32), "utility": 1.0}
        context.execute("follow", 1, 1, message, None)
    finally:
        handle.remove()
    assert steps == {"trunk": 2 * (public // 16), "head": 3 * (images // 16)}


def test_representations_are_taken_in_eval_mode(done: tuple[Path, dict[str, Any], Watched]) -> None:
    context = done[2].worker
    worker: Any = context.method.client(context, 0, 1, "represent", {})
    first, second = (worker.represent()["representations"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    worker.network.train()
    with torch.no_grad():
        noisy = worker.network.represent(context.clean(worker.public_pixels())).numpy()
    assert np.abs(first - noisy).max() > 1e-3


def test_labels_are_numbered_within_the_task(done: tuple[Path, dict[str, Any], Watched]) -> None:
    """Client 1's task is [6, 3, 1]: its classifier has three outputs in that order."""
    context = done[2].worker
    worker: Any = context.method.client(context, 1, 1, "train", {})
    raw = context.federation.dataset.train.labels[context.federation.shards[1]["train"]]
    assert worker.labels().tolist() == [[6, 3, 1].index(label) for label in raw]
    assert worker.network.classifier[-1].out_features == 3
    assert worker.task_labels(np.array([0, 1, 9])).tolist() == [-1, 2, -1]
    assert worker.task_labels(np.array([-1, 1])).tolist() == [-1, 2]  # an image without a label


def test_a_client_alone_sends_nothing(tmp_path: Path) -> None:
    changes = {"clients__count": 1, "data__tasks": [[0, 1]], "train__rounds": 1}
    _, cohort = run(tmp_path, **changes)
    assert pq.read_table(tmp_path / "communication.parquet").num_rows == 0
    assert [operation for _, operation, *_ in cohort.asked] == ["pretrain", "train", "roll_back"]


@pytest.mark.long
def test_roll_back_returns_to_the_best_round(tmp_path: Path) -> None:
    summary, cohort = run(tmp_path / "a", train__rounds=3)
    states = dict(cohort.states())
    for client in range(3):
        scores = [
            r["value"]
            for r in sorted(pq.read_table(tmp_path / "a" / "metrics.parquet").to_pylist(), key=lambda r: r["round"])
            if r["tag"] == "client/rb_accuracy" and r["client"] == client
        ]
        best = max(t for t, score in enumerate(scores, 1) if score == max(scores))  # the latest of equals
        trained = next(s for r, o, c, _, s in cohort.asked if (r, o, c) == (best, "train", client))
        np.testing.assert_array_equal(states[client]["model"].vector, trained["model"].vector)
    assert summary["rounds"] == 3
    _, plain = run(tmp_path / "b", train__rounds=1, method__rollback=False)
    last = {c: s["model"].vector for r, o, c, _, s in plain.asked if (r, o) == (1, "train")}
    assert all(np.array_equal(state["model"].vector, last[client]) for client, state in plain.states())


def test_of_equal_rounds_the_latest_is_kept(done: tuple[Path, dict[str, Any], Watched]) -> None:
    """Algorithm 3, line 22: >=."""
    context, state = done[2].worker, {}
    for t, score in ((1, 0.5), (2, 0.75), (3, 0.75), (4, 0.5)):
        worker: Any = context.method.client(context, 0, t, "train", state)
        worker.load_own()
        worker.accuracy = lambda network, pixels, labels, score=score: score
        worker.keep_own_and_best()
        state = worker.state
    assert (state["best_round"], state["best_accuracy"]) == (3, 0.75)


def test_gamma_adds_its_gradient_to_every_step() -> None:
    """gamma sum theta^2 written out beside each of the three losses, one step of plain SGD; the head has no part in
    following, the trunk none in fine-tuning.
    """
    gamma, lr = 0.3, 0.05
    options = {"train__local_steps": 1, "train__optimizer": {"name": "sgd", "lr": lr, "momentum": 0}}

    def moved(operation: str, gamma: float) -> dict[str, torch.Tensor]:
        config = tiny(method__gamma=gamma, model={"channels": 4, "representation": 6, "dropout": 0}, **options)
        context = Worker(config, load_federation(config))
        worker: Any = context.method.client(context, 1, 1, operation, {})
        worker.load_own()
        before = {name: p.detach().clone() for name, p in worker.network.named_parameters()}
        torch.manual_seed(0)  # of dropout, none here
        if operation == "train":
            worker.fit(lambda v, rows: worker.objective.step(worker.network, Batch(v, worker.labels()[rows])))
        elif operation == "distil":
            worker.distil(torch.ones(len(worker.public_pixels()), 6), 1.0)
        else:
            worker.fine_tune(1)
        return {name: p.detach() - before[name] for name, p in worker.network.named_parameters()} | {"": before}

    for operation, parts in (("train", ("encoder", "classifier")), ("distil", ("encoder",)), ("tune", ("classifier",))):
        with_gamma, without = moved(operation, gamma), moved(operation, 0.0)
        start: Any = with_gamma.pop("")
        for name, step in with_gamma.items():
            expected = -lr * 2 * gamma * start[name] if name.startswith(parts) else torch.zeros_like(start[name])
            torch.testing.assert_close(step - without[name], expected, atol=2e-7, rtol=1e-4)


def test_a_client_without_a_target_has_its_head_fine_tuned_all_the_same(
    done: tuple[Path, dict[str, Any], Watched],
) -> None:
    context = done[2].worker
    worker: Any = context.method.client(context, 1, 1, "follow", {})
    worker.load_own()
    trunk, head = pack(worker.network.encoder).vector, pack(worker.network.classifier).vector
    before = worker.cross_entropy("train")
    assert worker.follow(None, 1.0) == {}
    worker.load_own()  # what it keeps
    np.testing.assert_array_equal(pack(worker.network.encoder).vector, trunk)
    assert np.abs(pack(worker.network.classifier).vector - head).max() > 1e-4
    assert worker.cross_entropy("train") < before
    assert "distillation" not in worker.metrics


def test_clients_without_a_target_are_asked_to_follow_none() -> None:
    """Client 1's representations are the opposite of everybody's, and the transformation is off."""
    config = tiny(method__transformation=False)
    federation = load_federation(config)
    public = federation.public
    assert public is not None
    alpha = np.random.default_rng(0).normal(size=(len(public), 6)).astype(np.float32)

    class Opposed(LocalCohort):
        told: dict[int, dict[str, Any]]

        def ask(self, operation: str, **options: Any) -> Any:
            given = options.get("clients")
            whom = self.clients if given is None else given
            if operation == "represent":
                return iter([Reply(c, {"representations": -alpha if c == 1 else alpha.copy()}) for c in whom])
            if operation == "follow":
                self.told = {c: options["each"](c) for c in whom}
            return iter([Reply(c, {}) for c in whom])

    cohort = Opposed(config, federation, Ledger())
    server = METHODS["fedlinked"].server(Setup(config, federation, InitialWeights(config, federation)))
    server.start(cohort)
    cohort.begin_round(1, (0, 1, 2))
    server.round(1, cohort)
    assert cohort.told[1] == {"target": None, "utility": 1.0}
    assert cohort.told[0]["target"] is None  # one for it, one against
    assert server.metrics["fedlinked/targets"] == 0
    alpha[:, 0] *= 3
    agreed = Opposed(tiny(), federation, Ledger())
    server = METHODS["fedlinked"].server(Setup(tiny(), federation, InitialWeights(tiny(), federation)))
    server.start(agreed)
    agreed.begin_round(1, (0, 1, 2))
    server.round(1, agreed)
    for c, sign in enumerate((1, -1, 1)):  # with the transformation everybody agrees
        np.testing.assert_allclose(agreed.told[c]["target"], sign * alpha, atol=1e-4)
    assert server.metrics["fedlinked/targets"] == 3


@pytest.mark.long
def test_eta_matters_only_if_the_distillation_is_weighted(tmp_path: Path) -> None:
    options = [(False, 0.5), (False, 4.0), (True, 0.5), (True, 4.0)]
    for i, (weighted, eta) in enumerate(options):
        run(tmp_path / str(i), method__eta=eta, method__weighted_distillation=weighted, train__rounds=1)
    unweighted, same, low, high = ([*encoders(tmp_path / str(i)).values()] for i in range(4))
    assert len({*unweighted}) == 3
    for i in range(3):
        a, b = (torch.frombuffer(bytearray(x[i][-400:]), dtype=torch.float32) for x in (unweighted, same))
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)  # f* is the same up to its rounding
        assert low[i] != high[i]
        a, b = (torch.frombuffer(bytearray(x[i][-400:]), dtype=torch.float32) for x in (low, high))
        assert float((a - b).abs().max()) > 1e-3


def test_the_transformation_can_be_switched_off(done: tuple[Path, dict[str, Any], Watched], tmp_path: Path) -> None:
    run(tmp_path / "plain", method__transformation=False)
    with_it, without = encoders(done[0]), encoders(tmp_path / "plain")
    assert with_it.keys() == without.keys()
    assert all(with_it[name] != without[name] for name in with_it)


def test_trunks_may_differ(tmp_path: Path) -> None:
    """``model.representation`` gives FedLinked's own encoder the size of the others."""
    encoders_of = ["small_cnn", "small_cnn_bn", "fedlinked_cnn"]
    model = {"width": 0.25, **PLAIN, "representation": 32}
    summary, _ = run(tmp_path / "mixed", clients__encoders=encoders_of, model=model, train__rounds=1)
    assert set(summary["accuracy"]["task"]) == {"0", "1", "2"}


def test_a_part_of_the_clients_is_enough(tmp_path: Path) -> None:
    """Newcomers are pre-trained when they come; one alone has nobody to follow; afterwards everybody rolls back."""
    _, cohort = run(tmp_path / "part", participation__fraction=0.34, train__rounds=3)
    operations = [operation for _, operation, _, _, _ in cohort.asked]
    assert "follow" not in operations
    pretrained = [client for _, operation, client, _, _ in cohort.asked if operation == "pretrain"]
    assert len(pretrained) == len(set(pretrained))
    assert operations.count("roll_back") == 3


@pytest.mark.parametrize(("batches", "epochs"), [(-1, 1), (0, 1), (1, 2)])
def test_early_stopping_sees_the_end_of_local_steps(batches: int, epochs: int) -> None:
    """So many batches more than an epoch has: an epoch that was only begun counts as one."""
    steps = len(load_federation(tiny()).shards[0]["train"]) // 4 + batches
    config = tiny(train__local_steps=steps, train__batch_size=4)
    metrics = Worker(config, load_federation(config)).execute("pretrain", 0, 1, {}, None)[0].metrics
    assert metrics["epochs"] == epochs
    assert np.isfinite(metrics["es_loss"])


def test_the_gradient_is_clipped_in_fine_tuning_too() -> None:
    def head(limit: float | None) -> np.ndarray:
        config = tiny(train__optimizer__clip_norm=limit)
        context = Worker(config, load_federation(config))
        worker: Any = context.method.client(context, 0, 1, "follow", {})
        worker.load_own()
        before = pack(worker.network.classifier).vector
        worker.fine_tune(None)
        moved: np.ndarray = np.abs(pack(worker.network.classifier).vector - before)
        return moved

    assert head(None).max() > 1e-4
    assert head(1e-9).max() < 1e-7


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__tasks": None}, r"data\.tasks: found none; fedlinked needs"),
        ({"clients__encoders": ["fedlinked_cnn", "small_cnn", "small_cnn"], "model": PLAIN},
         r"clients\.encoders: found representations of different sizes \(fedlinked_cnn 256, small_cnn 128\); fedlinked "
         r"needs one for all clients: model\.representation=128 gives it to fedlinked_cnn$"),
        ({"clients__encoders": ["resnet18", "small_cnn", "small_cnn"], "model": PLAIN},
         r"\(resnet18 512, small_cnn 128\); fedlinked needs one for all clients$"),
        ({"objective__name": "simclr"}, r"objective\.name: found 'simclr'; fedlinked allows supervised"),
        ({"data__partition": {"name": "dirichlet"}}, r"data\.partition: found 'dirichlet' beside data\.tasks"),
        ({"method__eta": 0}, r"method\..*eta"),
        ({"method__batch_ratio": 1.5}, r"method\..*batch_ratio"),
        ({"method__utility_scale": "both"}, r"method\..*utility_scale"),
        ({"plugins": [{"name": "fedfoa"}]}, r"objective\.name: found 'supervised'; the plug-in fedfoa allows"),
    ],
)  # fmt: skip
def test_bad_configurations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)


def test_without_tasks_there_is_nothing_to_measure_them_on() -> None:
    plain = {"method": {"name": "fedsimclr"}, "data": {"name": "digits"}, "evaluation": {"tasks_on": "test"}}
    with pytest.raises(ConfigError, match=r"evaluation\.tasks_on: found test without data\.tasks; allowed then: own"):
        build(plain, {}, origin="tiny")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__tasks": [["zebra"], [1], [2]]}, r"data\.tasks: found class 'zebra'; digits has 0, 1"),
        ({"data__tasks": [[0], [1], [12]]}, r"data\.tasks: found class '12'"),
        ({"data__tasks": [[0], [1]]}, r"data\.tasks: found 2 tasks; clients\.count=3 needs one each"),
        (
            {"data__public__share": 0.001},
            r"data\.public: found 0 public images; fedlinked needs at least 1 .* rounded to none, as 0\.001 is",
        ),
        ({"data__public__source": "client 0"}, r"data\.public\.source: found 'client 0'; .* allowed: share"),
        ({"data__task_images": 1000}, r"data\.tasks: class . has \d+ images for . clients; 1000 for each"),
        (
            {"evaluation__tasks_on": "test", "data__test_limit": 1},
            r"evaluation\.tasks_on: found test; digits has no test image of client 0's classes; allowed then: own",
        ),
    ],
)
def test_bad_tasks(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run(tmp_path / "bad", **changes)
    assert not (tmp_path / "bad" / "metrics.parquet").exists()


def test_the_paper_profile_gives_table_4_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.3: every count of CIFAR-10's three clients, and the public 5,500, out of 5,000 labels of each class."""
    config = load(ROOT / "configs" / "fedlinked_cifar10.yaml", ["profile=paper"])
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    images = Images(np.zeros((50_000, 1, 1, 3), np.uint8), labels, names)
    monkeypatch.setattr(loading, "load", lambda *_: Dataset("cifar10", images, images, ""))
    federation = load_federation(config)
    counts = [{name: len(indices) for name, indices in shard.items()} for shard in federation.shards]
    four = {"train": 4374, "es": 600, "rb": 486, "test": 540}
    assert counts == [four, {"train": 3280, "es": 450, "rb": 365, "test": 405}, four]
    assert federation.tasks == ((3, 4, 5, 7), (3, 4, 6), (0, 1, 8, 9))
    assert federation.public is not None
    assert len(federation.public) == 5500
