"""``trials.json``: the trials of a sweep, in the order of their numbers, and their status.

It is written at every change, so a sweep that is killed at any moment knows what it had begun. Only the
``summary.json`` in a trial's run folder says whether the trial is complete or diverged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, mean
from typing import Any

from rayfed_ssl.base.files import read_json, write_json
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.records import sweep_choice
from rayfed_ssl.records.summary import history as measured_by_round
from rayfed_ssl.records.summary_file import read_summary
from rayfed_ssl.records.tables import read_metrics
from tune.config import Point

SCHEDULE = "schedule.json"  # in a run folder: the exchanges of population-based training
SCORED = ("complete", "stopped")  # statuses with a score; "stopped" is by the scheduler
BEFORE = {  # block of a summary -> where the same was measured before training; select's are among the metrics
    "accuracy": "untrained", "best": "untrained", "features": "untrained_features", "select": "select",
}  # fmt: skip
OVER = (*SCORED, "diverged")  # statuses of trials of which nothing is left to run


@dataclass
class Entry:
    """A trial: a configuration with one seed. ``reports`` are the (round, value) pairs measured on the way."""

    trial: int
    configuration: int
    repetition: int
    point: Point
    status: str = "waiting"  # waiting | running | complete | stopped | diverged | failed
    reports: list[tuple[int, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return trial_name(self.trial)


def trial_name(number: int) -> str:
    return f"trial-{number:05d}"


class Book:
    """The entries of the sweep in ``folder``; configuration c has the trials c * repeat, c * repeat + 1, ...

    Raises:
        UserError: existing records (its own, a run's summary or its exchanges) cannot be read. The methods raise it,
            too.
    """

    def __init__(self, folder: Path, repeat: int) -> None:
        self.path, self.folder, self.repeat = folder / "trials.json", folder, repeat
        self.entries: list[Entry] = []
        if self.path.exists():
            try:
                rows = json.loads(self.path.read_text(encoding="utf-8"))["trials"]
                self.entries = [Entry(**{**row, "point": dict(row["point"])}) for row in rows]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise _damaged(self.path, error) from None
            for entry in self.entries:
                history(folder / entry.name)
                if (ended := self.ended(entry)) is not None:
                    entry.status = ended
                elif entry.status not in OVER:
                    entry.status = "waiting"

    @property
    def configurations(self) -> int:
        """How many configurations have trials."""
        return len(self.entries) // self.repeat

    def of(self, configuration: int) -> list[Entry]:
        """The trials of one configuration, one for each repeat."""
        return self.entries[configuration * self.repeat : (configuration + 1) * self.repeat]

    def add(self, point: Point) -> list[Entry]:
        """Add one more configuration; returns its trials."""
        number = self.configurations
        new = [Entry(number * self.repeat + r, number, r, point) for r in range(self.repeat)]
        self.entries += new
        return new

    def save(self) -> None:
        write_json(self.path, {"trials": [asdict(entry) for entry in self.entries]})

    def summary(self, entry: Entry) -> dict[str, Any] | None:
        """The summary in the trial's run folder; None if the run has not ended."""
        return read_summary(self.folder / entry.name)

    def ended(self, entry: Entry) -> str | None:
        """``complete`` or ``diverged`` if the trial's run folder says so."""
        status = (self.summary(entry) or {}).get("status")
        return str(status) if status in ("complete", "diverged") else None

    def note_ends(self) -> None:
        """Note how trials ended after the scheduler had stopped them: one may have been in its last round."""
        for entry in self.entries:
            if entry.status == "stopped" and (ended := self.ended(entry)) is not None:
                entry.status = ended

    def value(self, entry: Entry, metric: str) -> float | None:
        """The trial's metric; for a stopped trial, the value reported last."""
        summary = self.summary(entry)
        if summary is not None and (value := measured(summary, metric)) is not None:
            return value
        return entry.reports[-1][1] if entry.reports else None

    def began(self, entry: Entry, metric: str) -> float | None:
        """The metric of the trial's encoder before training; None if the run did not measure it, or has not ended."""
        part, _, name = metric.partition(".")
        protocol, _, kind = name.partition(".")  # best.knn.value
        summary = self.summary(entry)
        if summary is None or part not in BEFORE or kind not in ("", "value"):
            return None
        if part != "select":
            return measured(summary, f"{BEFORE[part]}.{protocol}")
        rounds = measured_by_round(read_metrics(self.folder / entry.name), part).get(protocol, {})
        return mean(rounds[0].values()) if rounds.get(0) else None


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read ({printable(error)}); the file is damaged")


def measured(summary: Mapping[str, Any], metric: str) -> float | None:
    """A dotted key of a summary as a number, or the mean if it holds one per client. None if it is missing."""
    value: Any = summary
    for part in metric.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    return fmean(numbers) if numbers else None


def score(values: list[float | None], how: str, mode: str) -> float | None:
    """A configuration's score: the worst, mean or best of its repeats' values. None while one is missing.

    Args:
        mode: ``max`` where larger values are better, ``min`` where smaller ones are.
    """
    known = [value for value in values if value is not None]
    return sweep_choice.score(known, how, mode) if known and len(known) == len(values) else None


def history(folder: Path) -> list[dict[str, Any]]:
    """The exchanges that the run in ``folder`` went through. Raises UserError if their record is damaged."""
    path = folder / SCHEDULE
    if (record := read_json(path)) is None:
        return []
    changes = record.get("changes")
    if not isinstance(changes, list) or not all(map(_has_point, changes)):
        raise UserError(f"{path}: cannot be read (no exchanges with their keys); the file is damaged")
    return changes


def _has_point(change: object) -> bool:
    return isinstance(change, dict) and isinstance(change.get("point"), dict)


def scheduled(folder: Path, point: Point) -> Point:
    """The keys in force: those of the last exchange, if there was one. Raises UserError as :func:`history` does."""
    changes = history(folder)
    return changes[-1]["point"] if changes else point
