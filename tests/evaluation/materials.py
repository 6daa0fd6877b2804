"""Digits as they are, and images with encoders small enough for tests, in the form protocols take."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from rayfed_ssl.data.recipes import Recipe
from rayfed_ssl.evaluation import SELECT, FrozenEncoder, Material, Split, fewshot, knn, linear

Digits = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
PLAIN = Recipe(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def digits() -> Digits:
    """scikit-learn's digits: features (1200, 64) and labels to train on, (597, 64) and labels to test on."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)
    return x[:1200], y[:1200], x[1200:], y[1200:]


def of_features(
    train_x: torch.Tensor, train_y: torch.Tensor, test_x: torch.Tensor, test_y: torch.Tensor,
    classes: int = 10, seed: int = 3, **keys: object,
) -> Material:  # fmt: skip
    """A material whose "images" are row numbers, and whose features are the rows given."""
    x = torch.cat([train_x, test_x])
    numbers = np.arange(len(x), dtype=np.int64).reshape(-1, 1, 1, 1)

    def features(pixels: np.ndarray) -> torch.Tensor:
        return x[torch.from_numpy(pixels.ravel().copy())]

    n = len(train_x)
    train = Split("train", numbers[:n], train_y.numpy(), classes, features)  # type: ignore[arg-type]
    test = Split("test", numbers[n:], test_y.numpy(), classes, features)  # type: ignore[arg-type]
    return Material(train, {"": test}, numbers[:n], np.arange(n), classes, seed, **keys)  # type: ignore[arg-type]


def knn_accuracy(*data: torch.Tensor, classes: int = 10, **settings: float) -> float:
    """The protocol's value on features and labels to train and to test on, as ``digits`` gives them."""
    return knn.measure(of_features(*data, classes=classes), knn.KnnConfig.model_validate(settings))["knn"]


def linear_accuracy(*data: torch.Tensor, classes: int = 10, seed: int = 3, **settings: float) -> float:
    """As :func:`knn_accuracy`, of the linear probe."""
    material = of_features(*data, classes=classes, seed=seed)
    return linear.measure(material, linear.LinearConfig.model_validate(settings))["linear"]


def fewshot_accuracy(*data: torch.Tensor, **settings: float) -> float:
    """As :func:`knn_accuracy`, of few-shot classification."""
    return fewshot.measure(of_features(*data), fewshot.FewShotConfig.model_validate(settings))["fewshot"]


def images(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise (n, 4, 4, 3) whose red and green channels are brightened for classes 1 and 2."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    pixels = rng.integers(0, 120, (n, 4, 4, 3))
    for channel in (0, 1):
        pixels[labels == channel + 1, :, :, channel] += 60
    return pixels.astype(np.uint8), labels


def small_encoder(recipe: Recipe = PLAIN, seed: int = 3) -> FrozenEncoder:
    """Six features, with BatchNorm whose running statistics are not those of a batch; in eval mode."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    return FrozenEncoder(module, 6, recipe, torch.device("cpu"), 16, torch.contiguous_format)


def of_images(
    encoder: FrozenEncoder, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray],
    held_out: tuple[np.ndarray, np.ndarray] | None = None, seed: int = 3,
) -> Material:  # fmt: skip
    """Material of three classes, with held-out images where they are given."""
    splits = {"": Split("test", *test, 3, encoder.features)}
    if held_out is not None:
        splits[SELECT] = Split("held-out", *held_out, 3, encoder.features)
    train_split = Split("train", *train, 3, encoder.features)
    return Material(train_split, splits, train[0], np.arange(len(train[0])), 3, seed, frozen=encoder)
