"""Rank, clustering, angles and the metrics of a classification, against loops and scikit-learn."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, balanced_accuracy_score, normalized_mutual_info_score, roc_auc_score

from rayfed_ssl.base.seeding import generator, numpy_generator, seed_of
from rayfed_ssl.data.augment import augment
from rayfed_ssl.data.recipes import Recipe
from rayfed_ssl.evaluation import BrokenFeatures, cluster, rank
from rayfed_ssl.evaluation.angles import AnglesConfig, compare, features_of, mean_angle
from rayfed_ssl.evaluation.cluster import ClusterConfig, clustered
from rayfed_ssl.evaluation.metrics import accuracy, balanced_accuracy, macro_auc
from rayfed_ssl.evaluation.rank import RankConfig, alignment, rankme, spectrum, uniformity
from tests.evaluation.materials import digits, images, of_features, of_images, small_encoder


def unit(row: np.ndarray) -> np.ndarray:
    return np.asarray(row / math.sqrt(sum(value**2 for value in row)))


def test_alignment_and_uniformity_equal_loops_over_pairs() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(7, 3)), rng.normal(size=(7, 3))
    distances = [sum((x - y) ** 2 for x, y in zip(unit(a[i]), unit(b[i]), strict=True)) for i in range(7)]
    assert alignment(torch.tensor(a), torch.tensor(b)) == pytest.approx(sum(distances) / 7, rel=1e-12)
    pairs = [
        math.exp(-2 * sum((x - y) ** 2 for x, y in zip(unit(a[i]), unit(a[j]), strict=True)))
        for i in range(7)
        for j in range(i)
    ]
    assert uniformity(torch.tensor(a)) == pytest.approx(math.log(sum(pairs) / 21), rel=1e-12)
    assert uniformity(torch.ones(5, 4)) == 0.0
    assert alignment(torch.tensor(a), torch.tensor(5 * a)) == pytest.approx(0.0, abs=1e-15)


def test_uniformity_of_an_encoder_that_has_died_is_that_of_a_collapse() -> None:
    """Features of zeros have no direction: they lie on one another, and not as far apart as the sphere allows."""
    assert uniformity(torch.zeros(5, 4)) == 0.0
    assert uniformity(torch.full((5, 4), 1e-15)) == pytest.approx(0.0, abs=1e-3)
    rows = [[0.0, 0.0], [0.0, 0.0], [3.0, 4.0], [1.0, 0.0]]
    directions = [[0.0, 0.0], [0.0, 0.0], [0.6, 0.8], [1.0, 0.0]]
    distances = [math.dist(directions[i], directions[j]) ** 2 for i in range(4) for j in range(i)]
    expected = math.log(sum(math.exp(-2 * distance) for distance in distances) / 6)
    assert uniformity(torch.tensor(rows)) == pytest.approx(expected, rel=1e-12)


def test_rankme_counts_equal_directions() -> None:
    rng = np.random.default_rng(1)
    orthogonal = np.linalg.qr(rng.normal(size=(40, 6)))[0]
    assert rankme(torch.tensor(orthogonal)) == pytest.approx(6.0, rel=1e-4)
    assert rankme(torch.tensor(orthogonal[:, :1] @ rng.normal(size=(1, 6)))) == pytest.approx(1.0, rel=1e-4)
    x = rng.normal(size=(30, 5)) * np.array([5.0, 1.0, 0.2, 1e-3, 0.0])
    values = np.sqrt(np.clip(np.linalg.eigvalsh(x.T @ x), 0, None))  # singular values by another route
    shares = [value / sum(values) + 1e-7 for value in values]
    assert rankme(torch.tensor(x)) == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)), rel=1e-6)
    assert rankme(torch.zeros(4, 3)) == 0.0


def test_the_spectrum_is_that_of_the_covariance() -> None:
    x = np.random.default_rng(2).normal(size=(50, 4)) @ np.diag([3.0, 1.0, 0.5, 0.0]) + 7
    expected = sorted(np.linalg.svd(x - x.mean(axis=0))[1] ** 2 / 50, reverse=True)
    np.testing.assert_allclose(spectrum(torch.tensor(x)).numpy(), expected, atol=1e-12)


def test_rank_looks_at_training_images_in_eval_mode_without_a_label() -> None:
    recipe = Recipe(crop_scale=(0.5, 1.0), flip=True)
    encoder = small_encoder(recipe)
    before = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    pixels, labels = images(40, 0)
    made = of_images(encoder, (pixels, np.full_like(labels, -1)), (pixels[:0], labels[:0]))
    values = rank.measure(made, RankConfig(images=30, spectrum=3))
    assert list(values) == ["features/alignment", "features/uniformity", "features/rankme"] + [
        f"features/spectrum/00{k}" for k in range(3)
    ]
    assert all(torch.equal(value, before[name]) for name, value in encoder.module.state_dict().items())
    rows = numpy_generator(3, "evaluation", "rank").permutation(40)[:30]
    features = encoder.features(pixels[rows])
    assert values["features/rankme"] == pytest.approx(rankme(features))
    assert values["features/uniformity"] == pytest.approx(uniformity(features))
    assert values["features/spectrum/000"] == pytest.approx(float(spectrum(features)[0]))
    draws = generator(3, "evaluation", "rank", "views")
    parts = []
    for block in np.split(pixels[rows], [16]):  # the encoder's batches
        views = augment(torch.tensor(block).permute(0, 3, 1, 2), recipe, draws, views=2)
        with torch.no_grad():
            parts.append(encoder.module(views).chunk(2))
    first, second = (torch.cat(list(view)) for view in zip(*parts, strict=True))
    assert values["features/alignment"] == pytest.approx(alignment(first, second), rel=1e-5)
    assert values == rank.measure(made, RankConfig(images=30, spectrum=3))


def test_rank_of_one_image_knows_no_pair() -> None:
    pixels, labels = images(1, 0)
    values = rank.measure(of_images(small_encoder(), (pixels, labels), (pixels, labels)), RankConfig(spectrum=0))
    assert list(values) == ["features/alignment", "features/rankme"]
    assert values["features/rankme"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rank_refuses_features_that_are_not_finite(value: float) -> None:
    """As accuracies do: where they are measured alone, a run that diverged ends as one."""
    encoder, (pixels, labels) = small_encoder(), images(40, 0)
    next(encoder.module.parameters()).data[2] = value
    with pytest.raises(BrokenFeatures, match=r"features that are not finite for 30 of 30 training images"):
        rank.measure(of_images(encoder, (pixels, labels), (pixels, labels)), RankConfig(images=30))


def test_k_means_finds_separate_classes_and_equals_scikit_learn() -> None:
    centres = 5 * torch.eye(4, 6)
    labels = torch.arange(80) % 4
    apart = centres[labels] + 0.1 * torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
    material = of_features(apart, labels, apart, labels)
    assert cluster.measure(material, ClusterConfig(clusters=4)) == {"cluster_nmi": 1.0, "cluster_ari": 1.0}
    halves = cluster.measure(material, ClusterConfig(clusters=2))
    assert halves["cluster_nmi"] == pytest.approx(2 * math.log(2) / (math.log(2) + math.log(4)), rel=0.1)

    train_x, train_y, test_x, test_y = digits()
    values = cluster.measure(of_features(train_x, train_y, test_x, test_y), ClusterConfig(normalise=False, starts=2))
    theirs = KMeans(10, n_init=2, random_state=seed_of(3, "cluster") % 2**32).fit_predict(test_x.double().numpy())
    assert values["cluster_nmi"] == pytest.approx(normalized_mutual_info_score(test_y, theirs))
    assert values["cluster_ari"] == pytest.approx(adjusted_rand_score(test_y, theirs))
    assert 0.5 < values["cluster_nmi"] < 0.9
    permuted = cluster.measure(
        of_features(train_x, train_y, test_x, 9 - test_y), ClusterConfig(normalise=False, starts=2)
    )
    assert permuted == pytest.approx(values)  # names of classes say nothing


def test_the_features_of_a_collapsed_encoder_are_clustered_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = clustered(torch.ones(6, 3), 2, 10, seed=0)
        two = clustered(torch.tensor([[1.0], [1.0], [5.0], [1.0], [5.0]]), 4, 10, seed=0)
    assert one.tolist() == [0] * 6
    assert (two == two[2]).tolist() == [False, False, True, False, True]
    assert len(set(two.tolist())) == 2


def test_k_means_makes_as_many_clusters_as_classes_have_images_whatever_their_numbers() -> None:
    """Labels 3 and 900 of a data set with more classes than images are two classes."""
    labels = torch.tensor([3, 900]).repeat(20)
    apart = 5 * torch.eye(2, 6)[torch.arange(40) % 2] + 0.1 * torch.randn(40, 6, generator=torch.manual_seed(0))
    of_two = of_features(apart, labels, apart, labels, classes=901)
    assert cluster.measure(of_two, ClusterConfig()) == {"cluster_nmi": 1.0, "cluster_ari": 1.0}
    three = torch.cat([labels[:-1], torch.tensor([7])])  # of the third class no image is tested on
    one_is_untested = of_features(apart, three, apart, labels, classes=901)
    thirds = cluster.clustered(F.normalize(apart, dim=1), 3, 10, 3)
    expected = normalized_mutual_info_score(labels, thirds)
    assert cluster.measure(one_is_untested, ClusterConfig())["cluster_nmi"] == pytest.approx(expected) != 1.0


def test_angles_between_encoders() -> None:
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 2.0]])
    b = torch.tensor([[0.0, 3.0], [-1.0, 0.0], [1.0, 0.0]])
    assert mean_angle(a, b) == pytest.approx((90 + 180 + 45) / 3)
    assert mean_angle(a, 7 * a) == pytest.approx(0.0, abs=1e-6)
    encoders = {name: small_encoder(seed=seed) for name, seed in (("x", 1), ("y", 2), ("z", 1))}
    pixels, _ = images(50, 0)
    config = AnglesConfig(images=20)
    compared = {name: features_of(encoder, pixels, config, 5) for name, encoder in encoders.items()}
    values = compare(compared, config)
    assert list(values) == ["features/angle", "features/angle/x y", "features/angle/x z", "features/angle/y z"]
    assert values["features/angle/x z"] == pytest.approx(0.0, abs=1e-4)
    rows = numpy_generator(5, "evaluation", "angles").permutation(50)[:20]
    features = [encoders[name].features(pixels[rows]).double().numpy() for name in ("x", "y")]
    cosines = [float(unit(one) @ unit(other)) for one, other in zip(*features, strict=True)]
    expected = np.mean([math.degrees(math.acos(min(1.0, cosine))) for cosine in cosines])
    assert values["features/angle/x y"] == pytest.approx(expected, rel=1e-5)
    assert values["features/angle"] == pytest.approx(
        np.mean([values[f"features/angle/{p}"] for p in ("x y", "x z", "y z")])
    )
    assert compare({"x": compared["x"]}, config) == {}
    other = compare({**compared, "of 2 dimensions": compared["x"][:, :2]}, config)
    assert other == values  # pairs of one dimension only


def test_angles_look_at_every_class_of_images_sorted_by_class() -> None:
    """Two encoders that differ in the last of four classes alone, which first images would not show."""
    labels = np.repeat(np.arange(4), 500)
    pixels = np.broadcast_to(labels.astype(np.uint8)[:, None, None, None] + 1, (2000, 4, 4, 3))
    config, angles = AnglesConfig(), []
    for last in (0.0, 90.0):

        class Rows(torch.nn.Module):
            def forward(self, x: torch.Tensor, last: float = last) -> torch.Tensor:
                turned = math.radians(last) * (x.mean((1, 2, 3)) * 255 > 3.5)
                return torch.stack([turned.cos(), turned.sin()], 1)

        encoder = replace(small_encoder(), module=Rows(), dim=2)
        angles.append(features_of(encoder, pixels, config, 0))
        assert torch.equal(
            features_of(encoder, pixels[:1000], config, 0), encoder.features(pixels[:1000])
        )  # all, in order
    found = compare({"a": angles[0], "b": angles[1]}, config)["features/angle"]
    assert found == pytest.approx(90 / 4, abs=4)  # three standard deviations of a share of a quarter in 1000 images


def test_metrics_equal_scikit_learn_and_absent_classes_take_no_part() -> None:
    rng = np.random.default_rng(5)
    truth = rng.choice([0, 1, 3], 60, p=[0.8, 0.1, 0.1])
    scores = torch.tensor(rng.dirichlet(np.ones(4), 60))
    predicted = scores.argmax(dim=1)
    known = torch.tensor(truth)
    assert accuracy(predicted, scores, known) == pytest.approx((predicted.numpy() == truth).mean())
    expected = np.mean([(predicted.numpy()[truth == label] == label).mean() for label in (0, 1, 3)])
    assert balanced_accuracy(predicted, scores, known) == pytest.approx(expected)
    inside = predicted != 2
    assert balanced_accuracy(predicted[inside], scores[inside], known[inside]) == pytest.approx(
        balanced_accuracy_score(truth[inside.numpy()], predicted[inside].numpy())
    )
    areas = []
    for label in (0, 1, 3):
        wins = [
            1.0 if a > b else 0.5 if a == b else 0.0
            for a in scores[known == label, label].tolist()
            for b in scores[known != label, label].tolist()
        ]
        areas.append(sum(wins) / len(wins))
    assert macro_auc(predicted, scores, known) == pytest.approx(np.mean(areas))
    assert macro_auc(predicted, scores, known) == pytest.approx(
        np.mean([roc_auc_score(truth == label, scores[:, label]) for label in (0, 1, 3)])
    )
    assert math.isnan(macro_auc(predicted[:3], scores[:3], torch.zeros(3, dtype=torch.int64)))
