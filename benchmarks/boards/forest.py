"""The leaderboard's second figure: every method's differences to the reference, by kNN, linear probe and few-shot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from boards.clusters import over_board
from boards.markdown import NAMES, SPLITS
from boards.pairing import of_table, over
from boards.rows import MEASURE, MEASURES, ONE, REFERENCE, Record

INK, SOFT, REFERENCES = "#1f1f1f", "#8a8a8a", "#666666"
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7")  # of data sets (Okabe and Ito 2008)
MARKERS = ("o", "s", "^", "v", "P", "X")  # of partitions
LANE = 0.28  # of a row, from the mean's line to the dots of a data set
ALONE, ALONE_COLOUR = "local", "#7b3294"


def tables(rows: Sequence[Record], board: Mapping[str, Any], name: str) -> dict[str, dict[tuple[str, str], float]]:
    """Method -> (data set, partition) -> mean over seeds of ``row[name]`` less the reference's of the same seed."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for data in board["data"]:
        for partition in board["partitions"]:
            for method, value in over(of_table(rows, data, partition, ONE), REFERENCE, name).items():
                found.setdefault(method, {})[data, partition] = value
    return found


def ordered(rows: Sequence[Record], board: Mapping[str, Any]) -> list[str]:
    """The methods but the reference, in order of their mean difference by kNN over clusters, the best first."""
    known = over_board(rows, board, MEASURE)
    return sorted(known, key=lambda method: -known[method].mean)


def _head(axes: Axes, at: float, text: str, colour: str, align: Literal["left", "right"]) -> None:
    """What a vertical line is, above it."""
    axes.annotate(text, (at, 1), (0, 3), xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha=align,
                  fontsize=7.5, color=colour)  # fmt: skip


def _column(axes: Axes, rows: Sequence[Record], board: Mapping[str, Any], name: str, methods: Sequence[str]) -> None:
    """One measure: a row per method; dots of a data set in a lane of their own, the mean and its interval between."""
    means, dots = over_board(rows, board, name), tables(rows, board, name)
    lanes = {data: LANE * (2 * i / max(len(board["data"]) - 1, 1) - 1) for i, data in enumerate(board["data"])}
    for number, method in enumerate(methods):
        if number % 2 == 0:
            axes.axhspan(number - 0.5, number + 0.5, color="#f5f5f5", linewidth=0, zorder=0)
        for (data, partition), value in dots.get(method, {}).items():
            colour = COLOURS[list(board["data"]).index(data) % len(COLOURS)]
            marker = MARKERS[list(board["partitions"]).index(partition) % len(MARKERS)]
            axes.plot(100 * value, number + lanes[data], marker, color=colour, markersize=4.4, alpha=0.75,
                      markeredgewidth=0, zorder=2)  # fmt: skip
        if (known := means.get(method)) is None:
            continue
        bars = None
        if known.low is not None and known.high is not None:
            bars = [[100 * (known.mean - known.low)], [100 * (known.high - known.mean)]]
        axes.errorbar(100 * known.mean, number, xerr=bars, fmt="o", color=INK, markersize=4, elinewidth=1.5, zorder=4,
                      markerfacecolor="white" if method in board["references"] else INK, label=method)  # fmt: skip
    axes.axvline(0, color=INK, linewidth=1, zorder=1)
    if alone := means.get(ALONE):
        at = 100 * alone.mean
        axes.axvline(at, color=ALONE_COLOUR, linestyle="--", linewidth=1, zorder=1)
        _head(axes, at, ALONE, ALONE_COLOUR, "left" if at > 0 else "right")
    _head(axes, 0.0, REFERENCE, INK, "right" if alone and at > 0 else "left")
    axes.set_title(MEASURES[name], fontsize=11, fontweight="bold", pad=16)
    axes.set_xlabel(f"points over {REFERENCE}", fontsize=8.5)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _legend(made: Figure, board: Mapping[str, Any]) -> None:
    data = [
        Line2D([], [], color=COLOURS[i % len(COLOURS)], marker="o", linestyle="", markersize=5, label=NAMES.get(d, d))
        for i, d in enumerate(board["data"])
    ]
    split = [
        Line2D([], [], color=SOFT, marker=MARKERS[i % len(MARKERS)], linestyle="", markersize=5, label=SPLITS.get(p, p))
        for i, p in enumerate(board["partitions"])
    ]
    mean = Line2D([], [], color=INK, marker="o", markersize=4, linewidth=1.5, label="mean, 95% interval")
    made.legend(handles=[*data, *split, mean], loc="lower center", bbox_to_anchor=(0.5, 0.055), fontsize=8,
                frameon=False, ncols=len(data) + len(split) + 1, handletextpad=0.3, columnspacing=1.4)  # fmt: skip


def figure(rows: Sequence[Record], board: Mapping[str, Any]) -> Figure:
    """A row per method in order of kNN, a column per measure; one method or more has runs beside the reference's."""
    methods = ordered(rows, board)
    made = Figure(figsize=(10, 2.2 + 0.3 * len(methods)), dpi=200)
    height = made.get_figheight()
    grid = made.subplots(1, len(MEASURES), sharey=True)
    for axes, name in zip(grid, MEASURES, strict=True):
        _column(axes, rows, board, name, methods)
    grid[0].set_yticks(range(len(methods)), methods, fontsize=8.5)
    for label, method in zip(grid[0].get_yticklabels(), methods, strict=True):
        if method in board["references"]:
            label.set(fontstyle="italic", color=REFERENCES)
    names = max(label.get_window_extent().width for label in grid[0].get_yticklabels()) / made.bbox.width
    made.subplots_adjust(left=names + 0.012, right=0.985, top=1 - 0.55 / height, bottom=1.35 / height, wspace=0.07)
    grid[0].set_ylim(len(methods) - 0.5, -0.5)
    _legend(made, board)
    counts = {known.count for known in over_board(rows, board, MEASURE).values()}
    number = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    text = (
        f"Light: a data set and partition, the mean over its seeds of the difference to {REFERENCE} of the same seed."
        f" Dark: the mean over {number} pairs of data set and seed, each the mean over its partitions, and its 95%"
        f" interval about these data sets (Student's t). Hollow: references ({', '.join(board['references'])})."
    )
    made.text(0.5, 0.08 / height, fill(text, 172), fontsize=7.5, color="#444444", ha="center", va="bottom")
    return made
