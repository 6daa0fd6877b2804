"""The input of a protocol: a frozen encoder, labelled images with their features, and the test images.

Shapes: N train images, M test images, B batch, S image side, D embedding, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.data.augment import augment, clean
from rayfed_ssl.data.recipes import Recipe
from rayfed_ssl.evaluation.metrics import ACCURACY, AUC, Metric, auc_contributions, measured, named
from rayfed_ssl.evaluation.outcomes import EncoderValues, Tally, ValueKey, outcomes_of

SELECT = "select/"
"""Before the tag of a value measured on held-out training images."""
OWN = "own_"
"""Before the tag of a value measured on one client's own test images."""


def by_client(holder: int | None, values: Mapping[str, float]) -> dict[int | None, dict[str, float]]:
    """An encoder's values by client: ``holder`` (None: the global encoder) for most values, and the client on whose own
    test images they were measured for the others: ``own_knn@3`` becomes ``own_knn`` of client 3.
    """
    by_holder: dict[int | None, dict[str, float]] = {holder: {}}
    for key, value in values.items():
        tag, client = ValueKey.of(key)
        by_holder.setdefault(holder if client is None else client, {})[tag] = value
    return by_holder


def of_client(values: dict[str, float], client: int | None) -> dict[str, float]:
    """An encoder's values without those on other clients' own test images; if ``client`` is None, all of them."""
    if client is None:
        return values
    kept = {key: value for key, value in values.items() if ValueKey.of(key).client in (None, client)}
    return EncoderValues(kept, outcomes_of(values))


def drawn_rows(rows: NDArray[np.int64] | int, most: int, seed: int, purpose: str) -> NDArray[np.int64]:
    """At most ``most`` of ``rows`` (a number means all of that many rows): the first in an order seeded by ``seed`` and
    ``purpose``, because neighbouring rows are often of one class.
    """
    return numpy_generator(seed, "evaluation", purpose).permutation(rows)[:most]


def labelled_rows(labels: NDArray[np.int64], limit: int | None, seed: int) -> NDArray[np.int64]:
    """Rows with a label (not negative), ascending; at most ``limit``, the first in an order seeded by ``seed``."""
    rows = np.flatnonzero(labels >= 0)
    if limit is not None and len(rows) > limit:
        rows = np.sort(drawn_rows(rows, limit, seed, "train_images"))
    return rows


def extract(
    represent: Callable[[Tensor], Tensor],
    pixels: NDArray[np.uint8],
    clean: Callable[[Tensor], Tensor],
    batch_size: int,
    device: torch.device | str,
) -> Tensor:
    """Features (N, D) float32 on the CPU of ``pixels`` (N, S, S, channels) uint8.

    Args:
        represent: images (B, channels, S, S) as ``clean`` returns them -> features (B, ..), in eval mode; they are
            flattened.
        clean: uint8 (B, channels, S, S) on ``device`` -> what the encoder takes, without augmentation.
    """
    parts = []
    with torch.inference_mode():
        for start in range(0, len(pixels), batch_size):
            block = torch.from_numpy(
                np.array(pixels[start : start + batch_size])
            )  # a copy: a mapped array is read-only
            images = clean(block.permute(0, 3, 1, 2).to(device))
            parts.append(represent(images).flatten(1).float().cpu())
    return torch.cat(parts)


class BrokenFeatures(UserError):
    """Features of ``broken`` among ``count`` images are not finite: training diverged."""

    def __init__(self, broken: int, count: int, split: str) -> None:
        self.found = f"features that are not finite for {broken} of {count} {split} images"
        super().__init__(f"train.optimizer.lr: found {self.found} (training diverged), allowed: a smaller value")


def refuse_broken(features: Tensor, split: str) -> None:
    """Raise BrokenFeatures if one of ``features`` (N, D), of any real type, is not finite; ``split`` names the
    images.
    """
    broken = int((~features.isfinite().all(dim=1)).sum()) if features.is_floating_point() else 0
    if broken:
        raise BrokenFeatures(broken, len(features), split)


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder in eval mode, with the preprocessing of its images. ``module`` maps (B, channels, S, S) to (B, D),
    where D is ``dim``.
    """

    module: nn.Module
    dim: int
    recipe: Recipe  # of the run's augmentation; its mean and std are those of clean images
    device: torch.device
    batch_size: int  # images per forward pass
    memory_format: torch.memory_format = torch.channels_last

    def features(self, pixels: NDArray[np.uint8]) -> Tensor:
        """(N, D) float32 on the CPU of clean ``pixels`` (N, S, S, channels) uint8."""
        return extract(self.module, pixels, self.clean, self.batch_size, self.device)

    def clean(self, pixels: Tensor) -> Tensor:
        """uint8 (B, channels, S, S) on the device -> what ``module`` takes, without augmentation."""
        return clean(pixels, self.recipe).contiguous(memory_format=self.memory_format)

    def views(self, pixels: Tensor, recipe: Recipe, draws: torch.Generator, count: int) -> Tensor:
        """uint8 (B, channels, S, S) on the device -> (count * B, channels, S, S), ``count`` augmented views, view by
        view.
        """
        return augment(pixels, recipe, draws, views=count).contiguous(memory_format=self.memory_format)

    def batch(self, pixels: NDArray[np.uint8]) -> Tensor:
        """(B, S, S, channels) uint8 -> (B, channels, S, S) uint8 on the device."""
        return torch.from_numpy(np.array(pixels)).permute(0, 3, 1, 2).to(self.device)


class Split:
    """Labelled images of one part of a data set; features are computed at their first use.

    Args:
        name: what the images are, for messages ("train").
        pixels: (N, S, S, channels) uint8.
        labels: (N,) int64; rows with a negative label are left out.
        classes: the number of classes; labels must be smaller.
        features: pixels -> (N, D), by an encoder or from the pixels themselves.
    """

    def __init__(
        self,
        name: str,
        pixels: NDArray[np.uint8],
        labels: NDArray[np.int64],
        classes: int,
        features: Callable[[NDArray[np.uint8]], Tensor],
    ) -> None:
        self.name, self._given, self._pixels, self._features, self._classes = name, labels, pixels, features, classes

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The labelled rows. Raises UserError where there is none, or a label is too large."""
        rows = np.flatnonzero(self._given >= 0)
        if not len(rows):
            raise UserError(
                f"evaluation.protocols: found {len(self._given)} {self.name} images, none with a label; allowed "
                "without labels: rank, or []"
            )
        if (largest := int(self._given[rows].max())) >= self._classes:
            raise UserError(f"data: found label {largest} in the {self.name} images, allowed: 0 to {self._classes - 1}")
        return rows

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """(N, S, S, channels) uint8 of the labelled rows."""
        return self._pixels if len(self.rows) == len(self._given) else self._pixels[self.rows]

    @cached_property
    def labels(self) -> Tensor:
        """(N,) int64 in [0, classes)."""
        return torch.tensor(self._given[self.rows])

    @cached_property
    def features(self) -> Tensor:
        """(N, D) of the labelled rows. Raises BrokenFeatures where one is not finite."""
        features = self._features(self.pixels)
        refuse_broken(features, self.name)
        self._as_made = _version(features)
        return features

    @property
    def changed(self) -> bool:
        """Whether somebody has written into ``features`` since they were computed."""
        return "features" in self.__dict__ and _version(self.features) != self._as_made


def _version(tensor: Tensor) -> int | None:
    """How often the tensor was written to; None if PyTorch does not count that, as in inference mode."""
    return None if tensor.is_inference() else tensor._version


@dataclass(frozen=True)
class Material:
    """One encoder (or the raw pixels) with the images it is measured on."""

    train: Split
    tests: Mapping[str, Split]  # by what stands before a value's tag: "" the test images, SELECT any that are held out
    pool: NDArray[np.uint8]  # all training images (n, S, S, channels)
    pool_rows: NDArray[np.int64]  # of them those that protocols which need no label look at
    classes: int
    seed: int
    metrics: tuple[Metric, ...] = ("accuracy",)
    frozen: FrozenEncoder | None = None  # None: raw pixels
    own: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)  # client -> the rows of its own test images
    pixels_on: torch.device = field(default_factory=lambda: torch.device("cpu"))  # where raw pixels are measured
    tally: Tally | None = None  # counts the right answers on one of ``tests``, where these are asked for

    @property
    def encoder(self) -> FrozenEncoder:
        """The encoder. Raises ValueError where raw pixels are measured."""
        if self.frozen is None:
            raise ValueError("raw pixels have no encoder")
        return self.frozen

    @property
    def device(self) -> torch.device:
        """The device for heavy computations: the encoder's."""
        return self.pixels_on if self.frozen is None else self.frozen.device

    def classified(self, tag: str, answer: Callable[[Split], tuple[Tensor, Tensor]]) -> dict[str, float]:
        """The metrics of a classifier on every split in ``tests``, and on each client's own test images.

        Args:
            answer: a split of M images -> the predicted classes (M,), and probabilities (M, C).
        """
        values: dict[str, float] = {}
        for prefix, split in self.tests.items():
            predicted, scores = answer(split)
            values |= {
                prefix + name: value
                for name, value in measured(tag, predicted, scores, split.labels, self.metrics).items()
            }
            if self.tally is not None and split is self.tally.images:
                self.tally.count(tag, split, np.asarray(predicted == split.labels))
                if AUC in self.metrics:
                    self.tally.count(named(tag, AUC), split, auc_contributions(scores, split.labels))
            if prefix == "":
                values |= self._on_own(tag, predicted, scores, split.labels)
        return values

    def _on_own(self, tag: str, predicted: Tensor, scores: Tensor, truth: Tensor) -> dict[str, float]:
        """The metrics on each client's own test images, from the answers on all of them. If a client's images are all
        of one class, only the accuracy is taken: no area under the curve is defined, and guessing has a balanced
        accuracy of 1.
        """
        values: dict[str, float] = {}
        for client, rows in self._own_rows.items():
            own = truth[rows]
            metrics = self.metrics if bool((own != own[0]).any()) else (ACCURACY,)
            own_metrics = measured(tag, predicted[rows], scores[rows], own, metrics)
            kept = {name: value for name, value in own_metrics.items() if math.isfinite(value)}
            values |= {str(ValueKey(f"{OWN}{name}", client)): value for name, value in kept.items()}
        return values

    @cached_property
    def _own_rows(self) -> dict[int, Tensor]:
        """``own`` as positions among the labelled test images, for the clients that have any."""
        labelled = self.tests[""].rows if self.own else np.zeros(0, np.int64)
        places = {client: np.flatnonzero(np.isin(labelled, rows)) for client, rows in self.own.items()}
        return {client: torch.from_numpy(rows) for client, rows in places.items() if len(rows)}
