"""The loss of one image as a membership score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from rayfed_ssl.base.weights import pack, unpack
from rayfed_ssl.federated.client import followed
from rayfed_ssl.leak.audit import AGREEMENT, BESIDE, LOSS, UNTRAINED, Audit, draw_sets
from rayfed_ssl.leak.loss import losses
from rayfed_ssl.leak.replay import replayed
from rayfed_ssl.leak.run import leak
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step
from rayfed_ssl.objectives.simclr import SimCLR
from rayfed_ssl.simulation.resuming import load_moved
from tests import reference
from tests.leak.test_leak import finished


def audited(folder: Path, method: str, **changes: Any) -> tuple[Audit, Any]:
    """An audit of client 0's messages of the last round, and its reply."""
    run = finished(folder, method, data__limit=160, train__rounds=1, **changes)
    tap, heard = replayed(load_moved(run, ()), run, 1, lambda federation: [0])
    sets = draw_sets(tap.federation, 0, 20, 0)
    return Audit(tap, 0, 1, sets), heard[0].reply


def views_of(audit: Audit, rows: np.ndarray) -> Sequence[torch.Tensor]:
    """Ten views of the images that the audit looks at, by itself."""
    seen = audit._looked(lambda images: images, audit._clients_pixels(rows), 10)
    return list(torch.cat(list(seen), dim=1))


def test_a_score_is_minus_the_mean_loss_in_five_batches_with_images_of_the_reference(tmp_path: Path) -> None:
    """By hand: NT-Xent of one image's two views among the reference's, all of them seen by the uploaded encoder."""
    audit, reply = audited(tmp_path / "run", "fedsimclr", data__image_size=8)
    beside, temperature = audit._beside(), audit.config.objective.temperature  # type: ignore[attr-defined]
    assert set(beside) <= set(audit.sets.reference)
    assert len(set(beside)) == min(BESIDE, len(audit.sets.reference)) > 5
    network = audit.tap.network(audit.encoder).eval()
    unpack(reply["weights"], network)
    rows = audit.sets.members[:3]
    with torch.no_grad():
        mine = [network.project(view).double().numpy() for view in views_of(audit, rows)]
        theirs = [network.project(view).double().numpy() for view in views_of(audit, beside)]
    wanted = [
        -fmean(
            reference.nt_xent(
                np.vstack([mine[v][row], theirs[v]]), np.vstack([mine[v + 1][row], theirs[v + 1]]), temperature
            )
            for v in range(0, 10, 2)
        )
        for row in range(3)
    ]
    np.testing.assert_allclose(audit.losing(reply["weights"])(rows), wanted, rtol=1e-4)


def test_features_in_place_of_images_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit, reply = audited(tmp_path / "run", "fedsimclr", data__image_size=8)
    rows = audit.sets.others[:4]
    network = audit.tap.network(audit.encoder, "audited", audit.classes)
    encoder = network.encoder
    quick = audit.losing(reply["weights"])(rows)
    assert network.encoder is encoder
    monkeypatch.setattr(SimCLR, "by_features", False)
    torch.testing.assert_close(audit.losing(reply["weights"])(rows), quick, rtol=1e-4, atol=1e-5)


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
    projection_dim = 2


def test_each_batch_has_its_image_first_its_label_and_a_fresh_memory() -> None:
    """Seven views make three batches; a mark left in one is not there in the next."""
    labels = torch.tensor([5, 7]), torch.tensor([0, 1, 2])
    views, beside = torch.zeros(7, 2, 2), torch.zeros(7, 3, 2)
    found = losses(Marked(MarkedConfig()), Bare(), views, beside, labels, torch.Generator())  # type: ignore[arg-type]
    assert found.tolist() == [6, 8]
    assert found.dtype == torch.float64


def test_a_classifier_that_learned_its_images_by_heart_tells_them(tmp_path: Path) -> None:
    """Sixty epochs over fifty images: each client's interval lies above chance, further than by agreement of views,
    and the untrained encoder's does not.
    """
    heavy = {"train__local_epochs": 60, "data__limit": 240, "clients__count": 3}
    run = finished(tmp_path / "run", "fedavg_supervised", train__rounds=1, **heavy)
    found = leak(run, clients=[0, 1, 2])
    scores = [(one.field, one.score) for one in found.findings[:4]]
    assert scores == [(UNTRAINED, AGREEMENT), (UNTRAINED, LOSS), ("weights", AGREEMENT), ("weights", LOSS)]
    areas = {
        (field, score): [one.found for one in found.findings if (one.field, one.score) == (field, score)]
        for field, score in scores
    }
    assert all(area.low > 0.5 for area in areas["weights", LOSS])
    assert all(area.low < 0.5 < area.high for area in areas[UNTRAINED, LOSS])
    by_loss, by_agreement = (fmean(area.auc for area in areas["weights", score]) for score in (LOSS, AGREEMENT))
    assert by_loss > by_agreement


@pytest.mark.parametrize(("method", "score"), [("fedae", True), ("fedbyol", True), ("fedmoco", True), ("flesd", False)])
def test_whoever_sends_weights_with_their_heads_has_a_loss(method: str, score: bool, tmp_path: Path) -> None:
    found = leak(finished(tmp_path / "run", method, train__rounds=1, data__limit=260, data__image_size=8), images=24)
    assert {one.field for one in found.findings if one.score == LOSS} == ({UNTRAINED, "weights"} if score else set())
    assert all(np.isfinite(one.found.auc) for one in found.findings)


def test_weights_without_the_objectives_heads_have_none(tmp_path: Path) -> None:
    audit, reply = audited(tmp_path / "run", "fedbyol", data__image_size=8)
    network = audit.tap.network(audit.encoder)
    assert audit.has_loss(reply["weights"])
    assert not audit.has_loss(pack(*followed(network)))  # no predictor
