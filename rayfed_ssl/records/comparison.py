"""Compares runs: each measure's mean and spread over seeds, paired differences to the first row, bytes, hours, epsilon.

A row is one set of settings; its runs differ only in the seed. Values are those of the last round, so nothing is chosen
by test labels. Shapes: n seeds that two rows have in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.evaluation import OWN
from rayfed_ssl.records.gains import GoalCost, goal_cost, reached
from rayfed_ssl.records.guarantee import Guarantee
from rayfed_ssl.records.image_pairs import CLIENTS, HELD_OUT, TEST_IMAGES, DrawnInterval, drawn_interval
from rayfed_ssl.records.intervals import LEVEL
from rayfed_ssl.records.one_run import OneRun
from rayfed_ssl.records.seed_image_intervals import SAME
from rayfed_ssl.records.significance import MARGIN, Judgement, judged

_stats = LazyModule("scipy.stats")
PREFERRED = ("linear", "knn", "fewshot", "task")  # of several scores, the first of these is the main one
UNTRAINED, STARTED, RAW_PIXELS = "untrained encoder", "starting encoder", "raw pixels"
BEFORE_TRAINING = (UNTRAINED, STARTED)  # of which a comparison has one: STARTED where runs begin by ``model.start``
Over = Literal[
    "seeds", "seeds and test images", "seeds and clients", "test images of one seed", "held-out images of one seed",
    "clients of one seed",
]  # fmt: skip
SEEDS: Over = "seeds"
BOTH: dict[str, Over] = {TEST_IMAGES: "seeds and test images", CLIENTS: "seeds and clients"}
ONE_SEED: dict[str, Over] = {
    TEST_IMAGES: "test images of one seed", HELD_OUT: "held-out images of one seed", CLIENTS: "clients of one seed",
}  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1 in the denominator; None for one value) of ``count`` values."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """The mean of n paired differences and its 95% confidence interval over them. The interval is None if n is 1, or if
    all differences are alike: otherwise a few that agree by chance would tell everything apart.

    ``drawn``: the interval that counts images or clients too; or, in words, why there is none.
    """

    mean: float
    low: float | None
    high: float | None
    count: int
    drawn: DrawnInterval | str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval that decides: the one that counts images or clients, else the one over seeds; None without
        either.
        """
        if isinstance(self.drawn, DrawnInterval):
            return self.drawn.low, self.drawn.high
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def over(self) -> Over | None:
        """In words, what ``interval`` is over."""
        if isinstance(self.drawn, DrawnInterval):
            return (ONE_SEED if self.count == 1 else BOTH)[self.drawn.of]
        return None if self.low is None else SEEDS

    def judged(self, margin: float = MARGIN) -> Judgement | None:
        """The word for the difference (see :mod:`rayfed_ssl.records.significance`); None without an interval."""
        return None if self.interval is None else judged(*self.interval, margin)


@dataclass(frozen=True)
class Row:
    """One row: ``values`` by measure and seed. ``runs`` are the complete ones; ``unfinished`` says what became of the
    others. ``differing`` has the settings beyond the method that differ from the first row's: key -> (the first row's
    value, its own). ``before``: for a row without training, the runs that measured it, which hold its values and
    answers. ``began``: the encoder before training of its own runs, where it is not that of the comparison.
    """

    name: str
    values: dict[str, dict[int, float]]
    runs: dict[int, OneRun] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    differing: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    before: dict[int, OneRun] = field(default_factory=dict)
    began: Row | None = None

    @property
    def trained(self) -> bool:
        """Whether the row stands for trained runs, and not for what they began with."""
        return bool(self.runs or self.unfinished)

    def spread(self, measure: str) -> Spread | None:
        return spread(list(self.values.get(measure, {}).values()))

    def difference(self, first: Row, measure: str) -> Difference | None:
        """The difference to the first row over the seeds that both have on the same images; None if there are none, or
        if this is the first row.
        """
        if self is first:
            return None
        own, theirs = self.values.get(measure, {}), first.values.get(measure, {})
        seeds = self.common_seeds(first, measure)
        found = difference([own[seed] - theirs[seed] for seed in seeds])
        if found is None:
            return None
        own_runs, their_runs = (row.runs or row.before for row in (self, first))
        return replace(found, drawn=drawn_interval(own_runs, their_runs, seeds, measure))

    def common_seeds(self, first: Row, measure: str) -> list[int]:
        """The seeds for which both rows have a value on the same images."""
        common = self.values.get(measure, {}).keys() & first.values.get(measure, {}).keys()
        runs = {seed: (self.runs[seed], first.runs[seed]) for seed in self.runs.keys() & first.runs.keys()}
        return sorted(s for s in common if s not in runs or runs[s][0].measures_alike(runs[s][1], measure))

    def on_other_images(self, first: Row) -> list[int]:
        """The seeds whose runs have other images than the first row's: their values cannot be paired."""
        common = sorted(self.runs.keys() & first.runs.keys())
        return [seed for seed in common if self.runs[seed].has_other_images(first.runs[seed])]

    def mean(self, of: Sequence[float | None]) -> float | None:
        """The mean of numbers, one per run; None if one of them is missing."""
        known = [number for number in of if number is not None]
        return fmean(known) if known and len(known) == len(of) else None

    @property
    def bytes_total(self) -> float | None:
        return self.mean([run.total_bytes for run in self.runs.values()])

    @property
    def bytes_per_round(self) -> float | None:
        return self.mean([run.total_bytes / run.rounds if run.rounds else None for run in self.runs.values()])

    def bytes_to(self, measure: str) -> float | None:
        """Mean bytes until a run first made 90% of its own gain in accuracy: see :func:`reached`."""
        return self.mean([None if t is None else run.bytes_until(t) for run, t in self._reached(measure)])

    def hours_to(self, measure: str) -> float | None:
        """Mean virtual hours until then; None without a clock."""
        return self.mean([None if t is None else run.hours_until(t) for run, t in self._reached(measure)])

    def to_goal(self, first: Row, measure: str) -> GoalCost | None:
        """The cost of its runs until they reached the first row's goal, 90% of that row's gain at the same seed, over
        the seeds that both have on the same images. None if there are none, or if the first row gained nothing there.
        """
        seeds = self.runs if self is first else (s for s in self.common_seeds(first, measure) if s in self.runs)
        return goal_cost({seed: self.runs[seed] for seed in seeds}, first.runs, measure)

    @property
    def virtual_hours(self) -> float | None:
        return self.mean([run.hours_until(run.rounds) for run in self.runs.values()])

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee with the largest epsilon of its runs; None where a run has none."""
        known = [run.guarantee for run in self.runs.values() if run.guarantee is not None]
        return max(known, key=lambda of: of.epsilon) if known and len(known) == len(self.runs) else None

    @property
    def epsilon(self) -> float | None:
        return None if self.guarantee is None else self.guarantee.epsilon

    @property
    def wall_s(self) -> float | None:
        return self.mean([run.wall_s for run in self.runs.values()])

    @property
    def rounds_s(self) -> float | None:
        return self.mean([run.rounds_s for run in self.runs.values()])

    def _reached(self, measure: str) -> Iterator[tuple[OneRun, int | None]]:
        for run in self.runs.values():
            yield run, reached(run.curves.get(measure, {}))


@dataclass(frozen=True)
class Comparison:
    """Rows. The others are compared with the first; the encoders before training (by ``BEFORE_TRAINING``) and raw
    pixels come last.

    ``left_out``: variants that did not fit the base configuration, and why. ``folders``: the run folders of each row,
    if folders were given without names.
    """

    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Sequence[Path]] = field(default_factory=dict)

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def trained(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.trained)

    @property
    def began(self) -> Row | None:
        """The encoder before training: untrained, or of ``model.start``."""
        return next((row for row in self.rows if row.name in BEFORE_TRAINING and not row.trained), None)

    @property
    def measures(self) -> list[str]:
        """The measures that some method has: scores, the main one first; those on held-out images; descriptions of
        features. Measures that only raw pixels or an untrained encoder have are left out.
        """
        names = dict.fromkeys(name for row in self.trained for name in row.values)
        return sorted(names, key=_place)

    @property
    def scores(self) -> list[str]:
        """The accuracies among them, measured on test images."""
        return [name for name in self.measures if "/" not in name]

    @property
    def main(self) -> str | None:
        """The accuracy that costs are counted by."""
        return next(iter(ordered(self.scores)), None)

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for row in self.trained for seed in row.runs})

    @property
    def other_splits(self) -> dict[str, list[int]]:
        """Row -> the seeds in which its clients hold other images than the first row's, or it is not known which."""
        found = {}
        for row in self.trained[1:]:
            common = row.runs.keys() & self.first.runs.keys()
            elsewhere = row.on_other_images(self.first)
            splits = {seed: (row.runs[seed].split, self.first.runs[seed].split) for seed in sorted(common)}
            other = [seed for seed, (a, b) in splits.items() if seed in elsewhere or a is None or a != b]
            if other:
                found[row.name] = other
        return found

    @property
    def other_images(self) -> dict[str, list[int]]:
        """Row -> the seeds in which its runs have another data set than the first row's."""
        found = {row.name: row.on_other_images(self.first) for row in self.trained[1:]}
        return {name: seeds for name, seeds in found.items() if seeds}


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and spread; None without values."""
    if not values:
        return None
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation, len(values))


def difference(pairs: Sequence[float]) -> Difference | None:
    """The mean of paired differences (n,) with its interval by Student's t with n - 1 degrees of freedom; without an
    interval if all are alike, because t then has no width.
    """
    found = spread(pairs)
    if found is None or found.deviation is None or float(np.ptp(pairs)) < SAME:
        return None if found is None else Difference(found.mean, None, None, found.count)
    quantile = float(_stats.t.ppf((1 + LEVEL) / 2, found.count - 1))
    half = quantile * found.deviation / math.sqrt(found.count)
    return Difference(found.mean, found.mean - half, found.mean + half, found.count)


def ordered(scores: Sequence[str]) -> list[str]:
    """The scores, the main one first: linear probe, kNN, few-shot, own task, then the others by name."""
    return sorted(scores, key=_place)


def _place(measure: str) -> tuple[bool, bool, bool, int, str]:
    """A measure's position among others: test images before clients' own ones, then held-out ones, features last."""
    name = measure.rpartition("/")[2]
    order = PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)
    return measure.startswith("features/"), measure.startswith("select/"), name.startswith(OWN), order, name
