"""The style of figures: as wide as one column of a paper, with colours that colour-blind readers can tell apart, for
light and dark pages.

A figure is drawn once and written as SVG, PDF and PNG. The page holds the same SVG with variables of the page as its
colours, so that it follows the reader's choice of light or dark. The colours of series are Okabe and Ito's (2008).

This module loads matplotlib, so its users import it in the functions that draw.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rayfed_ssl.base.files import replace_file

WIDTH = 3.3  # inches: one column
HEIGHT = 2.25
INK, MUTED, GRID = "#1c2126", "#5c6670", "#dde2e7"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d1f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MAP = "cividis"  # colours of matrices; their lightness increases, too
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", **{c: f"--c{k}" for k, c in enumerate(SERIES)}}
FORMATS = ("svg", "pdf", "png")
RC: dict[str, Any] = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8, "axes.titlesize": 8,
    "axes.labelsize": 8, "xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "legend.fontsize": 7.5, "text.color": INK,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.facecolor": "none", "grid.color": GRID, "grid.linewidth": 0.5,
    "axes.axisbelow": True, "lines.linewidth": 1.4, "lines.markersize": 3.2, "legend.frameon": False,
    "svg.fonttype": "none",    "text.parse_math": False, "pdf.fonttype": 42, "figure.dpi": 100,
    "savefig.dpi": 300, "axes.titlelocation": "left",
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A figure of a page. ``svg`` is for the page; the files are ``figures/<name>.{svg,pdf,png}``."""

    name: str
    title: str
    alt: str
    caption: str
    svg: Markup


class Studio:
    """Draws figures and writes them beside the page.

    Args:
        folder: the folder of the page; files go into its ``figures/``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def draw(
        self,
        name: str,
        title: str,
        paint: Callable[[Figure], None],
        *,
        alt: str,
        caption: str = "",
        height: float = HEIGHT,
    ) -> Drawing:
        """Let ``paint`` fill a figure of one column's width, and write it.

        Args:
            name: the files' name; each run of characters that are neither letters nor digits becomes an underscore.
            alt: a text that stands for the figure, for readers who cannot see it.
        """
        name = self._unused(re.sub(r"[^A-Za-z0-9]+", "_", name)[:80])
        with rc_context({**RC, "svg.hashsalt": name}):
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            FigureCanvasAgg(figure)
            paint(figure)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # laid out once, the same in every format
            svg = b""
            for suffix in FORMATS:
                drawn = _saved(figure, suffix)
                svg = drawn if suffix == "svg" else svg
                path = self.folder / "figures" / f"{name}.{suffix}"
                replace_file(path, partial(Path.write_bytes, data=drawn), self.folder)
        return Drawing(name, title, alt, caption, inline(svg.decode(), name, alt))

    def _unused(self, name: str) -> str:
        """The name, with a number added if a figure of this page has it already."""
        number, unused = 2, name
        while unused in self.names:
            number, unused = number + 1, f"{name}_{number}"
        self.names.add(unused)
        return unused


def _saved(figure: Figure, suffix: str) -> bytes:
    """The figure as the content of a file; the same figure gives the same bytes."""
    stream = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[suffix]
    ground = "none" if suffix == "svg" else "white"
    figure.savefig(stream, format=suffix, metadata=undated, facecolor=ground)
    return stream.getvalue()


def inline(svg: str, name: str, alt: str) -> Markup:
    """The text of an SVG file for a page: as wide as its container, with ids of its own and the page's colours."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'((?:xlink:)?href=")#', rf"\1#{name}-", body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    for colour, variable in VARIABLES.items():
        body = re.sub(rf"\b(fill|stroke): {colour}", rf"\1: var({variable})", body)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # its rule would hold for the whole page
    body = body.replace("font-family: 'DejaVu Sans', sans-serif", "font-family: var(--sans)")
    body = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", body)
    head = re.match(r"<svg[^>]*>", body)
    assert head is not None
    box = re.search(r'viewBox="[^"]+"', head[0])
    assert box is not None
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" '
        f'aria-label="{escape(alt)}">'
    )
    return Markup(opening + body[head.end() :])  # matplotlib escapes its texts, and alt is escaped


# -- parts of figures --------------------------------------------------------------------------------------------------


def series(number: int) -> dict[str, Any]:
    """Colour and marker of line ``number``."""
    return {"color": SERIES[number % len(SERIES)], "marker": MARKERS[number % len(MARKERS)]}


def whole_numbers(axes: Axes) -> None:
    """Put the marks of the x axis at whole numbers, also where there is only one."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))


def logarithmic(axis: XAxis | YAxis) -> None:
    """Make an axis logarithmic, with plain numbers at its powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def logarithmic_from_zero(axis: XAxis | YAxis, least: float) -> None:
    """Make an axis begin at zero and be logarithmic from the power of ten below ``least``, the smallest other value."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    high = axis.get_view_interval()[1]
    first, last = math.floor(math.log10(least)), math.floor(math.log10(high))
    start = 10.0**first
    getattr(axis.axes, f"set_{axis.axis_name}scale")("symlog", linthresh=start, linscale=0.5)
    steps = (1.0,) if last - first > 1 else (1.0, 2.0, 5.0)
    marks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    axis.set_major_locator(FixedLocator([0.0, *(mark for mark in marks if mark <= high)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def rules(axes: Axes) -> None:
    """Draw faint horizontal lines."""
    axes.grid(axis="y")


def legend_below(axes: Axes, columns: int = 2) -> None:
    """Put the legend under the axes, where it covers nothing."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.figure.legend(handles, names, loc="outside lower left", ncols=columns, handlelength=1.8, columnspacing=1.2)


def matrix(
    figure: Figure,
    values: NDArray[np.float64],
    limits: tuple[float, float],
    rows: str,
    columns: str,
    label: str,
    names: Sequence[str] = (),
) -> None:
    """Draw a matrix (N, M) with colours between ``limits``, and with its numbers if it has at most 8 rows and columns.

    ``names`` are those of both rows and columns, if these are the same.
    """
    axes, (low, high) = figure.add_subplot(), limits
    drawn = axes.imshow(values, cmap=MAP, interpolation="nearest", vmin=low, vmax=high)
    if max(values.shape) <= 8:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "#000000" if (value - low) > 0.55 * (high - low) else "#ffffff"
                axes.text(j, i, f"{value:.3g}", ha="center", va="center", color=colour, fontsize=7)
    for axis, count in ((axes.yaxis, values.shape[0]), (axes.xaxis, values.shape[1])):
        step = -(-count // 12)
        axis.set_ticks(range(0, count, step), names[::step] if len(names) == count else None)
    if max(map(len, names), default=0) > 3:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set(xlabel=columns, ylabel=rows)
    bar = figure.colorbar(drawn, ax=axes, label=label, shrink=0.9)
    bar.outline.set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def lines(figure: Figure, values: dict[str, dict[float, float]], *, xlabel: str, ylabel: str) -> Axes:
    """Draw one axis with a line per name: x -> y. A name without points is skipped, but keeps its colour for other
    figures.
    """
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(values.items()):
        if not points:
            continue
        style = series(number)
        few = len(points) <= 25
        marker = style["marker"] if few else None
        axes.plot(list(points), list(points.values()), color=style["color"], marker=marker, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if xlabel == "round":
        whole_numbers(axes)
    else:
        axes.locator_params(axis="x", nbins=6)
    rules(axes)
    if len(values) > 1:
        legend_below(axes, 2 if max(map(len, values)) > 14 else 3)
    return axes
