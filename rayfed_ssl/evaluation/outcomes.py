"""Records which test images each score's classifiers got right, to compare two encoders image by image.

Whatever a protocol classifies through ``Material.classified`` is counted; a protocol need not do more. An area under
the ROC curve does not count right answers: for it, each image's contribution to the area
(``metrics.auc_contributions``) is recorded instead. Shapes: M labelled test images.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.integer] | NDArray[np.floating]
BYTE = 255  # the most classifiers whose right answers one byte can count
ROUNDING = 1e-9  # by which a share of images may differ from a mean of shares


@dataclass(frozen=True)
class Outcomes:
    """``right[score]`` (M,): how many classifiers got each test image right, as integers; for an area under the ROC
    curve, the sum over classifiers of the image's contribution to it, as float64. ``draws[score]``: how many
    classifiers there were (1; for few-shot, one per draw).
    """

    right: Mapping[str, Counts]
    draws: Mapping[str, int]

    def share(self, score: str) -> float:
        """The mean over images and classifiers: the accuracy, or the area."""
        right = self.right[score]
        total = float(right.sum()) if is_area(right) else int(right.sum(dtype=np.int64))
        return total / (self.draws[score] * len(right))


def as_json(outcomes: Outcomes) -> dict[str, Any]:
    """Outcomes as a value that JSON can hold; :func:`from_json` reads it."""
    right = {
        score: [str(counts.dtype), base64.b64encode(zlib.compress(np.ascontiguousarray(counts).tobytes())).decode()]
        for score, counts in outcomes.right.items()
    }
    return {"right": right, "draws": dict(outcomes.draws)}


def from_json(said: Mapping[str, Any]) -> Outcomes:
    """The outcomes that :func:`as_json` wrote. Raises LookupError, TypeError or ValueError (zlib.error) for anything
    else.
    """
    right = {
        str(score): np.frombuffer(zlib.decompress(base64.b64decode(text)), np.dtype(kind))
        for score, (kind, text) in said["right"].items()
    }
    return Outcomes(right, {str(score): int(count) for score, count in said["draws"].items()})


class ValueKey(NamedTuple):
    """What one of an encoder's values measures: a score, and perhaps a client; its text is the value's key in
    ``EncoderValues``.
    """

    tag: str
    """The tag in tables of metrics: a protocol's score (``knn``, ``knn_auc``), such a score on a client's own test
    images, on held-out training images or of raw pixels (``own_knn``, ``select/knn``, ``pixels_knn``), or
    ``features/<name>``.
    """
    client: int | None = None
    """The client on whose own test images it was measured; None: on the test images of all."""

    @classmethod
    def of(cls, key: str) -> ValueKey:
        """The key with this text. Raises ValueError for a client that is not a number."""
        tag, at, client = key.partition("@")
        return cls(tag, int(client) if at else None)

    def __str__(self) -> str:
        return self.tag if self.client is None else f"{self.tag}@{self.client}"


class EncoderValues(dict[str, float]):
    """An encoder's values by the text of a ``ValueKey`` (``knn``, ``own_knn@3``), and its outcomes on the test images,
    if they are known.

    A plain dictionary made from it has no outcomes. Make one when you change values, because the outcomes no longer
    fit.
    """

    def __init__(self, values: Mapping[str, float], outcomes: Outcomes | None = None) -> None:
        super().__init__(values)
        self.outcomes = outcomes


def outcomes_of(values: Mapping[str, float]) -> Outcomes | None:
    """The outcomes that came with an encoder's values; None if there are none."""
    return values.outcomes if isinstance(values, EncoderValues) else None


@dataclass
class Tally:
    """Counts right answers on ``images`` while protocols classify them; answers on any other object's images are not
    counted.
    """

    images: object
    _right: dict[str, Counts] = field(default_factory=dict)
    _draws: dict[str, int] = field(default_factory=dict)

    def count(self, score: str, images: object, right: NDArray[np.bool_] | NDArray[np.float64]) -> None:
        """Add one classifier's answers: for each of these images (M,) whether it was right, or the image's contribution
        to its area.
        """
        if images is self.images:
            self._draws[score] = self._draws.get(score, 0) + 1
            self._right[score] = self._right.get(score, 0) + (right if is_area(right) else right.astype(np.int32))

    def outcomes(self, values: Mapping[str, float]) -> Outcomes:
        """The counts for those scores whose ``values`` are the counts' means: a protocol may have computed something
        else.
        """
        counted = Outcomes(self._right, self._draws)
        kept = [
            score
            for score in self._right
            if math.isclose(counted.share(score), values.get(score, math.nan), rel_tol=0, abs_tol=ROUNDING)
        ]
        return Outcomes(
            {score: compact(self._right[score], self._draws[score]) for score in kept},
            {score: self._draws[score] for score in kept},
        )


def compact(right: Counts, draws: int) -> Counts:
    """Counts of at most ``draws`` in the smallest type that array files support; contributions to areas keep their
    type.
    """
    if is_area(right):
        return right
    return right.astype(np.uint8) if draws <= BYTE else right.astype(np.int32)


def is_area(right: NDArray[Any]) -> bool:
    """Whether these are contributions to an area instead of counts."""
    return right.dtype.kind == "f"
