"""Figures of a comparison: accuracy over rounds, over bytes (log), over virtual hours; bands over seeds.

This module loads matplotlib, so its users import it where they draw.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from rayfed_ssl.records.comparison import BEFORE_TRAINING, RAW_PIXELS, Comparison, Row, spread
from rayfed_ssl.records.figures import GREY, save_figure
from rayfed_ssl.records.one_run import OneRun

Position = Callable[[OneRun, int], float | None]  # a run and a round -> where on the x axis; None: nowhere
Line = list[tuple[float, float, float | None]]  # x, mean, deviation over seeds
ROUND = "round"
BEFORE = {**dict.fromkeys(BEFORE_TRAINING, "--"), RAW_PIXELS: ":"}  # line styles of what training has to beat
STYLES = ("-", "--", ":", "-.")
COLOURS = 10


def draw(comparison: Comparison, folder: Path) -> None:
    """Write ``figures/accuracy_vs_rounds.png``, ``.._bytes.png`` and, if a clock ran, ``.._virtual_hours.png``."""
    if not any(run.curves for row in comparison.trained for run in row.runs.values()):
        return
    save_figure(folder, "accuracy_vs_rounds", figure(comparison, ROUND, lambda run, t: float(t)))
    sent = figure(comparison, "MB to and from all clients", _sent_mb, log=True)
    save_figure(folder, "accuracy_vs_bytes", sent)
    if any(run.virtual_s for row in comparison.trained for run in row.runs.values()):
        hours = figure(comparison, "virtual hours", lambda run, t: run.hours_until(t))
        save_figure(folder, "accuracy_vs_virtual_hours", hours)


def _sent_mb(run: OneRun, round: int) -> float | None:
    """Megabytes sent; None before the first byte, since a logarithmic axis has no zero."""
    return run.bytes_until(round) / 1e6 or None


def figure(comparison: Comparison, label: str, position: Position, *, log: bool = False) -> Figure:
    """A panel per score, a line per row with a band of one standard deviation over its seeds. A row that has no values
    on the axis is a horizontal line at its final accuracy.
    """
    scores = [name for name in comparison.scores if any(line(row, name, lambda r, t: t) for row in comparison.trained)]
    drawn = Figure(figsize=(2.6 + 4.4 * len(scores), 4.2), dpi=120, layout="constrained")
    panels = drawn.subplots(1, len(scores), squeeze=False)[0]
    for axes, score in zip(panels, scores, strict=True):
        for number, row in enumerate(comparison.trained):
            _draw_row(axes, row, score, line(row, score, position), number)
        for row in comparison.rows:
            if not row.trained and (before := row.spread(score)) is not None:
                axes.axhline(100 * before.mean, color=GREY, linewidth=1, linestyle=BEFORE[row.name], label=row.name)
        if log and axes.lines:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        elif label == ROUND:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel=label, ylabel=f"{score} (%)")
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    named = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    order = {name: number for number, row in enumerate(comparison.rows) for name in (row.name, _final(row))}
    names = sorted(named, key=order.__getitem__)
    handles = [named[name] for name in names]
    panels[-1].legend(handles, names, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    return drawn


def _final(row: Row) -> str:
    """The name of a row that is a horizontal line at its final accuracy."""
    return f"{row.name} (final)"


def line(row: Row, score: str, position: Position) -> Line:
    """The rounds that all of a row's runs evaluated, if they have a place on the axis: (mean x, mean accuracy,
    deviation).
    """
    runs = list(row.runs.values())
    common = set.intersection(*(set(run.curves.get(score, {})) for run in runs)) if runs else set()
    found: Line = []
    for t in sorted(common):
        places = [place for run in runs if (place := position(run, t)) is not None]
        over = spread([run.curves[score][t] for run in runs])
        if len(places) == len(runs) and over is not None:
            found.append((fmean(places), over.mean, over.deviation))
    return found


def _draw_row(axes: Axes, row: Row, score: str, points: Line, number: int) -> None:
    from matplotlib import colormaps

    colour, style = colormaps["tab10"](number % COLOURS), STYLES[number // COLOURS % len(STYLES)]
    final = row.spread(score)
    if not points:
        if final is not None:
            axes.axhline(100 * final.mean, color=colour, linewidth=1.2, linestyle="--", label=_final(row))
        return
    x, means = [point[0] for point in points], [100 * point[1] for point in points]
    axes.plot(x, means, color=colour, linestyle=style, marker="o", markersize=3, linewidth=1.6, label=row.name)
    if all(point[2] is not None for point in points):
        low, high = ([100 * (p[1] + sign * (p[2] or 0.0)) for p in points] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
