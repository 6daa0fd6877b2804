"""What can be known without labels: how well effective rank, uniformity and loss after a tenth of the rounds predict
the final accuracy.

Runs are ranked only within their group (data set and partition; for losses the objective, too), because runs of other
groups differ in more than that. A group has at least two methods. Kendall's tau-b is taken over the pairs of runs of
all groups, with a bootstrap interval over methods: all runs of a method, of all seeds and groups, are resampled
together, because they are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boards.markdown import head
from boards.rows import MEASURE, MEASURES, ONE, Record
from rayfed_ssl.base.text import bounds, signed

PREDICTORS = {  # column -> in words, and what runs have to share
    "early_effective_rank": ("effective rank", ("data", "partition")),
    "early_uniformity": ("uniformity (lower is more uniform)", ("data", "partition")),
    "early_loss": ("training loss", ("data", "partition", "objective")),
}
LEAST = 10  # with fewer rows nothing is shown
DRAWS, SEED = 2000, 2026


class Group(NamedTuple):
    """Runs that are ranked among themselves: predictor, final accuracy and method of each, (n,)."""

    early: NDArray[np.float64]
    final: NDArray[np.float64]
    method: NDArray[np.str_]


@dataclass(frozen=True)
class Prediction:
    """Kendall's tau-b over ``runs`` runs in ``groups`` groups, and its 95% interval."""

    predictor: str
    tau: float
    low: float
    high: float
    runs: int
    groups: int


def tau(groups: Sequence[Group]) -> float:
    """Kendall's tau-b over pairs within groups only; for one group it equals scipy's ``kendalltau``. NaN if nothing
    differs.
    """
    return float(_taus(groups, [np.ones((1, len(group.early))) for group in groups])[0])


def _taus(groups: Sequence[Group], times: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The tau of each draw, (draws,), in which run i of a group occurs ``times[group][draw, i]`` times. A run forms no
    pair with itself or its copies.
    """
    sums = np.zeros((3, len(times[0])))  # pairs that agree minus those that do not; pairs ordered by x; by y
    for (x, y, _), of_group in zip(groups, times, strict=True):
        dx, dy = (np.sign(np.subtract.outer(v, v)) for v in (x, y))
        for row, pairs in zip(sums, (dx * dy, np.abs(dx), np.abs(dy)), strict=True):
            row += ((of_group @ pairs) * of_group).sum(axis=1)
    ordered = sums[1] * sums[2]
    return np.divide(sums[0], np.sqrt(ordered), out=np.full(len(ordered), np.nan), where=ordered > 0)


def interval(groups: Sequence[Group], draws: int = DRAWS, seed: int = SEED) -> tuple[float, float]:
    """The 2.5th and 97.5th percentile of tau over bootstrap draws of methods, each with all its runs of all groups."""
    rng = np.random.default_rng(seed)
    names = np.unique(np.concatenate([group.method for group in groups]))
    counts = np.zeros((draws, len(names)))
    for of_draw in counts:
        np.add.at(of_draw, rng.integers(len(names), size=len(names)), 1)
    found = _taus(groups, [counts[:, np.searchsorted(names, group.method)] for group in groups])
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(low), float(high)


def grouped(rows: Sequence[Record], column: str, measure: str = MEASURE, references: Sequence[str] = ()) -> list[Group]:
    """The groups with at least two methods, of runs with both numbers; one architecture, without ``references``."""
    alike = PREDICTORS[column][1]
    found: dict[tuple[str, ...], list[tuple[float, float, str]]] = {}
    for row in rows:
        usable = row["status"] == "complete" and row["table"] == ONE and row["method"] not in references
        if usable and row[column] is not None and row[measure] is not None:
            found.setdefault(tuple(row[key] for key in alike), []).append((row[column], row[measure], row["method"]))
    groups = [Group(*map(np.array, zip(*runs, strict=True))) for _, runs in sorted(found.items())]
    return [group for group in groups if len(np.unique(group.method)) > 1]


def predictions(rows: Sequence[Record], measure: str = MEASURE, references: Sequence[str] = ()) -> list[Prediction]:
    """A prediction for each predictor that enough runs have."""
    made = []
    for column in PREDICTORS:
        groups = grouped(rows, column, measure, references)
        runs = sum(len(group.early) for group in groups)
        if runs >= LEAST:
            made.append(Prediction(column, tau(groups), *interval(groups), runs, len(groups)))
    return made


def table(rows: Sequence[Record], references: Sequence[str] = ()) -> str:
    """The predictions of each of ``MEASURES`` in Markdown."""
    found = {measure: {one.predictor: one for one in predictions(rows, measure, references)} for measure in MEASURES}
    shown = [column for column in PREDICTORS if column in found[MEASURE]]
    if not shown:
        return f"Shown from {LEAST} runs on; not run yet."
    heads = [
        "early in the run",
        *(f"tau with the final {words} [95%]" for words in MEASURES.values()),
        "runs",
        "groups",
    ]
    lines = head(heads)
    for column in shown:
        cells = [_cell(found[measure].get(column)) for measure in MEASURES]
        of = found[MEASURE][column]
        lines.append(f"| {PREDICTORS[column][0]} | {' | '.join(cells)} | {of.runs} | {of.groups} |")
    return "\n".join(lines)


def _cell(one: Prediction | None) -> str:
    return "-" if one is None else f"{signed(one.tau, '.2f')} {bounds(one.low, one.high, 2)}"
