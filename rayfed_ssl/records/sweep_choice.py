"""Which configuration a sweep chooses, from the rows of its ``results.parquet``, and which others are level with it.

Only a configuration whose repeats all ran to their last round can win: what was stopped has a value of another round.
Those whose means cannot be told from the winner's are level with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfed_ssl.records.comparison import difference


@dataclass(frozen=True)
class Choice:
    """``ranking``: configurations with a score, the best first; ``finished``: those of them that ran to their end.

    ``level``: the other finished configurations whose interval (see :func:`interval`) overlaps the winner's, or whose
    value is the same where there is one training of each. ``repeats``: trainings of each.
    """

    ranking: tuple[int, ...]
    finished: tuple[int, ...]
    level: tuple[int, ...]
    repeats: int

    @property
    def winner(self) -> int | None:
        return self.finished[0] if self.finished else None

    @property
    def why_level(self) -> str:
        return "their means' 95% intervals (Student's t) overlap" if self.repeats > 1 else "their values are the same"


def choose(rows: Sequence[Mapping[str, Any]], metric: str, mode: str) -> Choice:
    """What a sweep chooses; of equal scores the configuration that was tried first.

    Args:
        rows: one per trial, with ``configuration``, ``status``, the configuration's ``score``, and ``metric``.
        mode: ``max`` where larger values are better, ``min`` where smaller ones are.
    """
    trials: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        trials.setdefault(row["configuration"], []).append(row)
    sign = 1.0 if mode == "min" else -1.0
    scores = {c: sign * own[0]["score"] for c, own in trials.items() if own[0]["score"] is not None}
    ranking = sorted(scores, key=lambda c: (scores[c], c))
    finished = [c for c in ranking if all(row["status"] == "complete" for row in trials[c])]
    values = {c: [row[metric] for row in trials[c] if row[metric] is not None] for c in finished}
    level = [c for c in finished[1:] if overlap(values[finished[0]], values[c])]
    return Choice(tuple(ranking), tuple(finished), tuple(level), max(map(len, trials.values()), default=1))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% confidence interval of the mean by Student's t; of a single value that value alone."""
    found = difference(values)
    if found is None or found.low is None or found.high is None:
        return (mean := float(np.mean(values))), mean
    return found.low, found.high


def overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether the intervals of two configurations' values have a point in common."""
    (low, high), (lower, higher) = interval(a), interval(b)
    return low <= higher and lower <= high
