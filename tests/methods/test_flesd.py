"""FLESD against numbers computed by hand, full N x N matrices in NumPy, and two-round runs with their bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.methods import flesd
from rayfed_ssl.objectives.base import kl_divergence
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests.dotted import dotted
from tests.methods.rounds import played, started
from tests.tiny import booked, encoders, tiny

BASE: dict[str, Any] = {
    "method": {"name": "flesd", "epochs": 3, "batch_size": 16},
    "data": {
        "name": "digits",
        "image_size": 16,
        "limit": 240,
        "test_limit": 60,
        "public": {"source": "client 0"},
        "partition": {"name": "dirichlet", "alpha": 1.0},
    },
    "clients": {"count": 4, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25, "projector": {"hidden": [16], "dim": 8}},
    "augment": {"preset": "digits"},
    "train": {"rounds": 2, "batch_size": 16, "optimizer": {"lr": 0.05}},
    "evaluation": {"protocols": [], "batch_size": 64},
}


def config_of(**changes: object) -> RunConfig:
    return build(BASE, dotted(**changes), origin="test")


def run(folder: Path, **changes: object) -> dict[str, Any]:
    """In process; only what the fixture ``finished`` shows is evaluated."""
    return loop.run(config_of(**changes), folder, LocalCohort)


def metrics(folder: Path, tag: str) -> list[float]:
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    return [row["value"] for row in sorted(rows, key=lambda row: row["round"]) if row["tag"] == tag]


# -- computed by hand: points on the unit circle, tau = 0.5, anchors = all four ------------------------

TAU = 0.5
EVERY = torch.arange(4)


def circle(*degrees: float) -> torch.Tensor:
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angle.cos(), angle.sin()], 1)


A, B = circle(0, 30, 90, 180), circle(0, 80, 100, 170)


def target(teachers: list[torch.Tensor], tau: float = TAU) -> torch.Tensor:
    """log p over all points."""
    return flesd.over_anchors(flesd.log_ensemble(teachers, EVERY, EVERY, tau))


def test_a_student_that_equals_its_teacher_has_no_loss_and_no_gradient() -> None:
    """Shi et al. 2021, eq. 7-9."""
    student = A.clone().requires_grad_()
    loss = kl_divergence(target([A]), flesd.over_anchors(student @ A.T / TAU))
    loss.backward()  # type: ignore[no-untyped-call]
    assert student.grad is not None
    assert abs(float(loss.detach())) <= 1e-16
    assert float(student.grad.abs().max()) <= 1e-16
    other = kl_divergence(target([A]), flesd.over_anchors(student @ A.T / (2 * TAU)))
    assert float(other.detach()) > 1e-3  # the temperatures are told apart


def test_ensemble_is_the_mean_of_exponentials() -> None:
    """Shi et al. 2021, eq. 5-6."""
    p = target([A, B]).exp()
    printed = {
        "mean of exp": (0.620225, 0.296616, 0.071624, 0.011535),
        "exp of mean": (0.660011, 0.252631, 0.075084, 0.012274),
        "mean of softmaxes": (0.643444, 0.272676, 0.071879, 0.012001),
    }
    exp_of_mean = F.softmax((A @ A.T + B @ B.T) / 2 / TAU, dim=1)
    mean_of_softmaxes = (target([A]).exp() + target([B]).exp()) / 2
    for name, value in (("mean of exp", p), ("exp of mean", exp_of_mean), ("mean of softmaxes", mean_of_softmaxes)):
        np.testing.assert_allclose(value[0], printed[name], atol=5e-7)
    assert (p - exp_of_mean).abs().max() > 0.01
    assert (p - mean_of_softmaxes).abs().max() > 0.01

    log_p, log_q = target([A, B]), target([A])
    kl = kl_divergence(log_p, log_q)
    cross_entropy = -(p * log_q).sum(1).mean()
    entropy = -(p * log_p).sum(1).mean()
    assert float(kl) == pytest.approx(0.0435904586, abs=5e-11)
    assert float(cross_entropy) == pytest.approx(1.0182959016, abs=5e-11)
    assert float(entropy) == pytest.approx(0.9747054430, abs=5e-11)
    assert float(kl) == pytest.approx(float(cross_entropy - entropy), abs=1e-12)


def test_subtracting_the_row_maximum_changes_nothing_but_the_scale() -> None:
    """The maximum, 1, is every client's, and rescales M by e^(-1/tau); its own maximum would not do."""
    m = flesd.log_ensemble([A, B], EVERY, EVERY, TAU).exp()
    shifted = (((A @ A.T - 1) / TAU).exp() + ((B @ B.T - 1) / TAU).exp()) / 2
    torch.testing.assert_close(m / shifted, torch.full((4, 4), 7.389056, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(target([A, B]).exp(), shifted / shifted.sum(1, keepdim=True), rtol=0, atol=1e-12)

    masked = flesd.over_anchors(flesd.log_ensemble([A, B], EVERY, EVERY, TAU), torch.eye(4, dtype=torch.bool)).exp()
    away = [(r @ r.T).fill_diagonal_(-np.inf) for r in (A, B)]
    right = sum((s / TAU).exp() for s in away)
    wrong = sum(((s - s.max(1, keepdim=True).values) / TAU).exp() for s in away)
    assert isinstance(right, torch.Tensor)
    assert isinstance(wrong, torch.Tensor)
    torch.testing.assert_close(masked, right / right.sum(1, keepdim=True), rtol=0, atol=1e-12)
    assert (masked - wrong / wrong.sum(1, keepdim=True)).abs().max() > 0.01


def test_printed_target_at_the_papers_temperature() -> None:
    """Similarities (1, .5, .3, 0) to the first point, tau = 0.1."""
    r = torch.stack([torch.tensor([s, (1 - s * s) ** 0.5], dtype=torch.float64) for s in (1.0, 0.5, 0.3, 0.0)])
    np.testing.assert_allclose(target([r], 0.1).exp()[0], (0.992364, 0.006686, 0.000905, 0.000045), atol=5e-7)


def test_queue_is_first_in_first_out() -> None:
    """A queue that wraps around, and one whose size is no multiple of the batch."""
    letters = dict(zip("abcdef", torch.arange(6.0), strict=True))

    def rows(text: str) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.stack([letters[c] for c in text])
        return values[:, None], values.long() + 10

    queue = flesd.AnchorQueue(*rows("abcd"))
    queue.push(*rows("ef"))
    assert queue.keys[:, 0].tolist() == [4, 5, 2, 3]
    assert queue.positions.tolist() == [14, 15, 12, 13]

    queue = flesd.AnchorQueue(*rows("abc"))
    for pair in ("de", "fa"):
        queue.push(*rows(pair))
    assert queue.positions.tolist() == [10, 14, 15]  # e, f, a are the newest three; d is gone
    assert (queue.keys[:, 0] + 10).tolist() == queue.positions.tolist()


def test_invariances_of_the_similarities() -> None:
    """Nothing changes with the order of clients or a rotation of their spaces (Shi et al. 2021, eq. 5-6)."""
    draw = torch.Generator().manual_seed(0)
    r = F.normalize(torch.randn(6, 5, dtype=torch.float64, generator=draw), dim=1)
    other = F.normalize(torch.randn(6, 3, dtype=torch.float64, generator=draw), dim=1)  # another d_k
    every = torch.arange(6)
    m = flesd.log_ensemble([r, other], every, every, 0.1)
    turn = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=draw))[0]
    torch.testing.assert_close(flesd.log_ensemble([r @ turn, other], every, every, 0.1), m)
    scaled = F.normalize(r * torch.rand(6, 1, dtype=torch.float64, generator=draw).add(0.1), dim=1)
    torch.testing.assert_close(flesd.log_ensemble([scaled, other], every, every, 0.1), m)
    order = torch.randperm(6, generator=draw)
    permuted = flesd.log_ensemble([r[order], other[order]], every, every, 0.1)
    torch.testing.assert_close(permuted, m[order][:, order])
    assert (flesd.log_ensemble([r[order], other], every, every, 0.1) - m[order][:, order]).abs().max() > 0.1
    torch.testing.assert_close(flesd.log_ensemble([other, r], every, every, 0.1), m)  # clients in any order


def test_rows_on_demand_equal_the_full_matrix_and_never_need_it() -> None:
    draw = np.random.default_rng(0)
    teachers = [r / np.linalg.norm(r, axis=1, keepdims=True) for r in (draw.normal(size=(30, d)) for d in (4, 7, 5))]
    full = np.mean([np.exp(r @ r.T / 0.1) for r in teachers], axis=0)  # (N, N)
    rows, columns = draw.permutation(30)[:8], draw.permutation(30)[:20]
    found = flesd.log_ensemble(
        [torch.from_numpy(r) for r in teachers], torch.from_numpy(rows), torch.from_numpy(columns), 0.1
    )
    expected = full[np.ix_(rows, columns)]
    torch.testing.assert_close(found.exp(), torch.from_numpy(expected))
    p = torch.from_numpy(expected / expected.sum(1, keepdims=True))
    torch.testing.assert_close(flesd.over_anchors(found).exp(), p)

    many = F.normalize(torch.randn(1_000_000, 2, generator=torch.Generator().manual_seed(0)), dim=1)
    assert flesd.log_ensemble([many, many], torch.arange(4), torch.arange(16), 0.1).shape == (4, 16)  # (N, N): 4 TB


def test_nothing_overflows_at_a_small_temperature() -> None:
    mask = torch.eye(4, dtype=torch.bool)
    log_m = flesd.log_ensemble([A.float(), B.float()], EVERY, EVERY, 1e-3)  # exp(1000)
    log_p = flesd.over_anchors(log_m, mask).requires_grad_()
    assert log_p.exp().diagonal().tolist() == [0] * 4
    loss = kl_divergence(log_p, flesd.over_anchors(A.float() @ B.float().T, mask))
    assert bool(loss.isfinite())


# -- what is uploaded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("upload", "error"), [("float32", 1e-6), ("float16", 1e-3), ("int8", 0.02)])
def test_quantised_rows_come_back_as_unit_rows(upload: str, error: float) -> None:
    r = F.normalize(torch.randn(50, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    r[7] = 0  # a collapsed encoder
    sent = flesd.encode_rows(r, upload)
    assert sent["representations"].dtype == np.dtype(upload)
    assert sum(array.nbytes for array in sent.values()) == 50 * flesd.row_bytes(16, upload)
    back = flesd.decode_rows(sent)
    torch.testing.assert_close(back.norm(dim=1), (r.norm(dim=1) > 0).float())
    assert (back - r).abs().max() < error
    if upload == "int8":
        scales = np.abs(r.numpy()).max(axis=1, keepdims=True) / 127
        assert (np.abs(sent["representations"] * scales - r.numpy()) <= scales / 2 * (1 + 1e-5)).all()  # rounded


def test_break_even_of_equation_11() -> None:
    """The paper's example: 10,000 images x 512 values = 5.12M against about 11M weights of a ResNet-18."""
    assert 10_000 * flesd.row_bytes(512, "float32") == 4 * 5_120_000
    assert flesd.break_even_images(4 * 11_000_000, 512, "float32") == 21_484
    assert flesd.break_even_images(4 * 11_000_000, 512, "float16") == 42_968
    assert flesd.row_bytes(512, "int8") == 512


# -- client and server work --------------------------------------------------------------------------------------------


def context_of(**changes: object) -> Worker:
    config = config_of(**changes)
    federation = load_federation(config)
    assert federation.public is not None
    return Worker(config, federation, {"public": federation.public.pixels})


def test_rows_are_clean_unit_embeddings_in_the_published_order() -> None:
    context = context_of(evaluation__batch_size=7)
    outcome, state = context.execute("train", 1, 1, {"weights": context.initial("small_cnn_bn")}, None)
    assert state == {}  # clients of one architecture are stateless
    rows = outcome.reply["representations"]
    trained = context.network("small_cnn_bn").eval()
    pixels = context.published["public"]
    with torch.no_grad():
        for i in (0, 6, 7, len(pixels) - 1):
            z = trained.project(context.clean(context.images(pixels[i : i + 1])))[0]
            np.testing.assert_allclose(rows[i], z / z.norm(), atol=1e-5)
    assert rows.shape == (len(pixels), 8)


def test_backbone_representations_are_the_features() -> None:
    context = context_of(method__representation="backbone")
    outcome, _ = context.execute("train", 1, 1, {"weights": context.initial("small_cnn_bn")}, None)
    assert outcome.reply["representations"].shape[1] == context.network("small_cnn_bn").dim
    assert flesd.dimension(context.config, "small_cnn_bn") == context.network("small_cnn_bn").dim


@pytest.mark.parametrize("self_anchor", ["keep", "mask"])
def test_distilling_oneself_costs_nothing_and_rows_out_of_order_do(self_anchor: str) -> None:
    """Student, momentum encoder and teacher agree when nothing augments: positions must match the rows of R."""
    context = context_of(
        clients__encoders="small_cnn",
        augment__preset="none",
        method__lr=1e-12,
        method__self_anchor=self_anchor,
        method__anchors=20,  # no multiple of the batch
        method__tau_teacher=0.02,
        method__tau_student=0.02,
    )
    weights, network = context.initial("small_cnn"), context.network("small_cnn", "a copy").eval()
    with torch.no_grad():
        z = network.project(context.clean(context.images(context.published["public"])))
    own = F.normalize(z, dim=1).numpy()

    def first_epoch(rows: np.ndarray) -> float:
        message = {"weights": weights, "teachers": [{"representations": rows}]}
        return context.execute("distil", SERVER, 1, message, None)[0].metrics["kl_first_epoch"]

    assert abs(first_epoch(own)) < 1e-5
    assert first_epoch(np.ascontiguousarray(own[::-1])) > 0.1


def distilled(**changes: object) -> tuple[np.ndarray, dict[str, float]]:
    """The student's values after distilling two random teachers."""
    context = context_of(**changes)
    draw = np.random.default_rng(0)
    count = len(context.published["public"])
    teachers = [{"representations": draw.normal(size=(count, 4)).astype(np.float32)} for _ in range(2)]
    message = {"weights": context.initial("small_cnn_bn"), "teachers": teachers}
    outcome, _ = context.execute("distil", SERVER, 1, message, None)
    return outcome.reply["weights"].vector, outcome.metrics


@pytest.mark.long
def test_each_option_of_the_distillation_counts() -> None:
    one = {"method__epochs": 1}
    base, _ = distilled(**one)
    again, _ = distilled(**one)
    np.testing.assert_array_equal(base, again)
    for key, value in {
        "tau_teacher": 0.2,
        "tau_student": 0.2,
        "anchors": 20,
        "momentum": 0.5,
        "epochs": 2,
        "batch_size": 8,
        "lr": 1e-4,
        "weight_decay": 0.1,
        "self_anchor": "mask",
        "representation": "backbone",
    }.items():
        other, _ = distilled(**{**one, f"method__{key}": value})
        assert not np.array_equal(base, other), key


@pytest.mark.long
def test_the_first_anchors_come_in_parts_of_at_least_two() -> None:
    """Of three anchors in batches of two none is embedded alone, where BatchNorm has no variance."""
    vector, _ = distilled(method__anchors=3, method__batch_size=2, model__projector__batch_norm="all")
    assert np.isfinite(vector).all()


def test_the_result_is_the_student_not_the_momentum_encoder() -> None:
    start = context_of().initial("small_cnn_bn")
    student, measured = distilled(method__momentum=1.0, method__epochs=8)  # the momentum encoder stands still
    moved = np.abs(student - start.vector)[: start.parameters]
    assert moved.max() > 1e-3
    assert measured["kl_last_epoch"] < measured["kl_first_epoch"]


def test_distillation_is_equations_5_to_10_step_by_step() -> None:
    """Twelve steps written out: keys of the second view join the queue before the loss, all teachers count, student
    and key encoder are in training mode, and the key encoder follows by (1 - zeta).
    """
    zeta, m, size, epochs = 0.9, 24, 16, 2
    config = {"momentum": zeta, "anchors": m, "batch_size": size, "epochs": epochs, "lr": 0.01, "weight_decay": 0,
              "tau_teacher": 0.2, "tau_student": 0.15}  # fmt: skip
    context = context_of(clients__count=3, **{f"method__{key}": value for key, value in config.items()})
    pixels, weights = context.images(context.published["public"]), context.initial("small_cnn_bn")
    draw, count = np.random.default_rng(0), len(pixels)
    teachers = [draw.normal(size=(count, d)).astype(np.float32) for d in (4, 6)]
    message = {"weights": weights, "teachers": [{"representations": r} for r in teachers]}
    outcome, _ = context.execute("distil", SERVER, 3, message, None)

    service: Any = context.method.service(context, SERVER, 3, "distil", {})  # type: ignore[misc]
    initial = InitialWeights(context.config, context.federation)
    student, key = (initial.network("small_cnn_bn").to(memory_format=torch.channels_last) for _ in range(2))  # type: ignore[call-overload]
    for network in (student, key):
        unpack(weights, network)
        network.train()
    rows = [r.astype(np.float64) / np.linalg.norm(r, axis=1, keepdims=True) for r in teachers]
    ensemble = torch.tensor((np.exp(rows[0] @ rows[0].T / 0.2) + np.exp(rows[1] @ rows[1].T / 0.2)) / 2)  # M (N, N)

    def unit(z: torch.Tensor) -> torch.Tensor:
        return z.double() / z.double().norm(dim=1, keepdim=True)

    views = service.generator("views")
    order = numpy_generator(context.config.seed, 3, SERVER, "distil", "warm up").permutation(count)[:m].tolist()
    queue: list[tuple[int, torch.Tensor]] = []  # (position, key), the oldest first
    with torch.no_grad():
        for part in np.array_split(order, 2):
            (view,) = service.views(pixels[part], views, 1)
            queue += zip(part.tolist(), unit(key.project(view)), strict=True)
    optimizer, losses = torch.optim.Adam(student.parameters(), 0.01), []
    for batch in service.batches(count, epochs, size):
        query_view, key_view = service.views(pixels[batch], views, 2)
        with torch.no_grad():
            queue = (queue + list(zip(batch.tolist(), unit(key.project(key_view)), strict=True)))[size:]
        positions, keys = [i for i, _ in queue], torch.stack([k for _, k in queue])
        q = (unit(student.project(query_view)) @ keys.T / 0.15).softmax(1)
        p = ensemble[batch][:, positions]
        p = p / p.sum(1, keepdim=True)
        loss = (p * (p / q).log()).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for mu, theta in zip(key.parameters(), student.parameters(), strict=True):
                mu.copy_(zeta * mu + (1 - zeta) * theta)
    first, last = np.mean(losses[: len(losses) // 2]), np.mean(losses[len(losses) // 2 :])
    assert len(losses) >= 4
    assert outcome.metrics["kl_first_epoch"] == pytest.approx(first, rel=1e-4)
    assert outcome.metrics["kl_last_epoch"] == pytest.approx(last, rel=1e-3)
    with torch.no_grad():
        clean = context.clean(pixels[:20])
        by_hand = student.eval().project(clean)
        unpack(weights, student)
        before = student.project(clean)
        unpack(outcome.reply["weights"], student)
        torch.testing.assert_close(student.project(clean), by_hand, atol=0.03, rtol=0)
    assert (before - by_hand).abs().max() > 0.1  # it went somewhere


def moved(weights: Weights) -> Weights:
    """Parameters unlike the initial ones."""
    vector = weights.vector.copy()
    noise = np.random.default_rng(3).standard_normal(weights.parameters)
    vector[: weights.parameters] += 0.05 * noise.astype(np.float32)
    return weights.with_vector(vector)


def test_the_student_starts_from_the_weights_it_is_given() -> None:
    context = context_of(method__lr=1e-12, method__epochs=1)  # it stays where it starts
    given = moved(context.initial("small_cnn_bn"))
    rows = np.eye(len(context.published["public"]), dtype=np.float32)
    message = {"weights": given, "teachers": [{"representations": rows}]}
    student = context.execute("distil", SERVER, 2, message, None)[0].reply["weights"]
    np.testing.assert_allclose(student.vector[: given.parameters], given.vector[: given.parameters], atol=1e-7)


def test_a_client_starts_from_the_weights_it_is_given() -> None:
    context = context_of(clients__encoders="small_cnn", train__optimizer={"lr": 1e-12, "momentum": 0})
    given = moved(context.initial("small_cnn"))
    found = context.execute("train", 1, 2, {"weights": given}, None)[0].reply["representations"]
    network = InitialWeights(context.config, context.federation).network("small_cnn").eval()
    unpack(given, network)
    with torch.no_grad():
        z = network.project(context.clean(context.images(context.published["public"])))
    np.testing.assert_allclose(found, z / z.norm(dim=1, keepdim=True), atol=1e-5)


def test_a_round_starts_from_the_last_ones_student_on_both_sides() -> None:
    def digest(weights: Weights) -> str:
        return hashlib.sha256(weights.vector.tobytes()).hexdigest()

    server, cohort = started(config_of(method__epochs=1))
    inner = cohort.worker.execute
    asked: list[tuple[int, str, str, dict[str, Any]]] = []

    def execute(operation: str, client: int, round: int, message: Any, state: Any, visit: int) -> Any:
        outcome, new = inner(operation, client, round, message, state, visit)
        asked.append((round, operation, digest(message["weights"]), outcome.reply))
        return outcome, new

    cohort.worker.execute = execute  # type: ignore[method-assign]
    before = digest(server.weights)
    for t in (1, 2):
        cohort.begin_round(t, cohort.federation.clients)
        server.round(t, cohort)
        cohort.end_round()
        now = [(operation, weights) for round, operation, weights, _ in asked if round == t]
        assert now == [*(("train", before) for _ in cohort.federation.clients), ("distil", before)]
        result = digest(asked[-1][3]["weights"])
        assert result == digest(server.weights) != before
        before = result


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flesd") / "run"
    run(folder, evaluation__protocols=["knn"])
    return folder


@pytest.mark.long
def test_a_run_evaluates_the_student_and_distillation_brings_it_closer(finished: Path) -> None:
    assert list(encoders(finished)) == ["global.safetensors"]
    assert len(metrics(finished, "eval/knn")) == 3  # the untrained student and two rounds
    first, last = metrics(finished, "server/kl_first_epoch"), metrics(finished, "server/kl_last_epoch")
    assert last[0] < first[0]


@pytest.mark.long
def test_two_runs_give_equal_bits_and_another_seed_others() -> None:
    vectors = [played(config_of(seed=seed))[0].weights.vector for seed in (0, 0, 1)]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])


def test_bytes_are_those_of_section_17(finished: Path) -> None:
    """Down: P and buffers, and once the public pixels. Up: N d_k and nothing else. Client 0 takes no part."""
    context = context_of()
    weights = context.initial("small_cnn_bn").wire_bytes()
    images = len(context.published["public"])
    expected = [
        row
        for client in (1, 2, 3)
        for row in (
            (0, client, "down", "publish", "public", images * 16 * 16 * 3),
            *(
                (t, client, *rest)
                for t in (1, 2)
                for rest in (
                    ("down", "train", "weights", weights[""]),
                    ("down", "train", "weights.buffers", weights[".buffers"]),
                    ("up", "train", "representations", images * 8 * 4),
                )
            ),
        )
    ]
    assert booked(finished) == sorted(expected)
    ratio = images * 8 * 4 / sum(weights.values())
    assert metrics(finished, "flesd/break_even_ratio") == pytest.approx([ratio, ratio])


@pytest.mark.parametrize(("upload", "per_row"), [("float16", 16), ("int8", 8)])
def test_a_narrow_upload_is_booked_as_such(upload: str, per_row: int) -> None:
    _, cohort = played(config_of(method__upload=upload, train__rounds=1))
    images = len(cohort.published["public"])
    up = {(row.field, row.bytes) for row in cohort.ledger.drain() if row.direction == "up"}
    assert up == {("representations", per_row * images)}


@pytest.mark.long
def test_flesd_cc_is_flesd_with_one_round() -> None:
    cc, _ = played(config_of(method={"name": "flesd_cc", "epochs": 3, "batch_size": 16}, train__rounds=1))
    one, _ = played(config_of(train__rounds=1))
    two, _ = played(config_of())
    np.testing.assert_array_equal(cc.weights.vector, one.weights.vector)
    assert not np.array_equal(one.weights.vector, two.weights.vector)


def test_only_the_sampled_clients_teach() -> None:
    server, cohort = started(config_of(participation__fraction=0.5, train__rounds=1))
    cohort.begin_round(1, (2, 3))
    server.round(1, cohort)
    assert {row.client for row in cohort.ledger.drain() if row.direction == "up"} == {2, 3}


@pytest.mark.long
def test_clients_of_several_architectures_keep_their_own_and_the_student_learns_from_all(tmp_path: Path) -> None:
    lines: list[str] = []
    config = config_of(
        clients__encoders=["small_cnn", "small_cnn", "small_cnn_bn", "small_cnn_bn"],
        method__student="small_cnn",
        method__representation="backbone",  # of different dimensions: M does not mind
    )
    loop.run(config, tmp_path / "run", LocalCohort, report=lambda progress: lines.append(progress.line))
    own = encoders(tmp_path / "run")
    assert own.keys() == {f"{name}.safetensors" for name in ("global", "client-00001", "client-00002", "client-00003")}
    rows = booked(tmp_path / "run")
    assert {row[4] for row in rows if row[2] == "down"} == {"public"}  # no weights travel
    assert sum("break-even at" in line for line in lines) == 2  # one line per architecture
    assert own["client-00002.safetensors"] != own["client-00003.safetensors"]
    described = json.loads((tmp_path / "run" / "encoder" / "global.json").read_text())
    assert described["encoder"] == "small_cnn"


def test_a_client_of_another_architecture_goes_on_from_its_own_model() -> None:
    context = context_of(clients__encoders=["small_cnn", *["small_cnn_bn"] * 3], method__student="small_cnn")
    first, state = context.execute("train", 1, 1, {}, None)
    from_own, _ = context.execute("train", 1, 2, {}, state)
    from_scratch, _ = context.execute("train", 1, 2, {}, None)
    assert set(state) == {"model"}
    assert not np.array_equal(from_own.reply["representations"], from_scratch.reply["representations"])
    assert set(first.reply) == {"representations"}


def test_labels_are_not_published() -> None:
    _, cohort = played(config_of(train__rounds=1))
    assert list(cohort.published) == ["public"]
    assert cohort.published["public"].dtype == np.uint8
    assert cohort.published["public"].shape[1:] == (16, 16, 3)


# -- what a user can get wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method": {"name": "flesd_cc"}}, "train.rounds: found 2; flesd_cc communicates once, allowed: 1"),
        ({"data__public": {"source": "none"}}, "data.public.source"),
        ({"method__student": "smal_cnn"}, "method.student: found 'smal_cnn'.*did you mean small_cnn"),
        ({"clients__encoders": ["small_cnn"] * 3 + ["small_cnn_bn"]}, "method.student: found null"),
        ({"method__anchors": 8}, "method.anchors: found 8; must be at least method.batch_size=16"),
        ({"method__self_anchor": "drop"}, "method.self_anchor"),
        ({"method__upload": "int4"}, "method.upload"),
        ({"method__tau_teacher": 0}, "method.tau_teacher"),
        ({"objective": {"name": "rotation"}}, "objective.name"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        config_of(**changes)


def test_a_public_set_too_small_for_the_anchors_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^data.public: found \d+ public images; method.anchors=2048 needs at least 2048"
    ):
        run(tmp_path / "run", method__anchors=2048)
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    ("method", "trains"), [("flesd", False), ("flesd_cc", False), ("fedsimclr", True), ("local", True)]
)
def test_client_0_trains_unless_its_images_are_used_as_public_ones(method: str, trains: bool) -> None:
    federation = load_federation(tiny(method, data__public={"source": "client 0", "share": 0.1}))
    assert (0 in federation.clients) == trains
    assert (federation.public is None) == trains
