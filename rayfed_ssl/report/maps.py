"""A map of representations before and after training, similarities of images by class, and nearest neighbours."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from numpy.typing import NDArray
from PIL import Image

from rayfed_ssl.data.images import are_bands
from rayfed_ssl.report.representations import Look, mapped, neighbours, plane, queries, similarities
from rayfed_ssl.report.style import MAP, MARKERS, MUTED, SERIES, Drawing, Studio

PER_CLASS = 12  # images of each class in the map of similarities
CLASSES = 16  # the most classes with a colour and marker of their own


@dataclass(frozen=True)
class Neighbour:
    """An image of a strip: a PNG as a data URI, its class, its cosine with the query, and whether the two classes are
    the same (None: unlabelled).
    """

    png: str
    label: str
    similarity: float
    same: bool | None


@dataclass(frozen=True)
class Strip:
    """A query and its nearest neighbours."""

    png: str
    label: str
    neighbours: tuple[Neighbour, ...]


def whose(look: Look) -> str:
    """What the encoder is called."""
    return "the global encoder" if look.encoder == "global" else f"the encoder {look.encoder}"


def figures(seen: Look, studio: Studio) -> Iterator[Drawing]:
    """The maps of the untrained and the trained encoder, and the similarities by class."""
    shown = mapped(len(seen.labels), seen.seed)
    given = {"untrained": seen.before, "trained": seen.features}
    maps = {name: plane(x[shown], seen.seed) for name, x in given.items() if x is not None}
    kind = next(iter(maps.values()))[1]
    count = len(shown)
    for name, (places, _) in maps.items():
        yield studio.draw(
            f"map_{name}", f"Map, {name}", lambda f, p=places: _map(f, p, seen, shown),  # type: ignore[misc]
            alt=f"{kind} of the features of {count} {seen.split} images by {whose(seen)}, {name}, coloured by class.",
            caption=f"{kind} of {count} {seen.split} images, {whose(seen) if name == 'trained' else 'before training'}."
            + (" Colours and names are classes." if (seen.labels >= 0).any() else ""),
            height=2.7,
        )  # fmt: skip
    if (rows := _by_class(seen.labels)) is not None:
        yield studio.draw(
            "similarities", "Similarities by class", lambda f: _similarities(f, seen, rows),
            alt=f"Cosines between the features of {len(rows)} {seen.split} images sorted by class: bright blocks on "
            "the diagonal are classes that keep together.",
            caption="Cosines of features, images sorted by class; bright blocks are classes that keep together.",
            height=2.7,
        )  # fmt: skip


def _map(figure: Figure, places: NDArray[np.float64], seen: Look, shown: NDArray[np.int64]) -> None:
    """Images as points in their classes' colours, with each class's name at the median of its points."""
    axes, labels = figure.add_subplot(), seen.labels[shown]
    classes, names = [int(c) for c in np.unique(labels) if c >= 0], []
    if not 0 < len(classes) <= CLASSES:
        axes.scatter(places[:, 0], places[:, 1], s=5, color=SERIES[0], linewidth=0, alpha=0.7)
    for number, label in enumerate(classes if len(classes) <= CLASSES else ()):
        at = places[labels == label]
        name = seen.class_names[label] if label < len(seen.class_names) else str(label)
        marker = MARKERS[(number + number // len(SERIES)) % len(MARKERS)]
        axes.scatter(
            at[:, 0],
            at[:, 1],
            s=max(9, 900 / len(places)),
            color=SERIES[number % len(SERIES)],
            marker=marker,
            linewidth=0,
            alpha=0.55,
        )
        x, y = np.median(at, axis=0)
        written = axes.annotate(
            str(name)[:12], (float(x), float(y)), (0, 0), textcoords="offset points",
            ha="center", va="center", fontsize=9, fontweight="bold",
        )  # fmt: skip
        names.append(written)
    _frame(axes)
    apart(figure, names)


def apart(figure: Figure, names: Sequence[Annotation], passes: int = 500) -> None:
    """Move names that overlap up and down, each as little as possible, until none do or after ``passes`` passes."""
    figure.draw_without_rendering()
    boxes = [name.get_window_extent() for name in names]
    middles = np.array([(box.y0 + box.y1) / 2 for box in boxes])
    before = middles.copy()
    for _ in range(passes):
        moved = False
        for first, second in combinations(range(len(names)), 2):
            room = (boxes[first].height + boxes[second].height) / 2 - abs(middles[first] - middles[second])
            if room > 0 and boxes[first].x0 < boxes[second].x1 and boxes[second].x0 < boxes[first].x1:
                up = 1 if middles[first] >= middles[second] else -1
                middles[first] += up * (room + 1) / 2
                middles[second] -= up * (room + 1) / 2
                moved = True
        if not moved:
            break
    for name, shift in zip(names, (middles - before) * 72 / figure.dpi, strict=True):
        name.set_position((0, float(shift)))


def _frame(axes: Axes) -> None:
    """Remove the numbers of the axes: coordinates of such a map have no meaning."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color(MUTED)
        side.set_linewidth(0.4)


def _by_class(labels: NDArray[np.int64]) -> list[int] | None:
    """Rows sorted by class, at most 12 of each class; None if fewer than two classes are known."""
    classes = [c for c in np.unique(labels) if c >= 0][:20]
    if len(classes) < 2:
        return None
    return [int(row) for label in classes for row in np.flatnonzero(labels == label)[:PER_CLASS]]


def _similarities(figure: Figure, seen: Look, rows: list[int]) -> None:
    """The cosines between images as a matrix, with the classes' names beside it."""
    axes = figure.add_subplot()
    values, labels = similarities(seen.features[rows]), seen.labels[rows]
    drawn = axes.imshow(values, cmap=MAP, interpolation="nearest", vmax=1)
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    middles = (starts + np.r_[starts[1:], len(labels)] - 1) / 2
    names = [seen.class_name(rows[start])[:10] for start in starts]
    axes.set_yticks(middles, names)
    axes.set_xticks([])
    axes.tick_params(length=0)
    figure.colorbar(drawn, ax=axes, label="cosine", shrink=0.9).outline.set_visible(False)


# -- nearest neighbours ------------------------------------------------------------------------------------------------


def strips(seen: Look) -> list[Strip]:
    """Up to 6 queries, of as many classes as possible, each with its 5 nearest neighbours among the other images."""
    result = []
    for row in queries(seen.labels):
        near = tuple(_neighbour(seen, row, i, cosine) for i, cosine in neighbours(seen.features, row))
        result.append(Strip(png(seen.pixels[row]), seen.class_name(row), near))
    return result


def _neighbour(seen: Look, query: int, row: int, cosine: float) -> Neighbour:
    """An image as the neighbour of a query."""
    same = bool(seen.labels[row] == seen.labels[query]) if seen.labels[query] >= 0 else None
    return Neighbour(png(seen.pixels[row]), seen.class_name(row), cosine, same)


def agreement(seen: Look) -> float | None:
    """The share of the 5 nearest labelled neighbours that have the image's class, over all labelled images of the
    sample; None if fewer than two have a label.
    """
    known = seen.labels >= 0
    labels = seen.labels[known]
    if len(labels) < 2:
        return None
    cosines = similarities(seen.features[known])
    np.fill_diagonal(cosines, -np.inf)
    near = np.argsort(-cosines, axis=1, kind="stable")[:, : min(5, len(labels) - 1)]
    return float((labels[near] == labels[:, None]).mean())


def shown_bands(channels: int) -> str:
    """A sentence on which bands the pictures show; "" for grey and colour images."""
    if not are_bands(channels):
        return ""
    which = "the first of 2 bands in grey" if channels == 2 else f"the first three of {channels} bands as RGB"
    return f" Pictures show {which}."


def thumbnail(pixels: NDArray[np.uint8], side: int = 64) -> Image.Image:
    """An image (S, S, C) uint8, at most ``side`` pixels high. Of bands, it shows the first three as RGB; of two bands,
    the first.
    """
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] < 3 else np.ascontiguousarray(pixels[..., :3]))
    return image if image.height <= side else image.resize((side, side), Image.Resampling.LANCZOS)


def png(pixels: NDArray[np.uint8]) -> str:
    """An image (S, S, C) uint8 as a data URI."""
    stream = io.BytesIO()
    thumbnail(pixels).save(stream, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
