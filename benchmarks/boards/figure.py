"""The leaderboard's figure: accuracy against bytes, with a panel per data set, a point with its interval per method,
and the Pareto front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from boards.clusters import clusters
from boards.markdown import NAMES, SPLITS
from boards.pairing import complete, of_table
from boards.rows import MEASURE, MEASURES, ONE, REFERENCE, Record
from rayfed_ssl.base.text import signed
from rayfed_ssl.records.comparison import difference

ACCENT, INK, SOFT, LINE, GREY_TEXT = "#b3261e", "#1f1f1f", "#8a8a8a", "#d9d9d9", "#5f5f5f"
ALONE = "local"  # every client trains alone: the baseline that a federated method has to exceed
GAP = 0.06  # the least distance of neighbours in decades, so that two points never share a place
TICKS = (1, 2, 5, 10, 20, 40, 100, 200, 500, 1000, 2000, 5000)  # MB
CHARACTER = 0.026  # the width of a tick's character, as a share of the axis
ALIKE = 3  # from so many methods of the same rounded MB on, they share a tick


@dataclass(frozen=True)
class Point:
    """A method: MB to and from all clients in the whole run, accuracy, and the 95% interval of its difference to the
    reference, laid around the accuracy. The reference, and methods with one seed, have no interval.
    """

    method: str
    megabytes: float
    accuracy: float
    low: float | None = None
    high: float | None = None


# -- what is drawn -----------------------------------------------------------------------------------------------------


def means(rows: Sequence[Record], board: Mapping[str, Any], data: str, name: str) -> dict[str, float]:
    """Method -> ``row[name]`` of complete runs with a value: the mean over the partitions of the mean over seeds.

    Only the board's seeds count. Some partitions have runs of further seeds, which the others lack.
    """
    found: dict[str, list[float]] = {}
    known = [row for row in rows if row["seed"] in board["seeds"]]
    for partition in board["partitions"]:
        for method, seeds in of_table(known, data, partition, ONE).items():
            if values := [row[name] for row in complete(seeds) if row[name] is not None]:
                found.setdefault(method, []).append(fmean(values))
    return {method: fmean(values) for method, values in found.items()}


def points(rows: Sequence[Record], board: Mapping[str, Any], data: str) -> list[Point]:
    """The methods of one panel, the most accurate first.

    Methods have different seeds, and some lack a partition, so their own means cannot be compared. A method's accuracy
    is therefore the reference's mean plus the method's mean difference to it over its clusters
    (:func:`boards.clusters.clusters`), and its interval is that of the difference by Student's t. Methods without a run
    in common with the reference are left out.
    """
    accuracy, sent = means(rows, board, data, MEASURE), means(rows, board, data, "bytes_total")
    found = []
    for method, pairs in clusters(rows, board, MEASURE, data).items():
        known, base = difference(pairs), accuracy[REFERENCE]
        if known is None or method not in sent:
            continue
        bounds = (None, None) if known.low is None or known.high is None else (base + known.low, base + known.high)
        of_reference = method == REFERENCE
        found.append(Point(method, sent[method] / 1e6, base + known.mean, *(() if of_reference else bounds)))
    return sorted(found, key=lambda point: -point.accuracy)


def federated(found: Sequence[Point], board: Mapping[str, Any]) -> list[Point]:
    """The points from which the front is made: methods that send something and are not references of the board."""
    return [point for point in found if point.megabytes and point.method not in board["references"]]


def pareto(found: Sequence[Point]) -> list[Point]:
    """The points that no other beats: no other is at least as accurate with fewer bytes, or more accurate with as
    many.
    """
    front: list[Point] = []
    for point in sorted(found, key=lambda p: (p.megabytes, -p.accuracy)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return front


def beaten(
    rows: Sequence[Record], board: Mapping[str, Any], data: str, found: Sequence[Point], front: Sequence[Point]
) -> set[str]:
    """The methods that one on the front beats: it sends no more, is more accurate, and the 95% interval of their paired
    difference excludes zero. The front is one of means, so a method that is neither on it nor beaten may belong there.
    """
    worse = set()
    for best in front:
        pairs = clusters(rows, board, MEASURE, data, best.method)
        for point in found:
            known = difference(pairs.get(point.method, []))
            if best.megabytes <= point.megabytes and known is not None and known.high is not None and known.high < 0:
                worse.add(point.method)
    return worse


def stretched(megabytes: Sequence[float], gap: float = GAP) -> list[float]:
    """Places on the axis for ascending values: their logarithms to base 10, except that neighbours are at least ``gap``
    apart, and all values to their right move along.
    """
    places = [math.log10(value) for value in megabytes[:1]]
    for one, two in pairwise(megabytes):
        places.append(places[-1] + max(math.log10(two / one), gap))
    return places


# -- how it is drawn ---------------------------------------------------------------------------------------------------


class _Panel:
    """One data set: the places of its points, and how they are drawn."""

    def __init__(self, axes: Axes, rows: Sequence[Record], board: Mapping[str, Any], data: str) -> None:
        self.axes, self.references = axes, set(board["references"])
        self.found = points(rows, board, data)
        ranked = federated(self.found, board)
        self.front = pareto(ranked)
        self.best = {point.method for point in self.front}
        self.beaten = beaten(rows, board, data, ranked, self.front)
        self.untrained = means(rows, board, data, f"untrained_{MEASURE}").get(REFERENCE)
        self.base = next(point.accuracy for point in self.found if point.method == REFERENCE)
        sending = sorted((p for p in self.found if p.megabytes), key=lambda p: (p.megabytes, -p.accuracy))
        self.sent = [point.megabytes for point in sending]
        places = stretched(self.sent)
        self.marks = [(math.log10(value), place) for value, place in zip(self.sent, places, strict=True)]
        self.place = {point.method: place for point, place in zip(sending, places, strict=True)}
        self.left, self.right = places[0] - 0.15, places[-1] + 0.15
        silent = [point for point in self.found if not point.megabytes]
        self.edge = self.left - GAP * (1.6 * len(silent) + 1.2)  # of the strip for what sends nothing
        for number, point in enumerate(silent):
            self.place[point.method] = self.edge + GAP * (1.4 + 1.6 * number)

    def colour(self, method: str) -> str:
        if method in self.best:
            return ACCENT
        return SOFT if method in self.beaten or method in self.references else INK

    def draw(self, title: str) -> None:
        ends = [100 * each for p in self.found for each in (p.low, p.high, p.accuracy) if each is not None]
        ends += [] if self.untrained is None else [100 * self.untrained]
        margin = 0.03 * (max(ends) - min(ends))
        self.axes.set_xlim(self.edge, self.right)
        self.axes.set_ylim(min(ends) - margin, max(ends) + margin)
        self.axes.set_title(title, fontsize=11, loc="left", fontweight="bold")
        self.axes.set_ylabel(f"{MEASURES[MEASURE]} accuracy (%)", fontsize=8.5)
        self.axes.set_xlabel("MB to and from all clients in the whole run (log scale)", fontsize=8.5, loc="left")
        self.axes.tick_params(labelsize=8)
        self.axes.spines[["top", "right"]].set_visible(False)
        self._background()
        self._points()
        self._names()

    def _background(self) -> None:
        """Ticks, the strip at 0 MB, where the axis is stretched, the untrained encoder, the front."""
        axes = self.axes
        ticks = self._ticks()
        if self.edge < self.left - GAP:
            axes.axvspan(self.edge, self.left - 0.3 * GAP, color="#f1f1f1", linewidth=0, zorder=0)
            ticks.insert(0, ((self.edge + self.left) / 2, "0"))
            break_at = self.left - 0.3 * GAP
            axes.plot([break_at], [0], marker=[(-1, -2), (1, 2)], markersize=8, color=INK, linestyle="",
                      transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip
        axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
        for (one, a), (two, b) in pairwise(self.marks):
            if b - a > two - one + 1e-9:
                axes.axvspan(a - GAP / 2, b + GAP / 2, color="#fbf3e4", linewidth=0, zorder=0)
        if self.untrained is not None:
            axes.axhline(100 * self.untrained, color=SOFT, linestyle="--", linewidth=1, zorder=1)
            axes.annotate("untrained encoder", (self.left, 100 * self.untrained), (2, 3), fontsize=7.5, color=GREY_TEXT,
                          textcoords="offset points")  # fmt: skip
        steps = [(self.place[p.method], 100 * p.accuracy) for p in self.front]
        steps.append((self.right, steps[-1][1]))
        axes.plot(*zip(*steps, strict=True), color=ACCENT, linewidth=2, drawstyle="steps-post", zorder=2,
                  solid_joinstyle="miter")  # fmt: skip
        axes.annotate("Pareto\nfront", steps[-1], (-1, 3), textcoords="offset points", fontsize=7, color=ACCENT,
                      fontweight="bold", ha="right")  # fmt: skip

    def _ticks(self) -> list[tuple[float, str]]:
        """(place, text): a bracket for methods of about the same bytes, and round numbers where there is room."""
        alike: dict[int, list[float]] = {}
        for value, (_, place) in zip(self.sent, self.marks, strict=True):
            alike.setdefault(round(value), []).append(place)
        groups = {value: places for value, places in alike.items() if len(places) >= ALIKE}
        for places in groups.values():
            ends = [places[0] - GAP / 3, places[-1] + GAP / 3]
            self.axes.plot(ends, [0, 0], color=INK, linewidth=3, solid_capstyle="butt", clip_on=False,
                           transform=self.axes.get_xaxis_transform())  # fmt: skip
        kept = [(fmean(places), f"{value}") for value, places in groups.items()]
        (low, first), (high, last) = self.marks[0], self.marks[-1]
        logs, stands = zip((low - 1, first - 1), *self.marks, (high + 1, last + 1), strict=True)
        for tick in TICKS:
            place = float(np.interp(math.log10(tick), logs, stands))
            inside = any(places[0] - GAP <= place <= places[-1] + GAP for places in groups.values())
            text, unit = f"{tick:g}", CHARACTER * (self.right - self.edge)
            near = any(abs(place - other) < unit * (1 + (len(text) + len(beside)) / 2) for other, beside in kept)
            if self.left < place < self.right and not inside and not near:
                kept.append((place, text))
        return sorted(kept)

    def _points(self) -> None:
        for point in self.found:
            colour = self.colour(point.method)
            bars = None
            if point.low is not None and point.high is not None:
                bars = [[100 * (point.accuracy - point.low)], [100 * (point.high - point.accuracy)]]
            hollow = point.method in self.references
            self.axes.errorbar(
                self.place[point.method], 100 * point.accuracy, yerr=bars, fmt="D" if hollow else "o", color=colour,
                markersize=4.5 if point.method in self.best else 3.6, markerfacecolor="white" if hollow else colour,
                elinewidth=1.4 if point.method in self.best else 0.9, zorder=4 if point.method in self.best else 3,
                label=point.method,
            )  # fmt: skip

    def _names(self) -> None:
        """A column to the right, evenly spaced in order of accuracy: lines to names cannot cross."""
        axes = self.axes
        (low, high), width = axes.get_ylim(), self.right - self.edge
        bend, names, numbers = self.right + 0.015 * width, self.right + 0.08 * width, self.right + 0.94 * width
        axes.annotate(f"points over {REFERENCE}", (numbers, high), (0, 5), textcoords="offset points", ha="right",
                      fontsize=7.5, color=GREY_TEXT, annotation_clip=False)  # fmt: skip
        for number, point in enumerate(self.found):
            row = high - (number + 0.5) / len(self.found) * (high - low)
            here, colour = 100 * point.accuracy, self.colour(point.method)
            best, reference = point.method in self.best, point.method in self.references
            line: dict[str, Any] = {"color": ACCENT if best else LINE, "linewidth": 0.5, "linestyle": "-"}
            if point.method == ALONE:
                line = {"color": SOFT, "linewidth": 1, "linestyle": ":"}
            places = [self.place[point.method], bend, names - 0.01 * width]
            axes.plot(places, [here, here, row], clip_on=False, zorder=1, **line)
            style: dict[str, Any] = {
                "fontsize": 8, "va": "center", "color": GREY_TEXT if colour == SOFT else colour,
                "fontweight": "bold" if best else "normal", "fontstyle": "italic" if reference else "normal",
            }  # fmt: skip
            axes.text(names, row, point.method, **style)
            text = "reference" if point.method == REFERENCE else signed(100 * (point.accuracy - self.base), ".1f")
            if point.low is not None:
                text += f" ± {100 * (point.accuracy - point.low):.1f}"
            axes.text(numbers, row, text, ha="right", **style)


def _note(rows: Sequence[Record], board: Mapping[str, Any], shown: Sequence[str]) -> str:
    """What the marks mean."""
    counts = {
        len(pairs) for data in shown for m, pairs in clusters(rows, board, MEASURE, data).items() if m != REFERENCE
    }
    seeds = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    splits = ", ".join(SPLITS.get(partition, partition) for partition in board["partitions"])
    parts = [
        f"A point is {REFERENCE}'s mean accuracy plus the method's mean paired difference to it, over {seeds} seeds; a"
        f" seed's difference is its mean over {splits}, where both have run. Bars and ±: the difference's 95% interval"
        " (Student's t).",
        "Red: the front of the means. Grey: one on the front sends no more and is better, the 95% interval of their own"
        " difference above zero. Black: not told apart from the front.",
        f"Hollow: references beside the front ({', '.join(board['references'])}).",
        f"Dotted: {ALONE}, where nothing is sent.",
        "Shaded: the axis is stretched, so that methods of equal bytes stand side by side.",
    ]
    return fill(" ".join(parts), 172)


def figure(rows: Sequence[Record], board: Mapping[str, Any]) -> Figure | None:
    """A panel per data set with at least two federated methods; None if there is none.

    Methods that send nothing stand in a strip at 0 MB. The board's references are hollow and not part of the front:
    ``centralized`` books no bytes because its images were gathered beforehand, ``fedavg_supervised`` has labels, and
    ``local`` is the baseline that the methods have to exceed.
    """
    shown = [data for data in board["data"] if len(federated(points(rows, board, data), board)) > 1]
    if not shown:
        return None
    made = Figure(figsize=(5.3 * len(shown), 7.6), dpi=200)
    grid = made.subplots(1, len(shown), squeeze=False)
    made.subplots_adjust(left=0.1 / len(shown), right=1 - 0.45 / len(shown), top=0.94, bottom=0.155, wspace=1.2)
    for axes, data in zip(grid.flat, shown, strict=True):
        _Panel(axes, rows, board, data).draw(NAMES.get(data, data))
    made.text(0.5, 0.012, _note(rows, board, shown), fontsize=7.5, color=GREY_TEXT, ha="center", va="bottom")
    return made
