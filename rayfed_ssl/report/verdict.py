"""A run in one sentence: is its encoder better than, level with or worse than the untrained one, and by which measure?

Accuracies are fractions. One run has one seed, so a difference below a percentage point is called level; where clients
are evaluated one by one, level is a 95% interval of their paired differences that holds zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rayfed_ssl.report.folder import UNFINISHED, UNKNOWN
from rayfed_ssl.report.formats import percent, plural, points
from rayfed_ssl.reporting.comparison import difference

LEVEL = 0.01  # of accuracy: one point
PREFERRED = ("linear", "knn", "fewshot", "task")
NAMES = {"knn": "kNN", "linear": "linear probe", "fewshot": "few-shot", "task": "own task"}
BETTER, LEVEL_WITH, WORSE = "better", "level", "worse"
WORDS = {BETTER: "better than", LEVEL_WITH: "level with", WORSE: "worse than"}


@dataclass(frozen=True)
class Verdict:
    """``kind``: better, level, worse, or None where nothing can be compared. ``protocol``: by which measure."""

    sentence: str
    kind: str | None = None
    protocol: str | None = None


def protocol_name(protocol: str) -> str:
    """What readers call a protocol."""
    return NAMES.get(protocol, protocol.replace("_", " "))


def mean(accuracy: Any) -> float | None:
    """A summary's accuracy as one number: of clients' values, those that are known, the mean."""
    values = accuracy.values() if isinstance(accuracy, Mapping) else [accuracy]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return fmean(known) if known else None


def ordered(protocols: Sequence[str]) -> list[str]:
    """The measures, the one that a verdict goes by first."""
    return sorted(protocols, key=lambda name: (PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), name))


def compared(last: Any, untrained: Any) -> tuple[str, float] | None:
    """(better, level or worse; the difference) of an accuracy to the untrained encoder's; None without both."""
    a, b = mean(last), mean(untrained)
    if a is None or b is None:
        return None
    if isinstance(last, Mapping) and isinstance(untrained, Mapping):
        both = [
            last[client] - untrained[client]
            for client in last.keys() & untrained.keys()
            if last[client] is not None and untrained[client] is not None
        ]
        found = difference(both)
        if found is not None and found.level is not None:
            return (LEVEL_WITH if found.level else BETTER if found.mean > 0 else WORSE), found.mean
    apart = a - b
    return (LEVEL_WITH if abs(apart) < LEVEL else BETTER if apart > 0 else WORSE), apart


def verdict(summary: Mapping[str, Any]) -> Verdict:
    """The sentence about the run that ``summary`` describes."""
    accuracy, untrained = summary.get("accuracy") or {}, summary.get("untrained") or {}
    began = "the encoder it started from" if "start" in summary else "the untrained encoder"
    found = {name: compared(accuracy[name], untrained.get(name)) for name in ordered(list(accuracy))}
    known = {name: result for name, result in found.items() if result is not None}
    opening = _opening(summary)
    if not known:
        return Verdict(f"{opening}: nothing was evaluated that could be compared with {began}.")
    main, (kind, apart) = next(iter(known.items()))
    last, before = mean(accuracy[main]), mean(untrained[main])
    whose = " (mean of clients)" if isinstance(accuracy[main], Mapping) else ""
    sentence = (
        f"{opening}, the encoder is {WORDS[kind]} {began}: {protocol_name(main)} accuracy{whose} {percent(last)} "
        f"against {percent(before)}, {points(apart)} points"
    )
    return Verdict(sentence + _others(known, main, kind) + _pixels(summary) + ".", kind, main)


def _opening(summary: Mapping[str, Any]) -> str:
    rounds, status = plural(int(summary.get("rounds") or 0), "round"), summary.get("status")
    if status == "diverged":
        return f"Training diverged; after the last good one of {rounds}"
    if status == "stopped":
        return f"Stopped early, after {rounds}"
    if status == UNFINISHED:
        return f"Not finished, after {rounds} so far"
    if status == UNKNOWN:
        return f"By what is left of the records, after {rounds}"
    return f"After {rounds}"


def _others(known: Mapping[str, tuple[str, float]], main: str, kind: str) -> str:
    """What the other measures say, where they say something else."""
    other = [f"{protocol_name(n)} says {k} ({points(d)})" for n, (k, d) in known.items() if n != main and k != kind]
    return f"; but {', '.join(other)}" if other else ""


def _pixels(summary: Mapping[str, Any]) -> str:
    """How it compares with the raw pixels."""
    pixels, accuracy = summary.get("pixels") or {}, summary.get("accuracy") or {}
    for name in pixels:
        last, base = mean(accuracy.get(name)), mean(pixels[name])
        if last is not None and base is not None:
            side = "above" if last >= base else "below"
            return f"; {protocol_name(name)} is {abs(100 * (last - base)):.1f} points {side} the raw pixels"
    return ""
