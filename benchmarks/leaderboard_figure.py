"""The leaderboard's figure: accuracy against bytes, one point with error bars per method, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from leaderboard_rows import MEASURE, ONE, Record
from leaderboard_tables import NAMES, SPLITS, complete, load_board, of_table
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullFormatter

from rayfed_ssl.reporting.comparison import spread

PATH = Path(__file__).resolve().parents[1] / "docs" / "figures" / "leaderboard.png"
ACCENT, INK, GREY = "#b3261e", "#222222", "#9a9a9a"
HALO = withStroke(linewidth=2.5, foreground="white")  # keeps names legible on lines
GAP = 0.035  # of the axis, between labels


@dataclass(frozen=True)
class Point:
    """A method: MB to and from all clients in the whole run, accuracy, and its standard deviation over seeds."""

    method: str
    megabytes: float
    accuracy: float
    deviation: float | None


def points(rows: Sequence[Record], data: str, partition: str, references: Sequence[str] = ()) -> list[Point]:
    """The methods of one panel; those that send nothing have no place on a logarithmic axis."""
    found = []
    for method, seeds in of_table(rows, data, partition, ONE).items():
        runs = [row for row in complete(seeds) if row[MEASURE] is not None and row["bytes_total"]]
        over = spread([row[MEASURE] for row in runs])
        if method not in references and over is not None:
            sent = fmean(row["bytes_total"] for row in runs) / 1e6
            found.append(Point(method, sent, over.mean, over.deviation))
    return found


def pareto(found: Sequence[Point]) -> list[Point]:
    """Those that no other beats: none is at least as accurate with fewer bytes, or more accurate with as many."""
    front: list[Point] = []
    for point in sorted(found, key=lambda p: (p.megabytes, -p.accuracy)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return front


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights in ascending order, moved so that neighbours are ``gap`` apart, around where they were."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    shift = fmean(placed) - fmean(heights) if placed else 0.0
    return [height - shift for height in placed]


def _panel(axes: Axes, rows: Sequence[Record], data: str, partition: str, references: Sequence[str]) -> None:
    found = points(rows, data, partition, references)
    front = pareto(found)
    best = {point.method for point in front}
    edge = [*front, Point("", max(p.megabytes for p in found), front[-1].accuracy, None)]
    axes.plot([p.megabytes for p in edge], [100 * p.accuracy for p in edge], color=ACCENT, linewidth=1.4,
              drawstyle="steps-post", zorder=1, label="Pareto front")  # fmt: skip
    for point in found:
        bars = None if point.deviation is None else 100 * point.deviation
        axes.errorbar(point.megabytes, 100 * point.accuracy, yerr=bars, fmt="o", markersize=5, elinewidth=1, capsize=2,
                      color=ACCENT if point.method in best else INK, zorder=2)  # fmt: skip
    seeds = [row for s in of_table(rows, data, partition, ONE).values() for row in complete(s)]
    before = {row["seed"]: row[f"untrained_{MEASURE}"] for row in seeds if row[f"untrained_{MEASURE}"] is not None}
    if before:
        axes.axhline(100 * fmean(before.values()), color=GREY, linestyle="--", linewidth=1, label="untrained encoder")
    axes.set_xscale("log")
    sent = [point.megabytes for point in found]
    axes.set_xlim(min(sent) / 3, max(sent) * 4)  # room for names
    _label(axes, found, best)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="MB to and from all clients, whole run", ylabel="kNN accuracy (%)")
    axes.set_title(f"{NAMES.get(data, data)}, {SPLITS.get(partition, partition)}", fontsize=10)
    axes.grid(axis="y", color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label(axes: Axes, found: Sequence[Point], best: set[str]) -> None:
    """A name to the right of each point; names of points that are close stand apart, with a line to their points."""
    low, high = axes.get_ylim()
    ordered = sorted(found, key=lambda p: p.accuracy)
    columns: dict[int, list[Point]] = {}
    for point in ordered:
        near = next((x for x in columns if 0.8 < columns[x][0].megabytes / point.megabytes < 1.25), len(columns))
        columns.setdefault(near, []).append(point)
    for column in columns.values():
        right = max(point.megabytes for point in column)
        heights = apart([100 * point.accuracy for point in column], GAP * (high - low))
        for point, height in zip(column, heights, strict=True):
            axes.annotate(point.method, (point.megabytes, 100 * point.accuracy), (right * 1.18, height), fontsize=7,
                          va="center", color=ACCENT if point.method in best else INK, path_effects=[HALO],
                          arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.5})  # fmt: skip


def draw(rows: Sequence[Record], path: Path = PATH) -> Path | None:
    """Write the figure: a panel per data set and partition with two points or more; None where there is none."""
    board = load_board()
    references = board["references"]
    panels = [(d, p) for d in board["data"] for p in board["partitions"] if len(points(rows, d, p, references)) > 1]
    if not panels:
        return None
    columns = min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(6.4 * columns, 5.2 * lines), dpi=120, layout="constrained")
    for axes in (grid := figure.subplots(lines, columns, squeeze=False)).flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (data, partition) in zip(grid.flat, panels, strict=False):
        _panel(axes, rows, data, partition, references)
    grid.flat[0].legend(frameon=False, fontsize=8, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
