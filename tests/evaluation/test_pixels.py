"""What raw pixels are worth by every protocol: against loops and scikit-learn, at a bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, normalized_mutual_info_score, roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from rayfed_ssl.base.schema import Block
from rayfed_ssl.config import RunConfig
from rayfed_ssl.evaluation import PROTOCOLS, EvaluationConfig, Material, Protocol, Split, pixels
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.measured_rows import train_rows
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.simulation.evaluation_file import added
from tests.evaluation.test_evaluation_knn import loop_accuracy
from tests.tiny import run_locally, tiny


def averaged(image: np.ndarray, side: int) -> np.ndarray:
    """(side, side, C): the means of an image's (S, S, C) areas, each from the floor to the ceiling of its borders."""
    size = len(image)
    spans = [(i * size // side, -(-(i + 1) * size // side)) for i in range(side)]
    rows = [[image[a:b, c:d].astype(float).mean((0, 1)) for c, d in spans] for a, b in spans]
    return np.array(rows)


@pytest.mark.parametrize(("size", "channels"), [(8, 3), (32, 1)])
def test_small_images_are_their_bytes(size: int, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, size, size, channels), dtype=np.uint8)
    images.setflags(write=False)
    found = pixels.flattened(images)
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found.numpy(), images.reshape(5, -1))
    expected = images.reshape(5, -1).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(pixels.shares(images).numpy(), expected)


@pytest.mark.parametrize(("size", "channels"), [(33, 3), (48, 1), (64, 3)])
def test_larger_images_are_averaged_by_area(size: int, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, size, size, channels), dtype=np.uint8)
    expected = np.array([averaged(image, 32).ravel() for image in images])
    for block in (pixels.BLOCK, 2 * images[0].size + 1, 1):  # all at once, two by two, one by one
        monkeypatch.setattr(pixels, "BLOCK", block)
        torch.testing.assert_close(pixels.flattened(images).numpy(), expected, check_dtype=False)
    torch.testing.assert_close(pixels.shares(images).numpy(), expected / 255, check_dtype=False)


def test_a_large_image_has_no_more_dimensions_than_a_small_one() -> None:
    assert pixels.shares(np.zeros((2, 224, 224, 3), np.uint8)).shape == (2, 32 * 32 * 3)


def truth(config: RunConfig) -> tuple[np.ndarray, ...]:
    """Flattened pixels in [0, 1] and labels to train on, and to test on; larger images averaged by a loop."""
    federation = load_federation(config)
    rows, _ = train_rows(federation, config)
    found = []
    for part, chosen in ((federation.dataset.train, rows), (federation.dataset.test, slice(None))):
        images = [image if len(image) <= 32 else averaged(image, 32) for image in np.array(part.pixels)[chosen]]
        found += [np.array(images).reshape(len(images), -1) / 255, part.labels[chosen]]
    return tuple(found)


@pytest.mark.long
@pytest.mark.parametrize("size", [8, 40])
def test_knn_of_pixels_is_the_loops_and_scikit_learns(size: int) -> None:
    config = tiny(
        "fedsimclr", data__image_size=size, evaluation__knn={"k": 7, "temperature": 0.5},
        evaluation__metrics=["accuracy", "balanced_accuracy", "auc"], evaluation__train_images=120,
    )  # fmt: skip
    found = ProcessContext(config, load_federation(config)).evaluate_pixels()
    x, y, seen, labels = truth(config)
    assert len(x) == 120
    assert found["knn"] == pytest.approx(loop_accuracy(x, y, seen, labels, 7, 0.5), abs=1e-12)
    neighbours = KNeighborsClassifier(7, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.5))
    neighbours.fit(x, y)
    balanced = balanced_accuracy_score(labels, neighbours.predict(seen))
    assert found["knn_balanced_accuracy"] == pytest.approx(balanced, abs=1e-9)
    areas = [roc_auc_score(labels == c, neighbours.predict_proba(seen)[:, c]) for c in np.unique(labels)]
    assert found["knn_auc"] == pytest.approx(np.mean(areas), abs=1e-4)


@pytest.mark.long
def test_linear_of_pixels_is_near_scikit_learns_logistic_regression() -> None:
    config = tiny("fedsimclr", evaluation__protocols=["linear"], data__limit=1000, data__test_limit=400)
    found = ProcessContext(config, load_federation(config)).evaluate_pixels()
    x, y, seen, labels = truth(config)
    scale = x.std(0) + (x.std(0) == 0)
    model = LogisticRegression(max_iter=2000).fit((x - x.mean(0)) / scale, y)
    theirs = model.score((seen - x.mean(0)) / scale, labels)
    assert found == {"linear": pytest.approx(theirs, abs=0.02)}
    assert theirs > 0.8


def test_pixels_that_a_plane_separates_are_separated() -> None:
    """Of noise whose left half is brighter or darker than its right one; the brightness of the whole says nothing."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    images = rng.integers(60, 100, (400, 6, 6, 1))
    images[labels == 0, :, :3] += 60
    images[labels == 1, :, 3:] += 60
    splits = [
        Split(name, images[rows].astype(np.uint8), labels[rows], 2, pixels.shares)
        for name, rows in (("train", slice(300)), ("test", slice(300, 400)))
    ]
    material = Material(splits[0], {"": splits[1]}, images[:300], np.arange(300), 2, 0)
    for name, settings in (("linear", {"recipes": ["ours", "fedx"]}), ("knn", {}), ("fewshot", {})):
        row = PROTOCOLS[name]
        assert isinstance(row, Protocol)
        found = row.measure(material, row.config.model_validate(settings))
        assert set(found.values()) == {1.0}, name
    assert LogisticRegression().fit(images[:300].reshape(300, -1), labels[:300]).score(
        images[300:].reshape(100, -1), labels[300:]
    ) == 1.0  # fmt: skip


def test_clusters_of_pixels_know_something_of_classes() -> None:
    config = tiny("fedsimclr", evaluation__protocols=["cluster"])
    found = ProcessContext(config, load_federation(config)).evaluate_pixels()
    assert set(found) == {"cluster_nmi", "cluster_ari"}
    labels = truth(config)[3]
    guessed = normalized_mutual_info_score(labels, np.random.default_rng(0).permutation(labels))
    assert found["cluster_nmi"] > guessed + 0.1


def test_fewshot_of_small_images_reads_bytes_as_it_always_did() -> None:
    """Of values divided by 255 the last bits, and with them single answers, may differ."""
    config = tiny("fedsimclr", evaluation__protocols=["fewshot"])
    context = ProcessContext(config, load_federation(config))
    assert context.material(None).train.features.dtype == torch.uint8
    row = PROTOCOLS["fewshot"]
    assert isinstance(row, Protocol)
    assert row.pixels is pixels.flattened
    assert context.evaluate_pixels() == row.measure(context.material(None), config.evaluation.fewshot)


def test_protocols_that_need_an_encoder_leave_pixels_alone(tmp_path: Path) -> None:
    config = EvaluationConfig.model_validate({"protocols": [name for name in PROTOCOLS if name != "transfer"]})
    assert set(config.on_pixels) == {"knn", "linear", "fewshot", "cluster"}
    alone = tiny("fedsimclr", evaluation__protocols=["rank"], train__rounds=1)
    assert run_locally(alone, tmp_path / "run")["pixels"] == {}


def test_a_third_party_protocol_declares_whether_it_reads_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says nothing works as before; one that reads them is measured on them, and never remembered."""
    monkeypatch.setenv("RAYFED_SSL_CACHE", str(tmp_path))
    asked: list[str] = []

    def measure(material: Material, settings: Block) -> dict[str, float]:
        asked.append("pixels" if material.frozen is None else "encoder")
        return {"theirs": float(material.train.features.float().mean()), "features/theirs": 1.0}

    config = tiny("fedsimclr", evaluation__protocols=["knn"])
    federation = load_federation(config)
    for read, known in ((None, {"knn"}), (pixels.shares, {"knn", "theirs"})):
        rows: Mapping[str, Protocol[Any]] = {
            **config.evaluation.rows, "theirs": Protocol(Block, measure, lambda settings: ("theirs",), pixels=read),
        }  # fmt: skip
        monkeypatch.setattr(EvaluationConfig, "rows", property(lambda self, rows=rows: rows))
        monkeypatch.setattr(EvaluationConfig, "of", lambda self, name: self.knn if name == "knn" else Block())
        found = ProcessContext(config, federation).evaluate_pixels()
        assert set(found) == known
    assert ProcessContext(config, federation).evaluate_pixels() == found
    assert asked == ["pixels", "pixels"]
    assert found["theirs"] == pytest.approx(truth(config)[0].mean(), rel=1e-5)
    assert len(list((tmp_path / "evaluations").iterdir())) == 1


def test_pixels_measured_again_replace_what_the_same_protocol_said_before() -> None:
    known = {"pixels": {"knn": 0.1, "knn_auc": 0.2, "linear": 0.3}}
    assert added(known, {"pixels": {"knn": 0.5}}, ["knn"]) == {"pixels": {"linear": 0.3, "knn": 0.5}}
    assert added(known, {}, ["rank"]) == known
