"""When a run says that more neighbours vote than a class has images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.evaluation.knn import KnnConfig, remarks
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.simulation.checks import image_notes
from tests.tiny import tiny


@pytest.mark.parametrize(
    ("k", "classes", "each", "said"),
    [(200, 50, 10, True), (15, 50, 10, False), (16, 50, 10, True), (200, 10, 99, False), (200, 100, 500, False)],
)
def test_more_neighbours_than_a_class_has_are_said(k: int, classes: int, each: int, said: bool) -> None:
    lines = list(texts(remarks(KnnConfig(k=k), np.repeat(np.arange(classes), each))))
    assert bool(lines) == said
    if said:
        assert lines[0].startswith(f"evaluation.knn.k: found {k}, of which {min(k, 50)} are used, but the median class")
        assert "has 10 of the 500 labelled train images" in lines[0]


def test_a_run_says_it_of_the_images_that_evaluation_uses() -> None:
    config = tiny("fedsimclr")
    federation = load_federation(config)
    assert not [note for note in texts(image_notes(config, federation)) if "knn" in note]
    train = federation.dataset.train
    relabelled = replace(
        train, class_names=(), labels=np.arange(len(train.labels)) % 40
    )  # 160 images: 4 a class, 16 neighbours
    federation = replace(federation, dataset=replace(federation.dataset, train=relabelled))
    (line,) = [note for note in texts(image_notes(config, federation)) if "knn" in note]
    assert "found 200, of which 16 are used, but the median class has 4 of the 160" in line
