"""Intervals of a difference between two rows of a comparison that count more than seeds: test images, if runs kept
which of them they classified rightly; held-out images; clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.evaluation import OWN
from rayfed_ssl.evaluation.material import SELECT
from rayfed_ssl.records.image_intervals import image_interval
from rayfed_ssl.records.intervals import counts_images, of_difference
from rayfed_ssl.records.one_run import OneRun
from rayfed_ssl.records.outcomes import FILE
from rayfed_ssl.records.seed_image_intervals import SAME, half_width

Drawn = Literal["test images", "held-out images", "clients"]
TEST_IMAGES: Drawn = "test images"
HELD_OUT: Drawn = "held-out images"
CLIENTS: Drawn = "clients"
WHAT = {TEST_IMAGES: "images", HELD_OUT: "images", CLIENTS: "clients"}  # in tables
NO_RUN = "not all seeds have a run of both"
NOT_OF_IMAGES = "it is not counted image by image on the test images"
LACKING = f"a run has no {FILE}, which earlier versions did not write (rayfed-ssl evaluate RUN does)"
OTHER_NUMBERS = f"the {FILE} of a run is not of the accuracy that it recorded"
OTHER_IMAGES = "not all runs have the same test images"
ALIKE = "all clients differ alike, which says nothing of others"
IMAGES_ALIKE = "no test image tells the areas apart, or each class has one, which says nothing of others"
OTHER_CLIENTS = "not all runs have values of the same clients, two at least"
NOT_COUNTED = "how many images were held out is not recorded, or it is no share of them"
HELD_ALIKE = "some seeds hold out the same images, and which of them were right is not kept"
BY_SEED = "each seed holds out images of its own, which the interval over seeds counts"


@dataclass(frozen=True)
class DrawnInterval:
    """The 95% interval of a mean difference that counts so many test images, held-out images or clients (``of``), and
    the seeds where there are several (:mod:`rayfed_ssl.records.seed_image_intervals`).
    """

    low: float
    high: float
    count: int
    of: Drawn = TEST_IMAGES


def drawn(measure: str) -> Drawn:
    """What a measure is a mean over; a value on clients' own images is a mean over clients."""
    name = measure.removeprefix(SELECT)
    if name == "task" or name.startswith((OWN, "task_")):
        return CLIENTS
    return HELD_OUT if measure.startswith(SELECT) else TEST_IMAGES


def drawn_interval(
    own: Mapping[int, OneRun], theirs: Mapping[int, OneRun], seeds: Sequence[int], measure: str
) -> DrawnInterval | str:
    """The interval of ``own`` less ``theirs`` over ``seeds``, which both have; or, in words, why there is none."""
    if not all(seed in own and seed in theirs for seed in seeds):
        return NO_RUN
    of = drawn(measure)
    if of == HELD_OUT:
        return _held_out(own, theirs, seeds, measure)
    found = (client_differences if of == CLIENTS else image_differences)(own, theirs, seeds, measure)
    if isinstance(found, str):
        return found
    if of == CLIENTS:
        mean, half = float(found.mean()), half_width(found)
        return DrawnInterval(mean - half, mean + half, found.shape[1], of)
    outcomes = own[seeds[0]].outcomes
    interval = None if outcomes is None else image_interval(measure, found, outcomes.labels)
    return IMAGES_ALIKE if interval is None else DrawnInterval(*interval, found.shape[1], of)


def _held_out(
    own: Mapping[int, OneRun], theirs: Mapping[int, OneRun], seeds: Sequence[int], measure: str
) -> DrawnInterval | str:
    """With one seed, the interval that the number of held-out images allows. It treats answers as independent, because
    none are kept; if they agree, as they mostly do, the true interval is narrower. With several seeds, why there is
    none: each may hold out images of its own.
    """
    held_out = [known for seed in seeds if (known := own[seed].held_out) is not None]
    if len(held_out) < len(seeds) or not counts_images(measure.removeprefix(SELECT)):
        return NOT_COUNTED
    if len(seeds) > 1:
        return BY_SEED if len(set(held_out)) == len(seeds) else HELD_ALIKE
    a, b = (rows[seeds[0]].values[measure] for rows in (own, theirs))
    if not (0 <= a <= 1 and 0 <= b <= 1):
        return NOT_COUNTED
    low, high = of_difference(a, b, held_out[0].images)
    return DrawnInterval(low, high, held_out[0].images, HELD_OUT)


def client_differences(
    own: Mapping[int, OneRun], theirs: Mapping[int, OneRun], seeds: Sequence[int], measure: str
) -> NDArray[np.float64] | str:
    """(n, N) by seed and client: the client's value in ``own`` less that in ``theirs``; or, in words, why there is
    none.
    """
    pairs = [(own[seed].by_client.get(measure, {}), theirs[seed].by_client.get(measure, {})) for seed in seeds]
    clients = sorted(pairs[0][0])
    if len(clients) < 2 or any(sorted(values) != clients for pair in pairs for values in pair):
        return OTHER_CLIENTS
    found = np.array([[a[client] - b[client] for client in clients] for a, b in pairs])
    return ALIKE if float(np.ptp(found.mean(axis=0))) < SAME else found


def image_differences(
    own: Mapping[int, OneRun], theirs: Mapping[int, OneRun], seeds: Sequence[int], measure: str
) -> NDArray[np.float64] | str:
    """(n, m) by seed and test image: the share of classifiers that were right in ``own`` less that in ``theirs``, or
    what the image contributes to an area; or, in words, why there is none.
    """
    runs = [rows[seed] for seed in seeds for rows in (own, theirs)]
    kept = [run.outcomes for run in runs if run.outcomes is not None]
    if "/" in measure or (kept and not any(of.has(measure) for of in kept)):
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
