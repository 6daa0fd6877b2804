"""Says when a run had come far enough: to 90% of its own gain in accuracy, and to 90% of the first row's, a common
goal.

Curves hold only evaluated rounds, so the round found is the first evaluation that got there, not the first round. If
not every round is evaluated, bytes and hours until then are upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from rayfed_ssl.records.one_run import Curve, OneRun

REACHED = 0.9  # of the way from the untrained encoder's accuracy to a run's final one


def reached(curve: Curve) -> int | None:
    """The first evaluated round with at least ``REACHED`` of the way from round 0, the untrained encoder, to the last
    value. None if round 0 was not evaluated, or if nothing was gained.
    """
    wanted = goal(curve)
    rounds = sorted(t for t in curve if t)
    return None if wanted is None else next(t for t in rounds if t == rounds[-1] or curve[t] >= wanted)


def goal(curve: Curve) -> float | None:
    """The accuracy that is ``REACHED`` of the way from round 0, the untrained encoder, to the last value. None if
    round 0 was not evaluated, or if nothing was gained.
    """
    rounds = sorted(t for t in curve if t)
    if not rounds or 0 not in curve or not math.isfinite(gain := curve[rounds[-1]] - curve[0]) or gain <= 0:
        return None
    return curve[0] + REACHED * gain


@dataclass(frozen=True)
class GoalCost:
    """The cost for a row's runs to reach the first row's goal, seed by seed.

    ``accuracy``: the mean of the goals; ``seeds``: how many goals there are; ``arrived``: how many runs reached theirs.
    ``bytes`` and virtual ``hours`` until then are means over the runs, None if a run did not arrive; hours also without
    a clock.
    """

    accuracy: float
    seeds: int
    arrived: int
    bytes: float | None
    hours: float | None

    @property
    def never(self) -> str:
        """How many runs did not arrive, in words; empty where all did."""
        return never(self.seeds, self.arrived)


def never(seeds: int, arrived: int) -> str:
    """How many of ``seeds`` runs did not arrive at a goal, in words; empty where all did."""
    missing = seeds - arrived
    return "" if not missing else "never" if not arrived else f"never in {missing} of {seeds}"


def goal_cost(runs: Mapping[int, OneRun], first: Mapping[int, OneRun], measure: str) -> GoalCost | None:
    """What ``runs``, by seed, took to the goals of the first row's runs of these seeds; None where none has a goal."""
    goals = {seed: goal(first[seed].curves.get(measure, {})) for seed in runs}
    known = {seed: wanted for seed, wanted in goals.items() if wanted is not None}
    if not known:
        return None
    arrivals = {seed: _first_at(runs[seed].curves.get(measure, {}), wanted) for seed, wanted in known.items()}
    there = [(runs[seed], t) for seed, t in arrivals.items() if t is not None]
    hours = [run.hours_until(t) if t or not run.virtual_s else 0.0 for run, t in there]
    timed = [value for value in hours if value is not None]
    return GoalCost(
        fmean(known.values()),
        len(known),
        len(there),
        fmean(run.bytes_until(t) for run, t in there) if len(there) == len(known) else None,
        fmean(timed) if len(timed) == len(known) else None,
    )


def _first_at(curve: Curve, accuracy: float) -> int | None:
    """The first evaluated round, 0 included, with at least that accuracy; None if there is none."""
    return next((t for t in sorted(curve) if curve[t] >= accuracy), None)
