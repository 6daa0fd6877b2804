"""The linear probe against autograd, torch.optim.Adam in float64 and scikit-learn's logistic regression."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

from rayfed_ssl.base.seeding import generator
from rayfed_ssl.evaluation.linear import PAPERS, LinearConfig, LinearProbe, ProbeRecipe, RecipeName, fit, measure
from rayfed_ssl.evaluation.standard import moments, standardise
from tests.evaluation.materials import digits, linear_accuracy, of_features


def test_moments_equal_the_standard_scaler() -> None:
    x = digits()[0]
    mean, std = moments(x)
    scaler = StandardScaler().fit(x.double().numpy())
    np.testing.assert_allclose(mean.numpy(), scaler.mean_, rtol=1e-6)
    np.testing.assert_allclose(std.numpy(), scaler.scale_, rtol=1e-6)  # scikit-learn, too, scales a constant by 1
    np.testing.assert_allclose(standardise(x, mean, std).numpy(), scaler.transform(x.numpy()), atol=1e-5)


def test_rounding_noise_of_a_constant_feature_is_not_amplified() -> None:
    x = torch.full((5000, 2), 0.1)
    x[::2, 1] = torch.nextafter(torch.tensor(0.1), torch.tensor(1.0))
    mean, std = moments(x)
    assert std.tolist() == [1.0, 1.0]
    assert standardise(x, mean, std).abs().max() < 1e-7


def test_pixels_and_floats_have_the_same_moments() -> None:
    pixels = torch.randint(0, 256, (5000, 7), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for ours, theirs in zip(moments(pixels), moments(pixels.float()), strict=True):
        assert torch.equal(ours, theirs)


def test_written_out_gradient_and_batches_equal_autograd() -> None:
    train_x, train_y, _, _ = digits()
    x, seed, lr, batch = standardise(train_x, *moments(train_x)), 11, 3e-3, 500
    weight, bias = fit(x, train_y, 10, ProbeRecipe(3, lr, batch), seed)

    start, order = generator(seed, "linear", "init"), generator(seed, "linear", "order")
    layer = torch.nn.Linear(64, 10).double()
    with torch.no_grad():
        layer.weight.copy_(torch.empty(10, 64).uniform_(-1 / 8, 1 / 8, generator=start))
        layer.bias.zero_()
    adam = torch.optim.Adam(layer.parameters(), lr=lr, foreach=False, fused=False)
    for _ in range(3):
        for rows in torch.randperm(len(x), generator=order).split(batch):  # 500, 500, 200
            adam.zero_grad()
            F.cross_entropy(layer(x[rows].double()), train_y[rows]).backward()
            adam.step()
    torch.testing.assert_close(weight.double(), layer.weight.detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(bias[:, 0].double(), layer.bias.detach(), atol=1e-5, rtol=0)


def test_accuracy_is_that_of_scikit_learn_on_digits() -> None:
    data = digits()
    scaler = StandardScaler().fit(data[0].numpy())
    model = LogisticRegression(max_iter=2000).fit(scaler.transform(data[0].numpy()), data[1].numpy())
    expected = model.score(scaler.transform(data[2].numpy()), data[3].numpy())
    got = linear_accuracy(*data, classes=10, seed=0)
    assert expected > 0.9
    assert got == pytest.approx(expected, abs=0.02)


def test_same_seed_same_bits_and_the_seed_matters() -> None:
    x, y, _, _ = digits()
    torch.manual_seed(1)
    recipe = ProbeRecipe(2, 3e-3, 300)
    first = fit(x, y, 10, recipe, 5)
    torch.manual_seed(2)
    again, other = fit(x, y, 10, recipe, 5), fit(x, y, 10, recipe, 6)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_scale_and_shift_of_a_feature_change_nothing() -> None:
    train_x, train_y, test_x, test_y = digits()
    plain = linear_accuracy(train_x, train_y, test_x, test_y, classes=10, seed=0, epochs=50)
    moved = linear_accuracy(train_x * 256 + 64, train_y, test_x * 256 + 64, test_y, classes=10, seed=0, epochs=50)
    assert moved == pytest.approx(plain, abs=2 / len(test_x))


def test_the_test_images_do_not_set_the_scale() -> None:
    """Half the test images are as they were, half brighter: their moments are not those of the train images, and an
    image's answer does not depend on the others.
    """
    train_x, train_y, test_x, test_y = digits()
    alone = linear_accuracy(train_x, train_y, test_x, test_y, classes=10, seed=0, epochs=50)
    brighter = linear_accuracy(train_x, train_y, 16 + test_x, test_y, classes=10, seed=0, epochs=50)
    both = linear_accuracy(
        train_x, train_y, torch.cat([test_x, 16 + test_x]), torch.cat([test_y, test_y]), classes=10, seed=0, epochs=50
    )
    assert both == pytest.approx((alone + brighter) / 2, abs=1e-9)
    assert brighter < alone - 0.2


def test_features_made_in_inference_mode_can_be_probed() -> None:
    with torch.inference_mode():
        train_x, train_y, test_x, test_y = digits()
        inside = linear_accuracy(train_x, train_y, test_x, test_y, classes=10, seed=0, epochs=5)
    assert inside == linear_accuracy(train_x, train_y, test_x, test_y, classes=10, seed=0, epochs=5)


def test_collapsed_features_are_chance_not_a_crash() -> None:
    x, labels = torch.full((100, 5), 3.0), torch.arange(100) % 4
    assert linear_accuracy(x, labels, x, labels, classes=4, seed=0, epochs=5) == 0.25


@pytest.mark.parametrize("name", ["easyfl", "fedx", "fedu2"])
def test_a_papers_recipe_equals_a_plain_loop_on_raw_features(name: RecipeName) -> None:
    train_x, train_y, test_x, _ = digits()
    told = {"easyfl": (2048, 3e-3, 0.0, False), "fedx": (64, 1e-3, 1e-6, True), "fedu2": (512, 3e-3, 0.0, True)}
    batch, lr, decay, shuffled = told[name]
    assert (PAPERS[name].epochs, PAPERS[name].standardise) == ({"easyfl": 200, "fedx": 100, "fedu2": 200}[name], False)
    assert PAPERS[name].batch_size == batch
    batch = min(batch, 300)  # so that an epoch has more than one step, and the order matters
    probe = LinearProbe(train_x, train_y, 10, replace(PAPERS[name], epochs=5, batch_size=batch), 7)

    start, order = generator(7, "linear", "init"), generator(7, "linear", "order")
    layer = torch.nn.Linear(64, 10).double()
    with torch.no_grad():
        layer.weight.copy_(torch.empty(10, 64).uniform_(-1 / 8, 1 / 8, generator=start))
        layer.bias.zero_()
    optimizer = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=decay)
    for _ in range(5):
        rows = torch.randperm(1200, generator=order) if shuffled else torch.arange(1200)
        for some in rows.split(batch):
            optimizer.zero_grad()
            F.cross_entropy(layer(train_x[some].double()), train_y[some]).backward()
            optimizer.step()
    torch.testing.assert_close(probe(test_x).T.double(), layer(test_x.double()).detach(), atol=2e-3, rtol=1e-3)


def test_recipes_have_tags_of_their_own_and_ours_stays_as_it_is() -> None:
    config = LinearConfig(recipes=("ours", "fedu2"), epochs=20)
    data = digits()
    values = measure(of_features(*data, metrics=("accuracy", "balanced_accuracy")), config)
    assert list(values) == ["linear", "linear_balanced_accuracy", "linear_fedu2", "linear_fedu2_balanced_accuracy"]
    assert values["linear"] == linear_accuracy(*data, epochs=20)  # alone
    predicted = LinearProbe(data[0], data[1], 10, PAPERS["fedu2"], 3)(data[2]).argmax(dim=0)
    assert values["linear_fedu2"] == float((predicted == data[3]).double().mean())
    theirs = balanced_accuracy_score(data[3].numpy(), predicted.numpy())
    assert values["linear_fedu2_balanced_accuracy"] == pytest.approx(theirs)
    for wrong in ([], ["ours", "ours"], ["flesd"]):
        with pytest.raises(ValidationError):
            LinearConfig.model_validate({"recipes": wrong})


def test_images_far_from_the_border_are_told_apart_in_the_area() -> None:
    """With one feature the area is that of the feature, however near to 1 probabilities are."""
    rng = np.random.default_rng(0)
    train_y = torch.tensor(rng.integers(0, 2, 200))
    train_x = (2.0 * train_y - 1 + torch.tensor(rng.normal(size=200))).float()[:, None]
    logits = LinearProbe(train_x, train_y, 2, LinearConfig().recipe("ours"), 3)(torch.tensor([[0.0], [1.0]]))
    slope = float((logits[1] - logits[0]).diff())
    x = torch.linspace(18, 34, 40)[:, None] / slope  # probabilities of 1 - 1.5e-8 to 1 - 1.7e-15
    y = torch.tensor(rng.integers(0, 2, 40))
    values = measure(of_features(train_x, train_y, x, y, classes=2, metrics=("accuracy", "auc")), LinearConfig())
    assert values["linear_auc"] == pytest.approx(roc_auc_score(y.numpy(), x[:, 0].numpy()), abs=1e-12)
