"""A run in one sentence: how does its encoder compare with the untrained one and with raw pixels, and by which measure?

The encoder is better than the other, worse, level with it, or not told apart from it. Accuracies are fractions.

The word follows from the 95% interval of the difference (:mod:`rayfed_ssl.records.significance`). There may be two
such intervals; the wider one counts:

- over the test images: the interval of the paired differences (:mod:`rayfed_ssl.records.image_intervals`). If the run
  did not keep which images each encoder got right, the interval is computed from the number of test images. That is
  not possible for balanced accuracies and areas under the ROC curve;
- over the clients, if they are evaluated one by one: the interval of the clients' paired differences.

If no interval is known, as for a run that did not record its number of test images, the sentence gives the difference
and no word for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from shlex import quote
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
ROUNDING = 1e-9  # accuracies that differ by no more are equal
KINDS: Mapping[Judgement, str] = {"above": BETTER, "below": WORSE, "level": LEVEL_WITH, APART: APART}
NO_ROUND = {
    "diverged": "Training diverged in its first round",
    "stopped": "Stopped before a round was over",
    UNFINISHED: "Not finished, and no round is over yet",
}  # status of a run without a completed round -> how its sentence opens
WORDS = {BETTER: "better than", LEVEL_WITH: "level with", APART: "not told apart from", WORSE: "worse than"}


@dataclass(frozen=True)
class Verdict:
    """A sentence, and the ``kind`` of difference it states: a key of ``WORDS``, or None if nothing could be compared.

    ``protocol``: the measure that it is about.
    """

    sentence: str
    kind: str | None = None
    protocol: str | None = None


DAMAGED = Verdict("The summary is damaged: no verdict.")


def mean(accuracy: Any) -> float | None:
    """A summary's accuracy as one number: the mean of the known values if each client has one; None without any."""
    values = accuracy.values() if isinstance(accuracy, Mapping) else [accuracy]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return fmean(known) if known else None


@dataclass(frozen=True)
class Compared:
    """A difference of two encoders (``mean``) and its 95% interval, from ``low`` to ``high``; both are None if no
    interval is known.

    ``of``: what the interval is over, in words. ``margin``: differences within it are small.
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
    """The 95% interval of a difference that is paired image by image, over ``images`` labelled test images."""

    low: float
    high: float
    images: int


def compared(last: Any, untrained: Any, images: int | None, pairs: Pairs | None = None) -> Compared | None:
    """Compare an accuracy with the untrained encoder's; None if one of them is not known.

    Args:
        last, untrained: an accuracy, or one for each client.
        images: the number of labelled test images of which both are shares; None if it is not known, or if the values
            are not shares of images.
        pairs: the interval of the difference, paired image by image. Without it the encoders' answers are taken as
            independent, which makes the interval wider if the encoders agree.
    """
    last_mean, untrained_mean = mean(last), mean(untrained)
    if last_mean is None or untrained_mean is None:
        return None
    gap = last_mean - untrained_mean
    apart, intervals = gap, list[tuple[float, float, str]]()
    if isinstance(last, Mapping) and isinstance(untrained, Mapping):
        both = [
            last[client] - untrained[client]
            for client in last.keys() & untrained.keys()
            if last[client] is not None and untrained[client] is not None
        ]
        by_client = difference(both)
        if by_client is not None:
            apart = by_client.mean
            if by_client.low is not None and by_client.high is not None:
                intervals.append((by_client.low, by_client.high, f"{by_client.count} clients"))
    if pairs is None and images and 0 <= last_mean <= 1 and 0 <= untrained_mean <= 1:
        pairs = Pairs(*of_difference(last_mean, untrained_mean, images), images)
    if pairs is not None:
        low, high, count = pairs
        intervals.append((apart + low - gap, apart + high - gap, how_many(count, "test image")))
    if not intervals:
        return Compared(apart)
    low, high, of = max(intervals, key=lambda interval: interval[1] - interval[0])
    return Compared(apart, low, high, of)


def test_images(summary: Mapping[str, Any], protocol: str) -> int | None:
    """The number of test images of which a score is a share; None if it is not such a share, or if the run did not
    record the number. For clients' own tasks it is the number of all clients' test images together.
    """
    return _images(summary, protocol) if counts_images(protocol) else None


def _images(summary: Mapping[str, Any], protocol: str) -> int | None:
    """The number of labelled test images on which a score was measured; None if the run did not record it."""
    known = (summary.get("evaluation") or {}).get("task_test_images" if protocol == "task" else "test_images")
    return known if isinstance(known, int) and known > 0 else None


def clients_images(summary: Mapping[str, Any], protocol: str) -> dict[int, int]:
    """Client -> the number of its own images on which its value of a score was measured; empty if the score was not
    measured on clients' own images, or if the run did not record the numbers.
    """
    kind = "own" if protocol.startswith(OWN) else protocol.partition("_")[0]
    counts = ((summary.get("evaluation") or {}).get("clients_test_images") or {}).get(kind)
    values = (summary.get("accuracy") or {}).get(protocol)
    if not isinstance(counts, Mapping) or not isinstance(values, Mapping):
        return {}
    known = {client for client, value in values.items() if value is not None}
    return {int(c): n for c, n in counts.items() if c in known and c.isdecimal() and isinstance(n, int) and n > 0}


def pairs(summary: Mapping[str, Any], block: str, protocol: str) -> Pairs | None:
    """The interval, paired image by image, of the difference between the encoder's accuracy and that of ``block``
    (``untrained`` or ``pixels``); None if the run has none, or did not record the number of images.
    """
    ends, images = ((summary.get("paired") or {}).get(block) or {}).get(protocol), _images(summary, protocol)
    if not (isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)):
        return None
    return None if images is None else Pairs(float(ends[0]), float(ends[1]), images)


def began_with(summary: Mapping[str, Any]) -> str:
    """What the encoder before training is called."""
    return "the encoder it started from" if "start" in summary else "the untrained encoder"


def verdict(summary: Mapping[str, Any]) -> Verdict:
    """The sentence about the run that ``summary`` describes."""
    accuracy, untrained = summary.get("accuracy") or {}, summary.get("untrained") or {}
    began = began_with(summary)
    if summary.get("rounds") == 0:
        ended = NO_ROUND.get(str(summary.get("status")), "No round is over")
        return Verdict(f"{ended}: what was measured is {began} alone.")
    differences = {
        name: compared(
            accuracy[name], untrained.get(name), test_images(summary, name), pairs(summary, "untrained", name)
        )
        for name in ordered(list(accuracy))
    }
    known = {name: result for name, result in differences.items() if result is not None}
    opening = _opening(summary)
    if not known:
        return Verdict(f"{opening}, {_described(summary, began)}")
    main = _leading(known)
    result = known[main]
    last, before = shown(main, mean(accuracy[main])), shown(main, mean(untrained[main]))
    whose = " (mean of clients)" if isinstance(accuracy[main], Mapping) else ""
    apart = f"{change(main, result.mean)}{unit(main)}"
    if result.kind is None:
        sentence = (
            f"{opening}, {subject(main)}{whose} is {last}, and {before} with {began}: {apart}, with no interval, so "
            "neither is called better"
        )
    else:
        sentence = (
            f"{opening}, the encoder is {WORDS[result.kind]} {began}: {subject(main)}{whose} {last} against {before}, "
            f"{apart} {_interval(result, main)}"
        )
    rest = _others(known, main) + _pixels(summary) + _one_class(summary) + _largest_class(summary, accuracy)
    return Verdict(f"{sentence}{rest}.", result.kind, main)


def unmeasured(summary: Mapping[str, Any], folder: Path | str) -> tuple[str, str]:
    """Why the run in ``folder`` has no accuracy, and the command that measures one; "" if there is no encoder."""
    if summary.get("status") == "diverged":
        return "not measured", ""
    command = f"rayfed-ssl evaluate {quote(str(folder))}"
    if summary.get("untrained"):
        return "not measured yet, as evaluation.every evaluates later rounds", f"now: {command}"
    return "not measured", f"on labelled images: {command} --data IMAGES --protocol knn"


def _leading(known: Mapping[str, Compared]) -> str:
    """The measure that opens the sentence.

    It is the main one, the first of ``known``. If that does not tell the encoders apart, it is the first that does,
    provided that more than half of the ``PREFERRED`` ones in ``known`` do and all these agree: a single one may do so
    by chance.
    """
    main, preferred = next(iter(known)), [name for name in known if name in PREFERRED]
    telling = [name for name in preferred if known[name].kind in (BETTER, WORSE)]
    agree = 2 * len(telling) > len(preferred) and len({known[name].kind for name in telling}) == 1
    return telling[0] if known[main].kind == APART and agree else main


def best_below_last(summary: Mapping[str, Any]) -> str:
    """Why the best round's accuracy is lower than the last round's; "" if it is not lower."""
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
    """The end of the sentence about a run without an accuracy: values that describe its features. They get no word,
    because none of them is better when it is higher.
    """
    last, before = summary.get("features") or {}, summary.get("untrained_features") or {}
    descriptions = []
    for name in last:
        value, first = mean(last[name]), mean(before.get(name))
        if value is not None:
            descriptions.append(
                f"{features_name(name)} {number(value)}" + ("" if first is None else f" (from {number(first)})")
            )
    if not descriptions:
        return f"nothing was evaluated that could be compared with {began}."
    return f"no accuracy was measured; of the features: {', '.join(descriptions)}."


def _interval(result: Compared, measure: str) -> str:
    """The interval on which the word rests, in brackets."""
    near = f", contains zero and lies within {small(measure, result.margin)}"
    holds = {LEVEL_WITH: near, APART: ", contains zero"}.get(result.kind or "", "")
    return f"(95 % interval {result.interval(measure)} over {result.of}{holds})"


def _opening(summary: Mapping[str, Any]) -> str:
    """How the sentence opens: how the run ended, and after how many rounds."""
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
    """What other measures say that have an interval and disagree with the ``main`` one; "" if there are none."""
    disagreeing = [
        f"{protocol_name(name)} {'does not tell them apart' if result.kind == APART else f'says {result.kind}'} "
        f"({change(name, result.mean)})"
        for name, result in known.items()
        if name != main and result.kind not in (None, known[main].kind)
    ]
    return f"; but {', '.join(disagreeing)}" if disagreeing else ""


def beside_pixels(summary: Mapping[str, Any]) -> dict[str, Compared]:
    """Measure -> how the encoder compares with the raw pixels, for measures that have an interval, the main one first;
    empty if the run did not measure pixels.
    """
    pixels, accuracy = summary.get("pixels") or {}, summary.get("accuracy") or {}
    differences = {
        name: compared(
            mean(accuracy.get(name)), mean(pixels[name]), test_images(summary, name), pairs(summary, "pixels", name)
        )
        for name in ordered(list(pixels))
    }
    return {name: result for name, result in differences.items() if result is not None and result.kind is not None}


def _pixels(summary: Mapping[str, Any]) -> str:
    """How the encoder compares with the raw pixels, in words; measures that are below them come first."""
    differences, text = beside_pixels(summary), ""
    for kind, share in product((WORSE, APART, LEVEL_WITH, BETTER), (True, False)):
        alike = {
            name: result for name, result in differences.items() if result.kind == kind and is_share(name) == share
        }
        if not alike:
            continue
        names, are = listed([protocol_name(name) for name in alike]), "is" if len(alike) == 1 else "are"
        if kind in (LEVEL_WITH, APART):
            apart = ", ".join(change(name, result.mean) for name, result in alike.items())
            text += f"; {names} {are} {WORDS[kind]} the raw pixels ({apart})"
        else:
            by = listed(
                [f"{abs(100 * result.mean):.1f}" if share else f"{abs(result.mean):.3f}" for result in alike.values()]
            )
            points = " points" if share else ""
            text += f"; {names} {are} {by}{points} {'above' if kind == BETTER else 'below'} the raw pixels"
    return text


def _one_class(summary: Mapping[str, Any]) -> str:
    """The measures that recognise one class alone, as the run recorded: their accuracies are not results."""
    noted, by_class = summary.get("one_class"), dict[tuple[str, float], list[str]]()
    if not isinstance(noted, Mapping):
        return ""
    for measure in ordered([*noted]):
        name, share = printable(noted[measure]["name"], 80), float(noted[measure]["share"])
        by_class.setdefault((name, share), []).append(protocol_name(measure))
    return "".join(
        f"; {listed(names)} {'is' if len(names) == 1 else 'are'} right about images of class {label} and hardly any "
        f"other: that is about this class's share of the test images, {percent(share)}, and no result"
        for (label, share), names in by_class.items()
    )


def _largest_class(summary: Mapping[str, Any], accuracy: Mapping[str, Any]) -> str:
    """The accuracy of always naming the largest class, if the run recorded that it is high, and whether no accuracy of
    the run is higher.
    """
    largest = summary.get("largest_class")
    if not isinstance(largest, Mapping):
        return ""
    share = float(largest["share"])
    measured = [value for name, of in accuracy.items() if counts_images(name) and (value := mean(of)) is not None]
    none_higher = bool(measured) and max(measured) <= share + ROUNDING
    return (
        f"; always naming the largest class, {printable(largest['name'], 80)}, is right for {percent(share)} of the "
        f"test images{', and no accuracy here is higher' if none_higher else ''}"
    )
