"""Neighbours, components and the data behind figures, against scikit-learn and loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from rayfed_ssl.base.weights import unpack
from rayfed_ssl.config import load
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.records.tables import COMMUNICATION, METRICS, table
from rayfed_ssl.report import folder, holdings, maps, panels, representations
from rayfed_ssl.report.representations import Look
from rayfed_ssl.testing.tiny import BASE

FEATURES = np.random.default_rng(0).normal(size=(40, 6))
LABELS = np.random.default_rng(1).integers(0, 3, 40)


def test_neighbours_are_those_of_the_largest_cosines() -> None:
    nearest = NearestNeighbors(n_neighbors=6, metric="cosine").fit(FEATURES)
    distances, rows = nearest.kneighbors(FEATURES)
    for query in range(len(FEATURES)):
        found = representations.neighbours(FEATURES, query)
        assert [row for row, _ in found] == rows[query, 1:].tolist()
        np.testing.assert_allclose([cosine for _, cosine in found], 1 - distances[query, 1:], atol=1e-12)


def test_principal_components_are_those_of_scikit_learn_up_to_sign() -> None:
    found, truth = representations.principal(FEATURES, 3), PCA(3).fit_transform(FEATURES)
    np.testing.assert_allclose(np.abs(found), np.abs(truth), atol=1e-9)
    flipped = representations.principal(-FEATURES, 3)
    np.testing.assert_allclose(flipped, -found, atol=1e-9)  # the axes, not the images, decide the signs
    assert representations.principal(FEATURES[:, :1], 2)[:, 1].tolist() == [0.0] * 40


def test_the_map_is_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    places, kind = representations.plane(FEATURES, seed=3)
    again, _ = representations.plane(FEATURES, seed=3)
    np.testing.assert_array_equal(places, again)
    monkeypatch.setattr(representations.importlib.util, "find_spec", lambda name: None)
    flat, kind = representations.plane(FEATURES, seed=3)
    assert kind == "PCA"
    np.testing.assert_allclose(flat, representations.principal(FEATURES, 2))


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1])
def test_no_name_on_a_map_covers_another(spread: float) -> None:
    figure = Figure(figsize=(3.4, 2.7))
    axes = figure.add_subplot()
    places = 0.5 + spread * np.random.default_rng(2).normal(size=(16, 2))
    names = [axes.annotate(f"class {k}", place, (0, 0), textcoords="offset points") for k, place in enumerate(places)]
    alone = axes.annotate("far", (0.02, 0.02), (0, 0), textcoords="offset points")
    maps.apart(figure, [*names, alone])
    boxes = [name.get_window_extent() for name in names]
    for a, b in combinations(boxes, 2):
        assert not (min(a.x1, b.x1) > max(a.x0, b.x0) and min(a.y1, b.y1) > max(a.y0, b.y0)), (a, b)
    assert alone.get_position() == (0, 0)
    assert all(abs(name.get_position()[1]) < 8 * 1.5 * 10 for name in names)  # at most half of a stack of them all


def test_every_class_is_asked_for_in_turn() -> None:
    assert representations.queries(np.array([2, 0, 0, 1, 2]), 3) == [1, 3, 0]
    assert representations.queries(np.arange(12)[::-1].copy(), 6) == [11, 9, 7, 5, 3, 1]
    assert representations.queries(np.full(9, -1), 4) == [0, 2, 4, 6]
    assert representations.queries(np.full(3, -1), 4) == [0, 1, 2]


def test_the_map_shows_every_class_of_images_sorted_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat(np.arange(3), 400)
    features = np.eye(3)[labels] + 0.01 * np.random.default_rng(3).normal(size=(1200, 3))
    pixels = np.zeros((1200, 8, 8, 3), np.uint8)
    seen = Look(pixels, labels, ("a", "b", "c"), features, None, "global", "test", 7)
    monkeypatch.setattr(maps, "plane", lambda features, seed: (features[:, :2].copy(), "PCA"))
    drawn: list[Figure] = []

    class Studio:
        def draw(self, name: str, title: str, draw: Callable[[Figure], None], **words: object) -> None:
            if name.startswith("map"):
                drawn.append(Figure())
                draw(drawn[-1])

    list(maps.figures(seen, Studio()))  # type: ignore[arg-type]
    (figure,) = drawn
    counts = [len(points.get_offsets()) for points in figure.axes[0].collections]
    assert sum(counts) == 500
    assert min(counts) > 120  # of about 167 each
    for points, corner in zip(figure.axes[0].collections, [(1, 0), (0, 1), (0, 0)], strict=True):
        assert np.abs(np.asarray(points.get_offsets()) - corner).max() < 0.1  # each place has its own image's class
    assert representations.mapped(500, 7).tolist() == list(range(500))


def test_agreement_counts_neighbours_of_the_same_class() -> None:
    pixels = np.zeros((40, 8, 8, 3), np.uint8)
    seen = Look(pixels, LABELS, ("a", "b", "c"), FEATURES, None, "global", "test", 0)
    hits = [
        LABELS[row] == LABELS[query] for query in range(40) for row, _ in representations.neighbours(FEATURES, query)
    ]
    assert maps.agreement(seen) == pytest.approx(np.mean(hits))
    some = dataclasses.replace(seen, labels=np.where(np.arange(40) < 25, LABELS, -1))
    alone = dataclasses.replace(seen, labels=LABELS[:25], features=FEATURES[:25], pixels=pixels[:25])
    assert maps.agreement(some) == maps.agreement(alone)  # images without a label are no neighbours
    one = dataclasses.replace(seen, labels=np.where(np.arange(40) < 1, LABELS, -1))
    assert maps.agreement(one) is None
    for strip, query in zip(maps.strips(seen), representations.queries(LABELS), strict=True):
        rows = [row for row, _ in representations.neighbours(FEATURES, query)]
        assert [near.same for near in strip.neighbours] == [bool(LABELS[row] == LABELS[query]) for row in rows]
        assert all(near.png.startswith("data:image/png;base64,") for near in strip.neighbours)


def test_a_look_has_the_features_of_the_run_before_and_after(bare: Path) -> None:
    seen = representations.look(bare)
    config = load(bare / "config.yaml")
    federation = load_federation(config)
    context = ProcessContext(config, federation)
    network = context.network("small_cnn_bn")
    unpack(context.initial("small_cnn_bn"), network)
    before = context.frozen(network).features(federation.dataset.test.pixels)
    assert seen.before is not None
    np.testing.assert_array_equal(seen.before, before.double().numpy())
    assert (seen.encoder, seen.split, len(seen.labels)) == ("global", "test", 60)
    assert not np.allclose(seen.features, seen.before)
    np.testing.assert_array_equal(seen.pixels, federation.dataset.test.pixels)


def test_who_holds_what_is_counted_from_the_partition(bare: Path) -> None:
    run = folder.read(bare)
    assert run.partition is not None
    clients, classes, held = holdings.counts(run.partition)
    rows = [row for row in pq.read_table(bare / "partition.parquet").to_pylist() if row["split"] == "train"]
    for client in clients:
        for label in classes:
            count = sum(row["client"] == client and row["label"] == label for row in rows)
            assert held[clients.index(client), classes.index(label)] == count
    assert held.sum() == BASE["data"]["limit"]


def made(bookings: list[tuple[object, ...]], metrics: list[tuple[object, ...]], rounds: int) -> folder.RunFolder:
    return folder.RunFolder(
        Path("run"), {}, {"rounds": rounds}, table(metrics, METRICS), table(bookings, COMMUNICATION), None, {}, {}
    )


def test_the_age_of_a_dictionary_is_the_time_since_its_upload() -> None:
    uploads = [(1, 0), (1, 1), (3, 0), (4, 2)]
    rows = [(t, c, "up", "train", "dictionary", 10) for t, c in uploads]
    rows += [(t, 1, "down", "train", "dictionary", 10) for t in (2, 3)]  # what is received says nothing of age
    ages = panels.dictionary_ages(made(rows, [], 5))
    assert ages == {1: {0: 0, 1: 0}, 2: {0: 1, 1: 1}, 3: {0: 0, 1: 2}, 4: {0: 1, 1: 3, 2: 0}, 5: {0: 2, 1: 4, 2: 1}}


def test_pairs_become_matrices() -> None:
    rows = [(t, None, f"fedfoa/distance_{i}_{j}", t + i + 10.0 * j, 0.0) for t in (1, 2) for i, j in ((0, 1), (0, 2))]
    rows += [(1, None, "fedfoa/distance", 5.0, 0.0), (1, None, "fedfoa/distance_0_999999999", 1.0, 0.0)]
    assert panels.pairs(made([], rows, 2), "fedfoa/distance_", mirrored=True) == {}  # no matrix of that size
    found = panels.pairs(made([], rows[:-1], 2), "fedfoa/distance_", mirrored=True)
    nan = np.nan
    np.testing.assert_array_equal(found[2], [[nan, 12, 22], [12, nan, nan], [22, nan, nan]])
    assert sorted(found) == [1, 2]


def test_bytes_by_field_add_up(bare: Path) -> None:
    from rayfed_ssl.report import costs

    run = folder.read(bare)
    rows = costs.fields(run)
    assert sum(row.bytes for row in rows) == pa.compute.sum(run.bookings["bytes"]).as_py()
    assert sum(row.share for row in rows) == pytest.approx(1)
    up = sum(row.bytes for row in rows if row.direction == "up")
    assert up == run.summary["communication"]["up_bytes"]
