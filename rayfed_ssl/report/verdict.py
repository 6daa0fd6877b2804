"""A run in one sentence: how does its encoder compare with the untrained one and with raw pixels, and by which measure?

It is better or worse, level with it or not told apart from it.

Accuracies are fractions. The word is that of the 95% interval of the difference
(:mod:`rayfed_ssl.records.significance`): the interval of the paired differences over the test images, or, where a run
did not keep which of them were right, the one that their number allows; and, where clients are evaluated one by one,
that of their paired differences; the wider counts. Balanced accuracies and areas under the ROC curve have the paired
interval alone (:mod:`rayfed_ssl.records.image_intervals`): no number of test images allows one for them.
Where no interval is known, as of a run that did not record its number of test images, there is the difference and no
word for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from rayfed_ssl.base.text import listed, printable
from rayfed_ssl.evaluation import OWN
from rayfed_ssl.records.comparison import PREFERRED, difference, ordered
from rayfed_ssl.records.intervals import counts_images, of_difference
from rayfed_ssl.records.significance import APART, MARGIN, Judgement, judged
from rayfed_ssl.records.summary import HELD_OUT_LABELS
from rayfed_ssl.report.folder import UNFINISHED, UNKNOWN
from rayfed_ssl.report.formats import how_many, number, percent
from rayfed_ssl.report.measures import (
    change,
    features_name,
    is_share,
    protocol_name,
    shown,
    small,
    subject,
    unit,
    within,
)

BETTER, LEVEL_WITH, WORSE = "better", "level", "worse"
NO_INTERVAL = "no interval"
ROUNDING = 1e-9  # of an accuracy that is a share of images
KINDS: Mapping[Judgement, str] = {"above": BETTER, "below": WORSE, "level": LEVEL_WITH, APART: APART}
NO_ROUND = {
    "diverged": "Training diverged in its first round",
    "stopped": "Stopped before a round was over",
    UNFINISHED: "Not finished, and no round is over yet",
}  # the status of a run -> how the sentence about one without a trained round opens
WORDS = {BETTER: "better than", LEVEL_WITH: "level with", APART: "not told apart from", WORSE: "worse than"}


@dataclass(frozen=True)
class Verdict:
    """``kind``: a key of ``WORDS``, or None where nothing can be compared. ``protocol``: by which measure."""

    sentence: str
    kind: str | None = None
    protocol: str | None = None


DAMAGED = Verdict("The summary is damaged: no verdict.")


def mean(accuracy: Any) -> float | None:
    """A summary's accuracy as one number: of clients' values, those that are known, the mean."""
    values = accuracy.values() if isinstance(accuracy, Mapping) else [accuracy]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return fmean(known) if known else None


@dataclass(frozen=True)
class Compared:
    """``mean``: the difference; ``low``, ``high``: its 95% interval, None where the number of test images is not known,
    or does not say, and there are no clients to compare. ``of``: what the interval is over. ``margin``: what is small.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    of: str = ""
    margin: float = MARGIN

    @property
    def kind(self) -> str | None:
        """A key of ``WORDS``; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return KINDS[judged(self.low, self.high, self.margin)]

    def interval(self, measure: str) -> str:
        """``[+1.2, +4.5]``, as differences of the measure are written; ``no interval`` without one."""
        return NO_INTERVAL if self.low is None or self.high is None else within(measure, self.low, self.high)


class Pairs(NamedTuple):
    """The 95% interval of a difference, paired image by image, over so many labelled test ``images``."""

    low: float
    high: float
    images: int


def compared(last: Any, untrained: Any, images: int | None, pairs: Pairs | None = None) -> Compared | None:
    """An accuracy beside the untrained encoder's; None without both.

    Args:
        last, untrained: an accuracy, or one by client.
        images: the labelled test images that both are shares of; None where that is not known, or they are none.
        pairs: the interval of the difference, paired image by image. Without it answers are taken as independent, which
            makes the interval wider where encoders agree.
    """
    a, b = mean(last), mean(untrained)
    if a is None or b is None:
        return None
    apart, intervals = a - b, list[tuple[float, float, str]]()
    if isinstance(last, Mapping) and isinstance(untrained, Mapping):
        both = [
            last[client] - untrained[client]
            for client in last.keys() & untrained.keys()
            if last[client] is not None and untrained[client] is not None
        ]
        found = difference(both)
        if found is not None:
            apart = found.mean
            if found.low is not None and found.high is not None:
                intervals.append((found.low, found.high, f"{found.count} clients"))
    if pairs is None and images and 0 <= a <= 1 and 0 <= b <= 1:
        pairs = Pairs(*of_difference(a, b, images), images)
    if pairs is not None:
        low, high, count = pairs
        intervals.append((apart + low - (a - b), apart + high - (a - b), how_many(count, "test image")))
    if not intervals:
        return Compared(apart)
    low, high, of = max(intervals, key=lambda interval: interval[1] - interval[0])
    return Compared(apart, low, high, of)


def test_images(summary: Mapping[str, Any], protocol: str) -> int | None:
    """How many test images a score is a share of; None where it is none, or the run did not say. Own
    tasks have images of their own, those of all clients together.
    """
    return _images(summary, protocol) if counts_images(protocol) else None


def _images(summary: Mapping[str, Any], protocol: str) -> int | None:
    """How many labelled test images a score was measured on; None where the run did not say."""
    known = (summary.get("evaluation") or {}).get("task_test_images" if protocol == "task" else "test_images")
    return known if isinstance(known, int) and known > 0 else None


def clients_images(summary: Mapping[str, Any], protocol: str) -> dict[int, int]:
    """Client -> on how many of its own images its value of a score was measured; empty where the score is of no
    client's own images, or the run did not say.
    """
    kind = "own" if protocol.startswith(OWN) else protocol.partition("_")[0]
    found = ((summary.get("evaluation") or {}).get("clients_test_images") or {}).get(kind)
    values = (summary.get("accuracy") or {}).get(protocol)
    if not isinstance(found, Mapping) or not isinstance(values, Mapping):
        return {}
    known = {client for client, value in values.items() if value is not None}
    return {int(c): n for c, n in found.items() if c in known and c.isdecimal() and isinstance(n, int) and n > 0}


def pairs(summary: Mapping[str, Any], block: str, protocol: str) -> Pairs | None:
    """The interval, paired image by image, of an accuracy over that of ``block``; None where the run has none, or did
    not say over how many images.
    """
    found, images = ((summary.get("paired") or {}).get(block) or {}).get(protocol), _images(summary, protocol)
    if not (isinstance(found, list) and len(found) == 2 and all(isinstance(end, int | float) for end in found)):
        return None
    return None if images is None else Pairs(float(found[0]), float(found[1]), images)


def began_with(summary: Mapping[str, Any]) -> str:
    """The encoder before training, in words."""
    return "the encoder it started from" if "start" in summary else "the untrained encoder"


def verdict(summary: Mapping[str, Any]) -> Verdict:
    """The sentence about the run that ``summary`` describes."""
    accuracy, untrained = summary.get("accuracy") or {}, summary.get("untrained") or {}
    began = began_with(summary)
    if summary.get("rounds") == 0:
        ended = NO_ROUND.get(str(summary.get("status")), "No round is over")
        return Verdict(f"{ended}: what was measured is {began} alone.")
    found = {
        name: compared(
            accuracy[name], untrained.get(name), test_images(summary, name), pairs(summary, "untrained", name)
        )
        for name in ordered(list(accuracy))
    }
    known = {name: result for name, result in found.items() if result is not None}
    opening = _opening(summary)
    if not known:
        return Verdict(f"{opening}, {_described(summary, began)}")
    main = _leading(known)
    of = known[main]
    last, before = shown(main, mean(accuracy[main])), shown(main, mean(untrained[main]))
    whose = " (mean of clients)" if isinstance(accuracy[main], Mapping) else ""
    apart = f"{change(main, of.mean)}{unit(main)}"
    if of.kind is None:
        sentence = (
            f"{opening}, {subject(main)}{whose} is {last}, and {before} with {began}: {apart}, with no interval, so "
            "neither is called better"
        )
    else:
        sentence = (
            f"{opening}, the encoder is {WORDS[of.kind]} {began}: {subject(main)}{whose} {last} against {before}, "
            f"{apart} {_interval(of, main)}"
        )
    rest = _others(known, main) + _pixels(summary) + _one_class(summary) + _largest_class(summary, accuracy)
    return Verdict(f"{sentence}{rest}.", of.kind, main)


def _leading(known: Mapping[str, Compared]) -> str:
    """The measure that opens the sentence: the main one; where it does not tell the encoders apart, the first that
    does, if more than half of ``PREFERRED`` do and all these say the same: one alone may do so by chance.
    """
    main, preferred = next(iter(known)), [name for name in known if name in PREFERRED]
    telling = [name for name in preferred if known[name].kind in (BETTER, WORSE)]
    agree = 2 * len(telling) > len(preferred) and len({known[name].kind for name in telling}) == 1
    return telling[0] if known[main].kind == APART and agree else main


def best_below_last(summary: Mapping[str, Any]) -> str:
    """Why the best round's accuracy is lower than the last one's, where it is; empty where it is not."""
    below = [
        name
        for name, best in (summary.get("best") or {}).items()
        if best.get("by") == HELD_OUT_LABELS
        and (last := mean(summary["accuracy"].get(name))) is not None
        and best["value"] < last - ROUNDING
    ]
    if not below:
        return ""
    return (
        f"By {listed([protocol_name(name) for name in below])}, the best round is below the last: it was chosen on "
        "held-out images, and the numbers are of test images."
    )


def _described(summary: Mapping[str, Any], began: str) -> str:
    """What there is to say without an accuracy: features have no better or worse."""
    last, before = summary.get("features") or {}, summary.get("untrained_features") or {}
    told = []
    for name in last:
        value, first = mean(last[name]), mean(before.get(name))
        if value is not None:
            told.append(
                f"{features_name(name)} {number(value)}" + ("" if first is None else f" (from {number(first)})")
            )
    if not told:
        return f"nothing was evaluated that could be compared with {began}."
    return f"no accuracy was measured; of the features: {', '.join(told)}."


def _interval(of: Compared, measure: str) -> str:
    """In brackets what the judgement rests on."""
    near = f", contains zero and lies within {small(measure, of.margin)}"
    holds = {LEVEL_WITH: near, APART: ", contains zero"}.get(of.kind or "", "")
    return f"(95 % interval {of.interval(measure)} over {of.of}{holds})"


def _opening(summary: Mapping[str, Any]) -> str:
    rounds, status = how_many(int(summary.get("rounds") or 0), "round"), summary.get("status")
    if status == "diverged":
        return f"Training diverged; after the last good one of {rounds}"
    if status == "stopped":
        return f"Stopped early, after {rounds}"
    if status == UNFINISHED:
        return f"Not finished, after {rounds} so far"
    if status == UNKNOWN:
        return f"By what is left of the records, after {rounds}"
    return f"After {rounds}"


def _others(known: Mapping[str, Compared], main: str) -> str:
    """What the other measures that have an interval say, where they say something else."""
    other = [
        f"{protocol_name(name)} {'does not tell them apart' if of.kind == APART else f'says {of.kind}'} "
        f"({change(name, of.mean)})"
        for name, of in known.items()
        if name != main and of.kind not in (None, known[main].kind)
    ]
    return f"; but {', '.join(other)}" if other else ""


def beside_pixels(summary: Mapping[str, Any]) -> dict[str, Compared]:
    """How the encoder compares with the raw pixels, by each measure that has an interval, the main one first; empty of
    a run that measured no pixels.
    """
    pixels, accuracy = summary.get("pixels") or {}, summary.get("accuracy") or {}
    found = {
        name: compared(
            mean(accuracy.get(name)), mean(pixels[name]), test_images(summary, name), pairs(summary, "pixels", name)
        )
        for name in ordered(list(pixels))
    }
    return {name: of for name, of in found.items() if of is not None and of.kind is not None}


def _pixels(summary: Mapping[str, Any]) -> str:
    """How it compares with the raw pixels in words, what is below them first."""
    found, told = beside_pixels(summary), ""
    for kind, share in product((WORSE, APART, LEVEL_WITH, BETTER), (True, False)):
        alike = {name: of for name, of in found.items() if of.kind == kind and is_share(name) == share}
        if not alike:
            continue
        names, are = listed([protocol_name(name) for name in alike]), "is" if len(alike) == 1 else "are"
        if kind in (LEVEL_WITH, APART):
            apart = ", ".join(change(name, of.mean) for name, of in alike.items())
            told += f"; {names} {are} {WORDS[kind]} the raw pixels ({apart})"
        else:
            by = listed([f"{abs(100 * of.mean):.1f}" if share else f"{abs(of.mean):.3f}" for of in alike.values()])
            points = " points" if share else ""
            told += f"; {names} {are} {by}{points} {'above' if kind == BETTER else 'below'} the raw pixels"
    return told


def _one_class(summary: Mapping[str, Any]) -> str:
    """Which measures recognise one class alone, as the run noted: their accuracies are no results."""
    noted, by_class = summary.get("one_class"), dict[tuple[str, float], list[str]]()
    if not isinstance(noted, Mapping):
        return ""
    for name in ordered([*noted]):
        of = noted[name]
        by_class.setdefault((printable(of["name"], 80), float(of["share"])), []).append(protocol_name(name))
    return "".join(
        f"; {listed(names)} {'is' if len(names) == 1 else 'are'} right about images of class {label} and hardly any "
        f"other: that is about this class's share of the test images, {percent(share)}, and no result"
        for (label, share), names in by_class.items()
    )


def _largest_class(summary: Mapping[str, Any], accuracy: Mapping[str, Any]) -> str:
    """What always naming the largest class is worth, where the run noted that it is much, and whether all is below."""
    largest = summary.get("largest_class")
    if not isinstance(largest, Mapping):
        return ""
    share = float(largest["share"])
    means = [mean(of) for name, of in accuracy.items() if counts_images(name)]
    none = all(value is None or value <= share + ROUNDING for value in means)
    return (
        f"; always naming the largest class, {printable(largest['name'], 80)}, is right for {percent(share)} of the "
        f"test images{', and no accuracy here is higher' if none else ''}"
    )
