"""The loss of one image as a membership score."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.leak.auc import AucEstimate, area, null_deviation
from rayfed_ssl.leak.audit import AGREEMENT, BESIDE, FALL, LOSS, Audit
from rayfed_ssl.leak.findings import Finding
from rayfed_ssl.leak.loss import heads_in_float64, losses, taking_features
from rayfed_ssl.leak.members import Sets, draw_sets
from rayfed_ssl.leak.replay import RecordedExchange, replayed
from rayfed_ssl.leak.run import leak
from rayfed_ssl.models import HeadConfig, ModelConfig
from rayfed_ssl.models.network import Network, build_network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, target_modules
from rayfed_ssl.objectives.simclr import SimCLR
from rayfed_ssl.objectives.supervised import Supervised, SupervisedConfig
from rayfed_ssl.records.leaked import UNTRAINED
from rayfed_ssl.simulation.resuming import load_moved
from tests import reference
from tests.leak.runs import finished


def audited(folder: Path, method: str, **changes: Any) -> tuple[Audit, RecordedExchange]:
    """An audit of client 0's messages of the last round, and its exchange with the server."""
    run = finished(folder, method, **{"data__limit": 160, "train__rounds": 1, **changes})
    rounds = load_moved(run, ()).train.rounds
    worker, recorded = replayed(load_moved(run, ()), run, rounds, lambda federation: [0])
    sets = draw_sets(worker.federation, 0, 20, 0)
    (one,) = recorded
    return Audit(worker, 0, rounds, sets), one


def views_of(audit: Audit, rows: np.ndarray) -> Sequence[torch.Tensor]:
    """Ten views of the images that the audit looks at, by itself."""
    seen = audit.looked(lambda images: images, audit.clients_pixels(rows), 10)
    return list(torch.cat(list(seen), dim=1))


def by_hand(audit: Audit, weights: Weights, rows: np.ndarray) -> list[float]:
    """Minus NT-Xent of one image's two views among the reference's, all of them seen by an encoder with these weights:
    the mean over five batches.
    """
    beside, temperature = audit.beside(), audit.config.objective.temperature  # type: ignore[attr-defined]
    assert set(beside) <= set(audit.sets.reference)
    assert len(set(beside)) == min(BESIDE, len(audit.sets.reference)) > 5
    network = audit.worker.network(audit.encoder, "by hand").eval()
    unpack(weights, network)
    projector = deepcopy(network.get_submodule("projector")).double()
    with torch.no_grad():
        mine, theirs = (
            [projector(network.represent(view).double()).numpy() for view in views_of(audit, images)]
            for images in (rows, beside)
        )
    return [
        -fmean(
            reference.nt_xent(
                np.vstack([mine[v][row], theirs[v]]), np.vstack([mine[v + 1][row], theirs[v + 1]]), temperature
            )
            for v in range(0, 10, 2)
        )
        for row in range(len(rows))
    ]


def test_a_score_is_minus_the_mean_loss_in_five_batches_with_images_of_the_reference(tmp_path: Path) -> None:
    audit, recorded = audited(tmp_path / "run", "fedsimclr", data__image_size=8)
    rows, got = audit.sets.members[:3], recorded.reply["weights"]
    np.testing.assert_allclose(audit.losing(got)(rows), by_hand(audit, got, rows), rtol=1e-12)


@pytest.mark.long
def test_the_fall_is_the_loss_under_what_was_sent_less_that_under_what_came_back(tmp_path: Path) -> None:
    """In the second round, where what was sent is no client's first values any more; each loss is computed once."""
    audit, recorded = audited(tmp_path / "run", "fedsimclr", data__image_size=8, train__rounds=2)
    rows = audit.sets.others[:3]
    sent, got = recorded.message["weights"], recorded.reply["weights"]
    assert not np.array_equal(sent.vector, audit.worker.initial(audit.encoder).vector)
    scores = {(field, score): scored for field, score, scored in audit.scores([recorded])}
    after, before = (np.array(by_hand(audit, weights, rows)) for weights in (got, sent))
    assert np.abs(after - before).min() > 1e-3
    np.testing.assert_allclose(scores["weights", FALL](rows), after - before, atol=1e-4)
    np.testing.assert_allclose(scores["weights", LOSS](rows), after, rtol=1e-4)


@pytest.mark.long
def test_the_loss_under_what_came_back_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit, recorded = audited(tmp_path / "run", "fedsimclr", data__image_size=8)
    seen: list[int] = []

    def counted(*given: Any) -> torch.Tensor:
        seen.append(given[2].shape[1])
        return losses(*given)

    monkeypatch.setattr("rayfed_ssl.leak.audit.losses", counted)
    found = [(one.field, one.score) for one in audit.findings([recorded])]
    assert found == [
        (UNTRAINED, AGREEMENT), (UNTRAINED, LOSS), ("weights", AGREEMENT), ("weights", LOSS), ("weights", FALL)
    ]  # fmt: skip
    assert seen == [len(audit.sets.members), len(audit.sets.others)] * 3  # untrained, got, sent


def test_features_in_place_of_images_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit, recorded = audited(tmp_path / "run", "fedsimclr", data__image_size=8)
    rows, reply = audit.sets.others[:4], recorded.reply
    network = audit.worker.network(audit.encoder, "audited", audit.classes)
    encoder = network.encoder
    quick = audit.losing(reply["weights"])(rows)
    assert network.encoder is encoder
    monkeypatch.setattr(SimCLR, "by_features", False)
    torch.testing.assert_close(audit.losing(reply["weights"])(rows), quick, rtol=1e-4, atol=1e-5)


def test_images_that_a_classifier_is_sure_of_have_losses_of_their_own() -> None:
    """Margins above 20: beside the losses of a batch, float32 rounds the loss of such an image away. NumPy's float64 is
    the truth, and scikit-learn's area.
    """
    network = build_network("small_cnn", ModelConfig(), 8, heads={"classifier"}, classes=2).eval()
    weight, bias = network.get_submodule("classifier").parameters()
    torch.nn.init.zeros_(bias)
    torch.nn.init.eye_(weight)  # the logits of an image are its first two features
    drawn, labels = np.random.default_rng(0), (torch.zeros(40, dtype=torch.long), torch.zeros(BESIDE, dtype=torch.long))
    features, beside = (np.zeros((1, count, network.dim), np.float32) for count in (40, BESIDE))
    features[0, :, 0], beside[0, :, 0] = drawn.uniform(20, 24, 40), drawn.uniform(0, 2, BESIDE)

    def scores(judge: Network, kind: torch.dtype) -> np.ndarray:
        given = [torch.from_numpy(part).to(kind) for part in (features, beside)]
        found = losses(Supervised(SupervisedConfig()), judge, given[0], given[1], labels, torch.Generator())
        return -found.numpy()

    crossed, theirs = (np.log1p(np.exp(-part[0, :, 0].astype(np.float64))) for part in (features, beside))
    truth = -(crossed + theirs.sum()) / (1 + BESIDE)
    found = scores(heads_in_float64(network), torch.float64)
    np.testing.assert_allclose(found - found.mean(), truth - truth.mean(), rtol=0, atol=1e-14)
    with taking_features(network):
        assert len(np.unique(scores(network, torch.float32))) < 40 == len(np.unique(found)) == len(np.unique(truth))
    member = drawn.permutation(40) < 20
    assert area(found[member], found[~member]) == pytest.approx(roc_auc_score(member, -crossed), abs=1e-12)


class MarkedConfig(ObjectiveConfig):
    name: Literal["marked"] = "marked"


@dataclass(frozen=True)
class Marked(Objective):
    """A loss that is the label of the first image, and leaves a mark in its memory."""

    config: MarkedConfig

    block: ClassVar[type[ObjectiveConfig]] = MarkedConfig
    heads: ClassVar[frozenset[str]] = frozenset()
    labelled: ClassVar[bool] = True
    memory: ClassVar[bool] = True

    def remember(self, dim: int, draws: torch.Generator) -> dict[str, torch.Tensor]:
        return {"marks": torch.zeros(1)}

    def step(self, network: Network, batch: Batch) -> Step:
        assert batch.labels is not None
        assert batch.memory is not None
        assert batch.target is None
        assert [tuple(view.shape) for view in batch.views] == [(4, 2)] * 2
        marks = batch.memory.tensors["marks"]
        marks += 1
        return Step(batch.labels[0] + marks.sum(), ())


class Bare:
    config = ModelConfig(projector=HeadConfig(dim=2))


def test_each_batch_has_its_image_first_its_label_and_a_fresh_memory() -> None:
    """Seven views make three batches; a mark left in one is not there in the next."""
    labels = torch.tensor([5, 7]), torch.tensor([0, 1, 2])
    views, beside = torch.zeros(7, 2, 2), torch.zeros(7, 3, 2)
    found = losses(Marked(MarkedConfig()), Bare(), views, beside, labels, torch.Generator())  # type: ignore[arg-type]
    assert found.tolist() == [6, 8]
    assert found.dtype == torch.float64


class Drawing(Marked):
    """A loss of nothing but what is drawn."""

    draws: ClassVar[bool] = True

    def step(self, network: Network, batch: Batch) -> Step:
        assert batch.memory is not None
        assert batch.memory.draws is not None
        return Step(torch.rand((), generator=batch.memory.draws), ())


def test_what_a_step_draws_is_the_same_for_every_image_and_another_in_each_of_its_batches() -> None:
    labels = torch.zeros(2), torch.zeros(3)
    views, beside = torch.zeros(7, 2, 2), torch.zeros(7, 3, 2)
    draws, same = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    found = losses(Drawing(MarkedConfig()), Bare(), views, beside, labels, draws)  # type: ignore[arg-type]
    expected = torch.stack([torch.rand((), generator=same) for _ in range(3)]).double().mean()
    torch.testing.assert_close(found, expected.expand(2))


def areas_of(findings: Sequence[Finding]) -> dict[tuple[str, str], list[AucEstimate]]:
    found: dict[tuple[str, str], list[AucEstimate]] = {}
    for one in findings:
        found.setdefault((one.field, one.score), []).append(one.found)
    return found


@pytest.mark.long
def test_a_classifier_that_learned_its_images_by_heart_tells_them(tmp_path: Path) -> None:
    """Sixty epochs over fifty images: each client's interval lies above chance, further than by agreement of views,
    and the untrained encoder's does not.
    """
    heavy = {"train__local_epochs": 60, "data__limit": 240, "clients__count": 3}
    run = finished(tmp_path / "run", "fedavg_supervised", train__rounds=1, **heavy)
    areas = areas_of(leak(run, clients=[0, 1, 2]).findings)
    assert all(area.low > 0.5 for score in (LOSS, FALL) for area in areas["weights", score])
    assert all(area.low < 0.5 < area.high for area in areas[UNTRAINED, LOSS])
    by_loss, by_agreement = (fmean(area.auc for area in areas["weights", score]) for score in (LOSS, AGREEMENT))
    assert by_loss > by_agreement


@pytest.mark.long
def test_an_encoder_that_fits_a_handful_of_images_is_told_by_the_fall_of_its_loss(tmp_path: Path) -> None:
    """No labels: NT-Xent, three hundred epochs over some fifty images: the mean over clients is three of its standard
    deviations above chance, the untrained encoder's within two. Members and others swapped mirror every area.
    """
    heavy = {"train__local_epochs": 300, "data__limit": 240, "clients__count": 3}
    run = finished(tmp_path / "run", "fedsimclr", train__rounds=1, **heavy)
    worker, recorded = replayed(load_moved(run, ()), run, 1, lambda federation: [0, 1, 2])
    findings, mirrored = [], []
    for client in range(3):
        sets, own = draw_sets(worker.federation, client, 1000, 0), [one for one in recorded if one.client == client]
        findings += Audit(worker, client, 1, sets).findings(own)
        mirrored += Audit(worker, client, 1, Sets(sets.others, sets.members, sets.reference)).findings(own)
    areas, few = areas_of(findings), min(one.members for one in findings)
    deviation = null_deviation(few, few) / 3**0.5
    assert fmean(area.auc for area in areas["weights", FALL]) > 0.5 + 3 * deviation
    assert abs(fmean(area.auc for area in areas[UNTRAINED, LOSS]) - 0.5) < 2 * deviation
    for one, other in zip(findings, mirrored, strict=True):
        assert (one.client, one.field, one.score) == (other.client, other.field, other.score)
        assert one.found.auc == pytest.approx(1 - other.found.auc, abs=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "score"), [("fedae", True), ("fedmae", True), ("fedbyol", True), ("fedmoco", True), ("flesd", False)]
)
def test_methods_that_send_weights_with_heads_have_a_loss(method: str, score: bool, tmp_path: Path) -> None:
    found = leak(finished(tmp_path / "run", method, train__rounds=1, data__limit=260, data__image_size=8), images=24)
    assert {one.field for one in found.findings if one.score == LOSS} == ({UNTRAINED, "weights"} if score else set())
    assert {one.field for one in found.findings if one.score == FALL} == ({"weights"} if score else set())
    assert all(np.isfinite(one.found.auc) for one in found.findings)


@pytest.mark.long
@pytest.mark.parametrize("objective", [{"name": "nnclr", "queue": 48}, {"name": "dino", "target": "averaged"}])
def test_objectives_with_memories_are_audited(objective: dict[str, Any], tmp_path: Path) -> None:
    audit, recorded = audited(tmp_path / "run", "fedavg", data__image_size=8, objective=objective)
    found = list(audit.findings([recorded]))
    target = [("target", AGREEMENT)] if objective.get("target") == "averaged" else []  # a target that crosses
    assert [(one.field, one.score) for one in found] == [
        (UNTRAINED, AGREEMENT), (UNTRAINED, LOSS), ("weights", AGREEMENT), ("weights", LOSS), ("weights", FALL), *target
    ]  # fmt: skip
    assert all(np.isfinite(one.found.auc) for one in found)


def test_a_teacher_with_prototypes_is_a_network_to_look_through(tmp_path: Path) -> None:
    changes = {"objective": {"name": "dino", "target": "averaged"}, "data__image_size": 8}
    audit, recorded = audited(tmp_path / "run", "fedavg", **changes)
    rows, teacher = audit.sets.members[:3], recorded.reply["target"]
    network = audit.worker.network(audit.encoder, "by hand").eval()
    unpack(teacher, network.encoder, network.projector, network.prototypes)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = torch.stack([network.represent(view) for view in views_of(audit, rows)])
    torch.testing.assert_close(audit.features(teacher, rows), expected)
    assert not audit.has_loss(teacher)


def test_weights_without_the_objectives_heads_have_no_loss_and_so_no_fall(tmp_path: Path) -> None:
    audit, recorded = audited(tmp_path / "run", "fedbyol", data__image_size=8)
    full, bare = recorded.reply["weights"], pack(*target_modules(audit.worker.network(audit.encoder)))  # no predictor
    assert audit.has_loss(full)
    assert not audit.has_loss(bare)

    def kinds(sent: Any, got: Weights) -> list[str]:
        exchange = RecordedExchange(1, 0, "train", {"weights": sent}, {"weights": got})
        return [score for field, score, _ in audit.scores([exchange]) if field == "weights"]

    assert kinds(full, full) == [AGREEMENT, LOSS, FALL]
    assert kinds(bare, full) == kinds(None, full) == [AGREEMENT, LOSS]
    assert kinds(full, bare) == [AGREEMENT]
