"""Which configuration a sweep chooses, from the rows of its ``results.parquet``, and which others are as good.

Only a configuration whose repeats all ran to their last round can win: the value of a stopped trial is of an earlier
round. Repeats share their seeds, and so splits and first values: the others are judged by their paired differences to
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rayfed_ssl.records.comparison import STARTED, difference
from rayfed_ssl.records.comparison import UNTRAINED as UNTRAINED_ENCODER
from rayfed_ssl.records.significance import APART, MARGIN, Judgement
from rayfed_ssl.records.summary import HELD_OUT_LABELS, NO_LABELS, TEST_LABELS

INTERVAL = "the 95% interval of their paired differences over repeats (Student's t)"
SHARES = ("accuracy.", "select.", "best.", "untrained.")  # metrics between 0 and 1
CHOICE = "choice.json"  # in a sweep's folder: what was chosen, by what, and what a reader has to know of it
UNTRAINED = "untrained."  # and a metric: the column of the same before training
START = "start"  # the column of the file or run that trials' encoders began with (``model.start``), where any did


@dataclass(frozen=True)
class Choice:
    """``ranking``: configurations with a score, the best first; ``finished``: those of them that ran to their end.

    ``level`` and ``apart``: the other finished configurations that are level with the winner, or not told apart from it
    (:mod:`rayfed_ssl.records.significance`), by the interval of their paired differences over repeats. With one
    training of each, configurations with the winner's value are level. ``ahead``: those that are better by that
    interval, which is possible if another score than the mean of repeats chooses. ``repeats``: trainings of each.
    ``margin``: the largest small difference.
    """

    ranking: tuple[int, ...]
    finished: tuple[int, ...]
    level: tuple[int, ...]
    apart: tuple[int, ...]
    ahead: tuple[int, ...]
    repeats: int
    margin: float

    @property
    def winner(self) -> int | None:
        return self.finished[0] if self.finished else None

    @property
    def why_level(self) -> str:
        if self.repeats == 1:
            return "their values are the same"
        return f"{INTERVAL} contains zero and lies within ±{self.margin:g}"

    @property
    def why_apart(self) -> str:
        return f"{INTERVAL} contains zero{' and reaches further' if self.margin else ''}"


def choose(rows: Sequence[Mapping[str, Any]], metric: str, mode: str) -> Choice:
    """The choice of a sweep; among equal scores, the configuration that was tried first.

    Args:
        rows: one per trial, with ``configuration``, ``repeat``, ``status``, the configuration's ``score``, ``metric``.
        mode: ``max`` where larger values are better, ``min`` where smaller ones are.
    """
    trials: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        trials.setdefault(row["configuration"], []).append(row)
    sign = 1.0 if mode == "min" else -1.0
    scores = {c: sign * own[0]["score"] for c, own in trials.items() if own[0]["score"] is not None}
    ranking = sorted(scores, key=lambda c: (scores[c], c))
    finished = [c for c in ranking if all(row["status"] == "complete" for row in trials[c])]
    values = {c: {row["repeat"]: sign * row[metric] for row in trials[c] if row[metric] is not None} for c in finished}
    margin = MARGIN if metric.startswith(SHARES) else 0.0
    words = {c: _judged(values[c], values[finished[0]], margin) for c in finished[1:]}
    level, apart, ahead = (tuple(c for c in words if words[c] == word) for word in ("level", APART, "below"))
    repeats = max(map(len, trials.values()), default=1)
    return Choice(tuple(ranking), tuple(finished), level, apart, ahead, repeats, margin)


def labels_of(metric: str) -> str | None:
    """Whose labels choose if a metric chooses, if any do; None for a metric that does not measure encoders."""
    known = {"select": HELD_OUT_LABELS, "accuracy": TEST_LABELS, "best": TEST_LABELS, "features": NO_LABELS}
    return known.get(metric.partition(".")[0])


def untrained_of(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[int, list[float]]:
    """Configuration -> what its trials' encoders were worth before training, by the metric; without those of which
    nothing says so.
    """
    found: dict[int, list[float]] = {}
    for row in rows:
        if (value := row.get(f"{UNTRAINED}{metric}")) is not None:
            found.setdefault(row["configuration"], []).append(value)
    return found


def starts_of(rows: Sequence[Mapping[str, Any]], metric: str) -> list[list[float]]:
    """The values of ``untrained_of``, a list per configuration, of those of which the most repeats are known. Others
    would seem to begin with other encoders.
    """
    found = list(untrained_of(rows, metric).values())
    most = max(map(len, found), default=0)
    return [values for values in found if len(values) == most]


def score(values: Sequence[float], how: str, mode: str) -> float:
    """A configuration's score from the values of its repeats, of which there is at least one.

    Args:
        how: ``mean``, ``worst`` or ``best``.
        mode: ``max`` where larger values are better, ``min`` where smaller ones are.
    """
    if how == "mean":
        return fmean(values)
    return max(values) if (how == "best") == (mode == "max") else min(values)


def before_training(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the trials' encoders were before training: as a comparison says it, the starting encoder where any began
    with ``model.start``.
    """
    return STARTED if any(row.get(START) is not None for row in rows) else UNTRAINED_ENCODER


def below_untrained(rows: Sequence[Mapping[str, Any]], choice: Choice, metric: str, mode: str) -> tuple[int, ...]:
    """The configurations with a score whose encoders are worse than before training in the mean of repeats, the best
    first; none by what is no share, such as RankMe, of which neither is better.
    """
    if not metric.startswith(SHARES):
        return ()
    sign, found = 1.0 if mode == "min" else -1.0, []
    for configuration in choice.ranking:
        own = [row for row in rows if row["configuration"] == configuration and row[metric] is not None]
        pairs = [
            sign * (row[metric] - began) for row in own for began in untrained_of([row], metric).get(configuration, [])
        ]
        if pairs and fmean(pairs) > 0:
            found.append(configuration)
    return tuple(found)


def _judged(own: Mapping[int, float], best: Mapping[int, float], margin: float) -> Judgement | None:
    """What the paired differences over the repeats that both have are called: level where all are zero, also of a
    single one, of which nothing else can be said.
    """
    pairs = [own[repeat] - best[repeat] for repeat in own if repeat in best]
    if pairs and not any(pairs):
        return "level"
    found = difference(pairs)
    return None if found is None or found.low is None else found.judged(margin)
