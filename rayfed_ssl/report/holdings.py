"""A figure of how many images of each class every client holds, from ``partition.parquet``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rayfed_ssl.report.folder import RunFolder
from rayfed_ssl.report.formats import how_many, short
from rayfed_ssl.report.style import MAP, SERIES, Drawing, Studio

ACROSS = 44  # the most characters side by side below the axes
BUBBLES = 40  # the most clients, and classes, that get a circle each


def counts(partition: pa.Table) -> tuple[list[int], list[int], NDArray[np.int64]]:
    """(clients, classes, (N, C) training images by client and class). Unlabelled images are class -1."""
    rows = partition.filter(pc.and_(pc.equal(partition["split"], "train"), pc.is_valid(partition["client"])))
    labels = pc.fill_null(rows["label"], -1).to_numpy()
    owners = rows["client"].to_numpy()
    clients, classes = np.unique(owners), np.unique(labels)
    images = np.zeros((len(clients), len(classes)), np.int64)
    np.add.at(images, (np.searchsorted(clients, owners), np.searchsorted(classes, labels)), 1)
    return clients.tolist(), classes.tolist(), images


def figures(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """One figure: a circle for each count if there are few clients and classes, else a map of shares."""
    if run.partition is None:
        return
    clients, classes, held = counts(run.partition)
    if not held.size:
        return
    sizes = held.sum(1)
    spread = f"{sizes.min():,} to {sizes.max():,} images each" if sizes.min() < sizes.max() else f"{sizes[0]:,} each"
    alt = (
        f"Training images by client and class: {how_many(len(clients), 'client')}, "
        f"{len(classes):,} {'class' if len(classes) == 1 else 'classes'}, {int(sizes.sum()):,} images, {spread}."
    )
    few = max(held.shape) <= BUBBLES
    called = [short(run.client_names.get(c, str(c))) for c in clients]
    titles = ["none" if c < 0 else short(run.class_names.get(c, str(c))) for c in classes]
    height = min(1.0 + 0.2 * len(clients), 5.0) if few else min(1.4 + 0.12 * len(classes), 4.0)
    yield studio.draw(
        "who_holds_what", "Who holds what",
        lambda f: _bubbles(f, called, titles, held) if few else _map(f, titles, held),
        alt=alt, height=max(height, 1.7),
        caption=f"{how_many(int(sizes.sum()), 'training image')}, {spread}."
        + (" The area is the count; right: all of a client's." if few else " Shares of each client's images."),
    )  # fmt: skip


def _bubbles(figure: Figure, clients: list[str], classes: list[str], held: NDArray[np.int64]) -> None:
    """A circle for each client and class; its area is the number of images."""
    axes = figure.add_subplot()
    rows, columns = np.nonzero(held)
    largest = 150.0 * min(1.0, 10 / len(classes), 12 / len(clients)) ** 1.5
    area = largest * held[rows, columns] / held.max()
    axes.scatter(columns, rows, s=area, color=SERIES[0], linewidth=0, alpha=0.85)
    for row, total in enumerate(held.sum(1)):
        axes.annotate(f"{total:,}", (len(classes) - 0.4, row), va="center", fontsize=6.5, annotation_clip=False)
    step = -(-len(clients) // 20)
    axes.set_yticks(range(0, len(clients), step), clients[::step])
    step = -(-len(classes) // 12)
    axes.set_xticks(range(0, len(classes), step), classes[::step])
    slanted(axes, classes[::step])
    axes.set(xlabel="class", ylabel="client", xlim=(-0.7, len(classes) - 0.3), ylim=(len(clients) - 0.4, -0.6))
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.grid(visible=True)
    axes.tick_params(length=0)


def slanted(axes: Axes, names: list[str]) -> None:
    """Write names below the axes vertically if they do not fit side by side."""
    if sum(map(len, names)) + 2 * len(names) > ACROSS:
        axes.tick_params(axis="x", labelrotation=90)


def _map(figure: Figure, classes: list[str], held: NDArray[np.int64]) -> None:
    """Shares of classes: one column per client, sorted by the most frequent class, under the number of its images."""
    order = np.lexsort((-held.max(1), held.argmax(1)))
    totals = held.sum(1)[order]
    shares = 100 * held[order] / np.maximum(totals, 1)[:, None]
    sizes, axes = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
    sizes.fill_between(np.arange(len(held)), totals, step="mid", color=SERIES[0], linewidth=0)
    sizes.set(ylabel="images", ylim=(0, None))
    drawn = axes.imshow(shares.T, aspect="auto", cmap=MAP, vmin=0, interpolation="nearest")
    axes.set(xlabel="clients by most frequent class", ylabel="class")
    step = -(-len(classes) // 20)
    axes.set_yticks(range(0, len(classes), step), classes[::step])
    figure.colorbar(drawn, ax=[sizes, axes], label="% of a client's images", shrink=0.8).outline.set_visible(False)
