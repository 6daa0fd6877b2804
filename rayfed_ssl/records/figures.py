"""Figures of a run: how labels are spread over clients, and accuracy over rounds.

Shapes: N clients, C classes. This module loads matplotlib, so its users import it where they draw. Figures are
plain ``Figure`` objects without pyplot, so they need no display and may be drawn in any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.text import Text
from PIL import Image

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.text import printable

BARS = 20  # the most clients, and classes, that stacked bars can show
NAMED = 200  # the most clients whose column can be found by number
COLOURS = 10  # that are told apart at a glance; twice as many with lighter ones
GREY = "#555555"


def label_histogram(
    counts: np.ndarray, class_names: Sequence[str], client_names: Sequence[str] | None = None
) -> Figure:
    """How many images of each class each client holds.

    Stacked bars for up to 20 clients and classes; beyond, a map of each client's label distribution under its shard
    size. More than 200 clients stand in the order of their most frequent class, since no one can be picked out anyway.

    Args:
        counts: (N, C) images by client and class.
        class_names: C names.
        client_names: N names, where clients have names; shown where each client has a place of its own.
    """
    counts = np.asarray(counts)
    if len(class_names) != counts.shape[1]:
        raise ValueError(f"{len(class_names)} class names for counts of shape {counts.shape}")
    draw = _stacked if max(counts.shape) <= BARS else _mapped
    return draw(counts, class_names, client_names)


def accuracy_curve(metrics: pa.Table, hours: Mapping[int, float] | None = None) -> Figure:
    """Accuracy over rounds, one line per protocol; if clients are evaluated, their mean, within a band of their
    extremes.

    Args:
        metrics: the table of ``read_metrics``; rows whose tag is ``eval/<protocol>`` are drawn.
        hours: round -> virtual hours, to draw accuracy over those instead.
    """
    rows = metrics.filter(pc.starts_with(metrics["tag"].cast(pa.string()), "eval/"))
    tags = sorted(tag for tag in set(rows["tag"].to_pylist()) if tag.count("/") == 1 and "pixels" not in tag)
    many = len(tags) > COLOURS
    figure = _figure(9.0, max(4.0, 0.4 + 0.2 * len(tags))) if many else _figure(7.0, 4.0)
    axes = figure.add_subplot()
    if many:
        axes.set_prop_cycle(cycler(linestyle=("-", "--", ":", "-.")) * cycler(color=_colours(2 * COLOURS)))
    for tag in tags:
        of_tag = rows.filter(pc.equal(rows["tag"].cast(pa.string()), tag))
        _accuracy_line(axes, tag.removeprefix("eval/"), of_tag, hours)
    axes.set(xlabel="round" if hours is None else "virtual hours", ylabel="accuracy (%)")
    if hours is None:
        _whole_numbers(axes)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    if tags:
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8 if many else None)
    else:
        axes.text(0.5, 0.5, "nothing evaluated yet", ha="center", va="center", color=GREY, transform=axes.transAxes)
    return figure


def accuracy_against_trace(metrics: pa.Table, names: Sequence[str] | None = None) -> Figure | None:
    """Accuracy against the trace of the features' correlations R (FedFoA), round by round: a panel per protocol, a line
    per client, or one of the global encoder against the clients' mean trace. None where no trace was recorded.

    Args:
        metrics: the table of ``read_metrics``; rows ``client/trace`` and ``eval/<protocol>`` are drawn.
        names: of the clients, where they have names.
    """
    traces = _by_round(metrics, "client/trace")
    tags = [tag for tag in sorted(set(metrics["tag"].to_pylist())) if tag.startswith("eval/") and "pixels" not in tag]
    if not traces or not tags:
        return None
    figure = _figure(1.0 + 3.6 * len(tags), 3.6)
    for axes, tag in zip(figure.subplots(1, len(tags), squeeze=False)[0], tags, strict=True):
        lines: dict[int | None, list[tuple[float, float]]] = {}
        for round, values in sorted(_by_round(metrics, tag).items()):
            known = traces.get(round, {})
            for client, value in values.items():
                if known and (client is None or client in known):
                    trace = float(np.mean(list(known.values()))) if client is None else known[client]
                    lines.setdefault(client, []).append((trace, 100 * value))
        in_order = sorted(lines.items(), key=lambda line: line[0] or 0)
        for (client, points), colour in zip(in_order, _colours(len(lines)), strict=True):
            name = "global encoder" if client is None else f"client {client}" if names is None else short(names[client])
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, linewidth=1, color=colour, label=name)
        axes.set(xlabel="trace of R", ylabel=f"{tag.removeprefix('eval/')} accuracy (%)")
        _bare(axes)
        if 0 < len(lines) <= BARS:
            axes.legend(frameon=False, fontsize=7)
    return figure


def client_matrix(values: np.ndarray, rows: str, columns: str, names: Sequence[str] | None = None) -> Figure:
    """A matrix over pairs of clients as a map, with its numbers if there are at most 12 clients.

    Args:
        values: (N, N); cells that are not finite stay blank.
        rows: what a row is, e.g. "target"; likewise ``columns``.
        names: of the clients, where they have names.
    """
    values = np.asarray(values, np.float64)
    side = 2.2 + min(0.55 * len(values), 6.0)
    figure = _figure(side + 1.0, side)
    axes = figure.add_subplot()
    drawn = axes.imshow(values, cmap="Blues", interpolation="nearest")
    if len(values) <= 12:
        middle = np.nanmean([drawn.norm.vmin, drawn.norm.vmax])
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "white" if value > middle else "black"
                axes.text(column, row, f"{value:.3g}", ha="center", va="center", color=colour, fontsize=8)
    step = -(-len(values) // 30)
    places = range(0, len(values), step)
    if names is None:
        axes.set_xticks(places)
        axes.set_yticks(places)
    else:
        shown = [short(names[client]) for client in places]
        axes.set_xticks(places, shown, rotation=90, fontsize=7)
        axes.set_yticks(places, shown, fontsize=7)
    axes.set(xlabel=f"{columns} client", ylabel=f"{rows} client")
    figure.colorbar(drawn, ax=axes)
    return figure


def short(name: str) -> str:
    """A name as a label: at most 24 characters."""
    return printable(name, 24)


def pixels(figure: Figure) -> np.ndarray:
    """The drawn figure as (H, W, 3) uint8. Text is never parsed as mathematics, since names may contain dollar
    signs.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def save_figure(folder: Path, name: str, figure: Figure) -> np.ndarray:
    """Write ``figures/<name>.png`` of the run in ``folder``; returns the figure's pixels, (H, W, 3) uint8.

    It is drawn once, whereas ``Figure.savefig`` lays out and draws twice.
    """
    drawn = pixels(figure)
    dots = (figure.dpi, figure.dpi)
    replace_file(
        folder / "figures" / f"{name}.png",
        lambda temporary: Image.fromarray(drawn).save(temporary, format="png", dpi=dots),
    )
    return drawn


def _by_round(metrics: pa.Table, tag: str) -> dict[int, dict[int | None, float]]:
    """The values of a tag: round -> client (None: global) -> value."""
    found: dict[int, dict[int | None, float]] = {}
    for row in metrics.filter(pc.equal(metrics["tag"].cast(pa.string()), tag)).to_pylist():
        found.setdefault(row["round"], {})[row["client"]] = row["value"]
    return found


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _bare(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["tab10" if count <= 10 else "tab20"](i) for i in range(count)]


def _stacked(counts: np.ndarray, class_names: Sequence[str], client_names: Sequence[str] | None) -> Figure:
    clients, classes = counts.shape
    figure = _figure(7.5, max(1.4 + 0.32 * clients, 1.2 + 0.22 * classes))
    axes = figure.add_subplot()
    left, bars, height = np.zeros(clients), [], 0.78 * min(1.0, (clients + 1) / 4)
    for column, colour in zip(counts.T, _colours(classes), strict=True):
        bars.append(axes.barh(np.arange(clients), column, left=left, height=height, color=colour, linewidth=0))
        left = left + column
    for client, total in enumerate(left):
        axes.annotate(
            f"{int(total):,}", (total, client), (4, 0), textcoords="offset points", va="center", color=GREY, fontsize=8
        )
    axes.set(xlabel="images", ylabel="client", yticks=np.arange(clients), ylim=(clients - 0.4, -0.6))
    if client_names is not None:
        axes.set_yticks(np.arange(clients), [short(name) for name in client_names], fontsize=8)
    axes.set_xlim(0, max(float(left.max()), 1.0) * 1.08)
    axes.set_title("Labels by client", loc="left", fontsize=11)
    _bare(axes)
    shown = [short(name) for name in class_names]  # given as they are: the legend leaves out a label that begins with _
    axes.legend(bars, shown, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    return figure


def _mapped(counts: np.ndarray, class_names: Sequence[str], client_names: Sequence[str] | None) -> Figure:
    clients, classes = counts.shape
    if clients > NAMED:
        top = counts.argmax(1)
        counts = counts[np.lexsort((-counts.max(1) / np.maximum(counts.sum(1), 1), top))]
    totals = counts.sum(1)
    shares = 100 * counts / np.maximum(totals, 1)[:, None]  # (N, C), per cent of the client's shard
    height = 1.9 + min(max(0.22 * classes, 1.2), 7.0)
    figure = _figure(9.0, height)
    grid = figure.add_gridspec(2, 2, height_ratios=[1.0, height - 1.6], width_ratios=[1, 0.02])
    sizes, share = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    sizes.fill_between(np.arange(clients + 1) - 0.5, np.append(totals, totals[-1]), step="post", color="#7a8fa6", lw=0)
    sizes.set(ylabel="images", ylim=(0, max(float(totals.max()), 1.0) * 1.08), xlim=(-0.5, clients - 0.5))
    sizes.tick_params(labelbottom=False)
    sizes.set_title(f"Labels by client: {clients:,} clients, {int(totals.sum()):,} images", loc="left", fontsize=11)
    _bare(sizes)
    drawn = share.imshow(shares.T, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    share.set(xlabel="client" if clients <= NAMED else "clients by most frequent class", ylabel="class")
    step = -(-classes // 30)
    shown = [short(name) for name in class_names[::step]]
    share.set_yticks(range(0, classes, step), shown, fontsize=8 if classes <= 30 else 7)
    if client_names is not None and clients <= NAMED // 4:
        share.set_xticks(range(clients), [short(name) for name in client_names], rotation=90, fontsize=6)
    else:
        _whole_numbers(share)
    figure.colorbar(drawn, cax=figure.add_subplot(grid[1, 1]), label="% of the client's images")
    return figure


def _accuracy_line(axes: Axes, name: str, rows: pa.Table, hours: Mapping[int, float] | None) -> None:
    of_all = rows.filter(pc.is_null(rows["client"]))
    shown = of_all if of_all.num_rows else rows
    by_round: dict[int, list[float]] = {}
    for round, value in zip(shown["round"].to_pylist(), shown["value"].to_pylist(), strict=True):
        by_round.setdefault(round, []).append(100 * value)
    rounds = sorted(by_round)
    means = [float(np.mean(by_round[round])) for round in rounds]
    suffix = "" if of_all.num_rows else " (mean of clients)"
    places: list[float] = list(rounds) if hours is None else [hours[round] for round in rounds]
    (line,) = axes.plot(places, means, marker="o", markersize=3.5, linewidth=1.6, label=name + suffix)
    if not of_all.num_rows:
        low, high = ([extreme(by_round[round]) for round in rounds] for extreme in (min, max))
        axes.fill_between(places, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    _bare(axes)
