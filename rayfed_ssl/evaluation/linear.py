"""Linear probe: a linear classifier on cached backbone features of clean images, measured after its last epoch.

Shapes: N train images, M test images, B batch, D embedding, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from rayfed_ssl.base import optimizers
from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.evaluation.material import Material, Split
from rayfed_ssl.evaluation.pixels import shares
from rayfed_ssl.evaluation.protocol import Protocol
from rayfed_ssl.evaluation.standard import capped, log_probabilities, moments, standardise

RecipeName = Literal["ours", "easyfl", "fedx", "fedu2"]


@dataclass(frozen=True)
class ProbeRecipe:
    """How a linear classifier is trained, by Adam, on cached features."""

    epochs: int
    lr: float
    batch_size: int
    weight_decay: float = 0.0  # times the weight, added to the gradient
    shuffle: bool = True  # anew every epoch; False: always the data set's order
    standardise: bool = False  # by the train images' mean and deviation
    cap: bool = False  # batches of a tenth of the train images at most

    def batch(self, train: int) -> int:
        """Images per step for this number of train images."""
        return capped(self.batch_size, train) if self.cap else min(self.batch_size, train)


PAPERS: Mapping[RecipeName, ProbeRecipe] = {
    "easyfl": ProbeRecipe(200, 3e-3, 2048, shuffle=False),  # EasyFL's linear evaluation, for FedU and FedEMA
    "fedx": ProbeRecipe(100, 1e-3, 64, weight_decay=1e-6),  # Han et al. 2022 (FedX), official code
    "fedu2": ProbeRecipe(200, 3e-3, 512),  # Liao et al. 2024 (FedU2), official code
}
"""The papers' probes that need clean, cached features only. FLESD's and Orchestra's augment the train images."""


class LinearConfig(Block):
    """The linear probe."""

    recipes: tuple[RecipeName, ...] = ("ours",)
    """``ours`` is recorded as ``linear``, a paper's beside it as ``linear_<recipe>``."""
    epochs: int = Field(200, ge=1)
    """Passes over the train images, in the recipe ``ours``."""
    lr: float = Field(3e-3, gt=0)
    """Learning rate of the recipe ``ours``."""
    batch_size: int = Field(2048, ge=1)
    """Images per step; never more than a tenth of the train images."""

    @field_validator("recipes")
    @classmethod
    def _some(cls, recipes: tuple[RecipeName, ...]) -> tuple[RecipeName, ...]:
        if not recipes or len(set(recipes)) < len(recipes):
            raise ValueError("must be one or more recipes, each once")
        return recipes

    def recipe(self, name: RecipeName) -> ProbeRecipe:
        """The recipe of this name. Ours is EasyFL's linear evaluation (Adam 3e-3, no weight decay, batch 2048, 200
        epochs).

        Differs: features are standardised, batches reshuffled and at most a tenth of the images (one step an epoch does
        not converge in 200), and the accuracy is over images, not a mean over batches.
        """
        if name != "ours":
            return PAPERS[name]
        return ProbeRecipe(self.epochs, self.lr, self.batch_size, standardise=True, cap=True)


def tag(recipe: RecipeName, name: str = "linear") -> str:
    """``linear`` for our recipe, ``linear_<recipe>`` for a paper's; ``name`` replaces the word ``linear``."""
    return name if recipe == "ours" else f"{name}_{recipe}"


class LinearProbe:
    """A linear classifier trained by ``recipe`` on features (N, D) and labels (N,) int64 in [0, C).

    ``seed`` decides the initial weights and the order of the images, which is new every epoch.
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int, recipe: ProbeRecipe, seed: int) -> None:
        self.moments = moments(x) if recipe.standardise else None
        self.weight, self.bias = fit(self._scaled(x), y, classes, recipe, seed)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (C, M) of features (M, D)."""
        return torch.addmm(self.bias, self.weight, self._scaled(x).T)

    def _scaled(self, x: Tensor) -> Tensor:
        return x.float() if self.moments is None else standardise(x, *self.moments)


@torch.no_grad()
def fit(x: Tensor, y: Tensor, classes: int, recipe: ProbeRecipe, seed: int) -> tuple[Tensor, Tensor]:
    """The probe's weight (C, D) and bias (C, 1), from uniform weights within 1/sqrt(D) and zero biases. ``x`` is taken
    as it is: ``recipe.standardise`` is up to the caller.

    The gradient of the mean cross-entropy is written out, with classes as rows: two to three times faster than autograd
    on (B, C) logits, where a softmax over ten columns costs more than the matrix products.
    """
    start, order = generator(seed, "linear", "init"), generator(seed, "linear", "order")  # the CPU's, wherever x is
    bound = x.shape[1] ** -0.5
    weight = torch.empty(classes, x.shape[1]).uniform_(-bound, bound, generator=start).to(x.device)
    bias = torch.zeros(classes, 1, device=x.device)
    optimizer = optimizers.Adam([weight, bias], lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True)
    batch_size = recipe.batch(len(x))
    columns = torch.arange(batch_size, device=x.device)
    for _ in range(recipe.epochs):
        rows_of_epoch = torch.randperm(len(x), generator=order) if recipe.shuffle else torch.arange(len(x))
        for rows in torch.split(rows_of_epoch.to(x.device), batch_size):
            images, truth = x.index_select(0, rows), y[rows]
            error = torch.addmm(bias, weight, images.T).softmax(dim=0)  # (C, B)
            error[truth, columns[: len(rows)]] -= 1  # d(cross-entropy of one image) / d(its logits)
            weight.grad = error @ images / len(rows)
            bias.grad = error.sum(dim=1, keepdim=True) / len(rows)
            optimizer.step()
    return weight, bias


def measure(material: Material, config: LinearConfig, name: str = "linear") -> dict[str, float]:
    """``linear``, and ``linear_<recipe>`` for every recipe of a paper; ``name`` replaces the word ``linear``.

    The classifiers are trained on the encoder's device.
    """
    values: dict[str, float] = {}
    features, labels = material.train.features.to(material.device), material.train.labels.to(material.device)
    for recipe in config.recipes:
        probe = LinearProbe(features, labels, material.classes, config.recipe(recipe), material.seed)

        def answer(split: Split, probe: LinearProbe = probe) -> tuple[Tensor, Tensor]:
            logits = probe(split.features.to(material.device)).cpu()  # (C, M)
            return logits.argmax(dim=0), log_probabilities(logits.T).exp()

        values |= material.classified(tag(recipe, name), answer)
    return values


def effective(config: LinearConfig, train: int) -> dict[str, int]:
    """``batch_size_used``, and ``batch_size_used_<recipe>`` for every recipe of a paper."""
    return {tag(name, "batch_size_used"): config.recipe(name).batch(train) for name in config.recipes}


LINEAR = Protocol(
    LinearConfig,
    measure,
    lambda settings: tuple(tag(name) for name in settings.recipes),
    pixels=shares,
    effective=effective,
)
