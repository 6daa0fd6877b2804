"""Figures of accuracy over rounds, bytes and virtual hours, and by client; figures of areas and indices over rounds.

A dashed line is the untrained encoder; a dotted line is the raw pixels, measured by the same protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_ssl.base.text import UNITS
from rayfed_ssl.evaluation import OWN
from rayfed_ssl.records.comparison import ordered
from rayfed_ssl.records.summary import PIXELS
from rayfed_ssl.records.tables import last_until
from rayfed_ssl.report.accuracy_table import images_each
from rayfed_ssl.report.folder import RunFolder
from rayfed_ssl.report.formats import how_many, short
from rayfed_ssl.report.measures import axis, is_share, protocol_name, scale, shown, subject
from rayfed_ssl.report.style import (
    GRID,
    INK,
    MUTED,
    SERIES,
    Drawing,
    Studio,
    legend_below,
    rules,
    series,
    whole_numbers,
)
from rayfed_ssl.report.verdict import began_with, clients_images

LINES = 5  # the most protocols in one figure
LONG = 14  # if a name has more letters, each name gets a line of its own in the legend
NAMED = 40  # the most clients whose rows are labelled with their names
HOUR_S = 3600.0
Place = Callable[[int], float | None]  # round -> its place on the x axis; None if it has none
Rounds = dict[int, dict[int | None, float]]  # round -> client (None: global) -> value


def figures(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """The figures that the run's records allow."""
    measured = [name for name in ordered(list(run.scores)) if not name.startswith(PIXELS)]
    if shares := [name for name in measured if is_share(name)]:
        yield from _shares(run, studio, shares)
    if others := [name for name in measured if not is_share(name)]:
        first = others[:LINES]
        yield studio.draw(
            "areas_rounds", "Areas and indices over rounds", lambda f: paint_curves(f, run, first, float, "round"),
            alt=f"Over rounds. {_words(run, first)}", caption=curves_caption(run, others), height=2.5,
        )  # fmt: skip


def _shares(run: RunFolder, studio: Studio, measured: list[str]) -> Iterator[Drawing]:
    """Figures of accuracies: over rounds, over bytes if any were sent, and over virtual hours if the run has them."""
    names = measured[:LINES]
    words = _words(run, names)
    yield studio.draw(
        "accuracy_rounds", "Accuracy over rounds", lambda f: paint_curves(f, run, names, float, "round"),
        alt=f"Accuracy over rounds. {words}", caption=curves_caption(run, measured), height=2.5,
    )  # fmt: skip
    if run.sent and len(run.sent) > 1:
        yield studio.draw(
            "accuracy_bytes", "Accuracy over bytes", lambda f: paint_curves(f, run, names, *_sent(run)),
            alt=f"Accuracy over the bytes that all clients sent and received. {words}", height=2.5,
            caption="Bytes of all clients since the start, as a deployment would have sent them.",
        )  # fmt: skip
    if run.virtual_s:
        passed = run.virtual_s
        yield studio.draw(
            "accuracy_hours", "Accuracy over virtual hours",
            lambda f: paint_curves(
                f, run, names, lambda t: passed[t] / HOUR_S if t in passed else None, "virtual hours"
            ),
            alt=f"Accuracy over hours of the clients' clock. {words}", height=2.5,
            caption="Hours that the rounds would have taken on the clients' devices.",
        )  # fmt: skip


def per_client(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """Each client's accuracy in the last evaluated round, and before training."""
    for name in ordered(list(run.scores)):
        rounds = run.scores[name]
        trained = [t for t in rounds if t and None not in rounds[t]]
        if name.startswith(PIXELS) or not trained:
            continue
        last = {client: value for client, value in rounds[max(trained)].items() if client is not None}
        before = {client: value for client, value in rounds.get(0, {}).items() if client is not None}
        images = clients_images(run.summary, name)
        low, high = min(last, key=lambda c: last[c]), max(last, key=lambda c: last[c])
        words = {c: shown(name, last[c]) + (f" of {how_many(images[c], 'image')}" if c in images else "") for c in last}
        caption = f"Filled: round {max(trained)}. Hollow: before training."
        if images:
            caption += f" Measured {images_each(images)}{'; right: how many' if len(last) <= NAMED else ''}."
        yield studio.draw(
            f"clients_{name}", f"Clients: {protocol_name(name)}",
            partial(_dumbbells, measure=name, last=last, before=before, names=run.client_names, images=images),
            alt=(
                f"{subject(name)} of {len(last)} clients in round {max(trained)}: mean "
                f"{shown(name, fmean(last.values()))}, lowest {run.client(low)} with {words[low]}, highest "
                f"{run.client(high)} with {words[high]}."
            ),
            caption=caption,
            height=min(0.9 + 0.17 * min(len(last), NAMED), 5.0),
        )  # fmt: skip


def _sent(run: RunFolder) -> tuple[Place, str]:
    """Round -> all bytes until its end, in the unit that suits the last round, and the label of that axis."""
    total = max(run.sent.values())
    unit, name = next(((u, n) for u, n in UNITS if total >= u), (1.0, "bytes"))

    def until(t: int) -> float | None:
        return (last_until(run.sent, t) or 0) / unit

    return until, f"{name} sent, up and down"


def _words(run: RunFolder, names: list[str]) -> str:
    """The figure's lines in words: each measure before training and in the last round."""
    sentences = []
    for name in names:
        means = _means(run.scores[name])
        first, last = means.get(0), means[max(means)]
        began = "" if first is None else f"from {shown(name, first)} with {began_with(run.summary)} "
        sentences.append(f"{protocol_name(name)}: {began}to {shown(name, last)} in round {max(means)}.")
    return " ".join(sentences)


def curves_caption(run: RunFolder, measured: list[str]) -> str:
    """What the lines are. Only the first ``LINES`` of the measures are drawn."""
    names, text = measured[:LINES], f"Dashed: {began_with(run.summary)}."
    if any(PIXELS + name in run.scores for name in names):
        text += " Dotted: raw pixels."
    if any(None not in next(iter(run.scores[name].values())) for name in names):
        text += " Mean of clients within their extremes."
    if len(measured) > LINES:
        text += f" The first {LINES} of {len(measured)} measures; the table has all."
    return text


def _means(rounds: Rounds) -> dict[int, float]:
    """Round -> the mean over clients."""
    return {t: fmean(values.values()) for t, values in sorted(rounds.items())}


def paint_curves(figure: Figure, run: RunFolder, names: list[str], place: Place, label: str) -> None:
    """A curve for each of ``names``, which are all shares, or none of them is."""
    axes = figure.add_subplot()
    for number, name in enumerate(names):
        _curve(axes, name, run.scores[name], place, number)
        if 0 in (pixels := _means(run.scores.get(PIXELS + name, {}))):
            axes.axhline(scale(name) * pixels[0], color=series(number)["color"], linestyle=":", linewidth=1.2)
    axes.set(xlabel=label, ylabel="accuracy (%)" if is_share(names[0]) else "area or index")
    if label == "round":
        whole_numbers(axes)
    rules(axes)
    legend_below(axes, 3 if max(len(protocol_name(name)) for name in names) <= LONG else 1)


def _curve(axes: Axes, name: str, rounds: Rounds, place: Place, number: int) -> None:
    """One measure over rounds: the mean, with the range of the clients' values, and a dashed line before training."""
    means, style, by = _means(rounds), series(number), scale(name)
    points = [(at, by * means[t], t) for t in means if (at := place(t)) is not None]
    if 0 in means:
        axes.axhline(by * means[0], color=style["color"], linestyle=(0, (4, 2)), linewidth=0.9, alpha=0.8)
    if not points:
        return
    x = [point[0] for point in points]
    marker = style["marker"] if len(points) <= 25 else None
    # Wide, pale and below the others: what clients reach on their own images may be what the model reaches on all.
    below = {"linewidth": 4, "alpha": 0.5, "zorder": 1.9, "markersize": 7} if name.startswith(OWN) else {}
    shown = {"color": style["color"], "marker": marker, "label": protocol_name(name), **below}
    axes.plot(x, [point[1] for point in points], **shown)
    if any(len(rounds[t]) > 1 for _, _, t in points):
        lowest, highest = ([by * extreme(rounds[t].values()) for _, _, t in points] for extreme in (min, max))
        axes.fill_between(x, lowest, highest, color=style["color"], alpha=0.15, linewidth=0)


def _dumbbells(
    figure: Figure,
    measure: str,
    last: dict[int, float],
    before: dict[int, float],
    names: dict[int, str],
    images: dict[int, int],
) -> None:
    """A row for each client: hollow before training, filled after."""
    axes, by = figure.add_subplot(), scale(measure)
    named = len(last) <= NAMED
    clients = sorted(last) if named else sorted(last, key=lambda c: last[c])
    for row, client in enumerate(clients):
        if client in before:
            axes.plot([by * before[client], by * last[client]], [row, row], color=GRID, linewidth=1.6, zorder=1)
            axes.plot(by * before[client], row, "o", markersize=3.6, markerfacecolor="none", markeredgecolor=MUTED)
        axes.plot(by * last[client], row, "o", markersize=4.2 if named else 2, color=SERIES[0], zorder=3)
        if named and client in images:
            place = axes.get_yaxis_transform()  # x of the axes, y of the data
            axes.text(1.02, row, f"{images[client]:,}", va="center", fontsize=6.5, transform=place)
    axes.axvline(by * fmean(last.values()), color=INK, linewidth=0.8, linestyle=":")
    axes.set(xlabel=f"{axis(measure)}; dotted: mean", ylabel="client" if named else "clients by accuracy")
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.set_yticks(
        range(len(clients)) if named else [], [short(names.get(c, str(c))) for c in clients] if named else []
    )
