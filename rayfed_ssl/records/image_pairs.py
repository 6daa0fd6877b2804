"""Two rows of a comparison paired image by image, where their runs kept which test images they had right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.records.crossed import half_width
from rayfed_ssl.records.one_run import OneRun
from rayfed_ssl.records.outcomes import FILE

NO_RUN = "what was there before training has no answers image by image"
NOT_OF_IMAGES = "it is not counted image by image on the test images"
LACKING = f"a run has no {FILE}, which earlier versions did not write (rayfed-ssl evaluate RUN does)"
OTHER_NUMBERS = f"the {FILE} of a run is not of the accuracy that it recorded"
OTHER_IMAGES = "not all runs have the same test images"


@dataclass(frozen=True)
class ImageInterval:
    """The 95% interval of a mean difference that counts ``images`` test images, and the seeds where there are several
    (:mod:`rayfed_ssl.records.crossed`).
    """

    low: float
    high: float
    images: int


def image_interval(
    own: Mapping[int, OneRun], theirs: Mapping[int, OneRun], seeds: Sequence[int], measure: str
) -> ImageInterval | str:
    """The interval of ``own`` less ``theirs`` over ``seeds``, which both have; or, in words, why there is none."""
    found = image_differences(own, theirs, seeds, measure)
    if isinstance(found, str):
        return found
    mean, half = float(found.mean()), half_width(found)
    return ImageInterval(mean - half, mean + half, found.shape[1])


def image_differences(
    own: Mapping[int, OneRun], theirs: Mapping[int, OneRun], seeds: Sequence[int], measure: str
) -> NDArray[np.float64] | str:
    """(n, m) by seed and test image: the share of classifiers that were right in ``own`` less that in ``theirs``; or,
    in words, why there is none.
    """
    if not all(seed in own and seed in theirs for seed in seeds):
        return NO_RUN
    runs = [rows[seed] for seed in seeds for rows in (own, theirs)]
    kept = [run.outcomes for run in runs if run.outcomes is not None]
    if "/" in measure or (kept and not any(measure in of.shares for of in kept)):
        return NOT_OF_IMAGES
    if len(kept) < len(runs):
        return LACKING
    shares = [
        known for run, of in zip(runs, kept, strict=True) if (known := of.of(measure, run.values[measure])) is not None
    ]
    if len(shares) < len(runs):
        return OTHER_NUMBERS
    if not all(of.same_images(kept[0]) for of in kept) or any(run.has_other_images(runs[0]) for run in runs):
        return OTHER_IMAGES
    if len(kept[0].index) < 2:
        return "there is one test image"
    return np.stack(shares[::2]) - np.stack(shares[1::2])
