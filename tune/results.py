"""The results of a sweep: a table (``results.parquet``), the winner (``best.yaml``), the choice and its measure
(``choice.json``), and a figure of parallel coordinates.

A configuration's score is the mean (or the worst, the best) of its repeats; :mod:`rayfed_ssl.records.sweep_choice`
says which of them wins.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.table import Table

from rayfed_ssl.base.files import finite, replace_file, write_json
from rayfed_ssl.base.text import four_digits
from rayfed_ssl.records.one_run import held_out_images
from rayfed_ssl.records.settings_table import written
from rayfed_ssl.records.sweep_choice import (
    CHOICE,
    START,
    UNTRAINED,
    Choice,
    before_training,
    choose,
    labels_of,
    score,
    starts_of,
)
from rayfed_ssl.report.sweep_verdict import remarks, verdict
from rayfed_ssl.settings import files as configfile
from tune.book import OVER, Book, scheduled
from tune.config import Sweep
from tune.search import configuration_score

Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The results of a sweep's trials."""

    sweep: Sweep
    folder: Path
    rows: list[Row]  # one per trial
    choice: Choice  # the configurations with a score in order, and which of them wins

    @property
    def counts(self) -> dict[str, int]:
        """How many trials are complete, stopped (by the scheduler), diverged, failed, waiting."""
        return Counter(row["status"] for row in self.rows)

    @property
    def left(self) -> int:
        """How many trials are neither complete, nor stopped by the scheduler, nor diverged."""
        over = sum(self.counts.get(status, 0) for status in OVER)
        return self.sweep.count * self.sweep.settings.repeat - over

    def values(self, configuration: int) -> list[float]:
        """The metric of each repeat that has a value."""
        values = [row[self.sweep.settings.metric] for row in self.of(configuration)]
        return [value for value in values if value is not None]

    def of(self, configuration: int) -> list[Row]:
        """The rows of one configuration, one for each repeat."""
        return self._by_configuration[configuration]

    @cached_property
    def remarks(self) -> list[str]:
        """What a reader has to know of the choice, a sentence each."""
        own = [] if self.choice.winner is None else self.of(self.choice.winner)
        counts = [held_out_images(self.folder / row["folder"]) for row in own]
        return remarks(self.choice, self.sweep.settings.metric, [count for count in counts if count is not None])

    @cached_property
    def _by_configuration(self) -> dict[int, list[Row]]:
        by_configuration: dict[int, list[Row]] = {}
        for row in self.rows:
            by_configuration.setdefault(row["configuration"], []).append(row)
        return by_configuration


def collect(sweep: Sweep, book: Book) -> Results:
    """Gather all trials and write the files. Call it when no trial is running."""
    book.note_ends()
    book.save()
    rows = rows_of(sweep, book)
    results = Results(sweep, book.folder, rows, choose(rows, sweep.settings.metric, sweep.settings.mode))
    replace_file(book.folder / "results.parquet", lambda path: pq.write_table(table(rows), path))
    for row in rows:
        tell_tensorboard(sweep, book.folder / row["folder"], row)
    if results.choice.ranking:
        draw_parallel(results, book.folder)
        write_json(book.folder / CHOICE, finite(choice_document(results)))
    if (winner := results.choice.winner) is not None:
        entry = book.of(winner)[0]
        config = sweep.config_of(scheduled(book.folder / entry.name, entry.point), name=f"{book.folder.name}-best")
        configfile.dump(config, book.folder / "best.yaml")
    return results


def choice_document(results: Results) -> dict[str, Any]:
    """The content of ``choice.json``: the configuration that was chosen (null: none has run to its end), its keys and
    folders, by which measure and whose labels, the others that are as good, and notes for a reader.
    """
    settings, choice = results.sweep.settings, results.choice
    own = [] if choice.winner is None else results.of(choice.winner)
    return {
        "configuration": choice.winner,
        "folders": [row["folder"] for row in own],
        "keys": {key: own[0].get(key) for key in settings.keys} if own else {},
        "metric": settings.metric,
        "mode": settings.mode,
        "score": own[0]["score"] if own else None,
        "of_repeats": settings.score,
        "repeats": settings.repeat,
        "labels": labels_of(settings.metric),
        "finished": len(choice.finished),
        "level": list(choice.level),
        "not_told_apart": list(choice.apart),
        "better_by_the_mean": list(choice.ahead),
        "remarks": results.remarks,
    }


def tell_tensorboard(sweep: Sweep, folder: Path, row: Row) -> None:
    """Write what HParams shows for a trial that has begun; accuracies of clients are averaged."""
    if not (folder / "config.yaml").is_file():
        return
    from rayfed_ssl.records import hparams  # TensorBoard's writers, loaded only to write

    varied = {key: row[key] for key in sweep.settings.keys if key in row}
    if sweep.settings.repeat > 1:  # repeats differ in nothing else
        varied["repeat"] = row["repeat"]
    metric = sweep.settings.metric
    hparams.write(folder, varied, {metric: row[metric]}, row["rounds"], over=row["status"] in OVER)


def rows_of(sweep: Sweep, book: Book) -> list[Row]:
    """One row per trial: its identity, the keys that varied, and its results (accuracies of clients are averaged)."""
    rows = []
    for entry in book.entries:
        summary = book.summary(entry) or {}
        point = scheduled(book.folder / entry.name, entry.point)
        base = {
            "trial": entry.trial,
            "configuration": entry.configuration,
            "repeat": entry.repetition,
            "folder": entry.name,
            "status": entry.status,
            "rounds": summary.get("rounds", entry.reports[-1][0] if entry.reports else None),
            sweep.settings.metric: book.value(entry, sweep.settings.metric),
            f"{UNTRAINED}{sweep.settings.metric}": book.began(entry, sweep.settings.metric),
            "score": configuration_score(sweep, book, entry.configuration),
            **{key: point[key] for key in sweep.settings.keys if key in point},
        }
        accuracies = {
            f"{kind}.{name}": _mean(value)
            for kind in ("accuracy", "select")
            for name, value in summary.get(kind, {}).items()
        }
        sent = summary.get("communication", {})
        start = {START: summary["start"]["path"]} if "start" in summary else {}
        rows.append({**base, **accuracies, **sent, "wall_s": summary.get("wall_s"), **start})
    return rows


def _mean(value: Any) -> float | None:
    """The value, or the mean of clients' values; None if there is none."""
    values = [v for v in (value.values() if isinstance(value, Mapping) else [value]) if v is not None]
    return float(np.mean(values)) if values else None


def table(rows: Sequence[Row]) -> pa.Table:
    """The rows with a column for every key; values that are neither numbers nor text become JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        present = [v for v in values if v is not None]
        if any(isinstance(v, float) for v in present) and all(_number(v) for v in present):
            values = [None if v is None else float(v) for v in values]
        elif not (all(_number(v) for v in present) or all(isinstance(v, str) for v in present)):
            values = [None if v is None else json.dumps(v) for v in values]
        columns[name] = values
    return pa.table(columns)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def answer(results: Results) -> str:
    """A sentence on which configuration was chosen, as in the report."""
    settings = results.sweep.settings
    return verdict(results.rows, results.choice, settings.keys, settings.metric, settings.mode, settings.score).sentence


def ranked(results: Results) -> Table:
    """The configurations for a terminal, the best first; failed and unfinished ones are not among them. The last row is
    the encoder before training. :func:`legend` explains the marks in the first column.
    """
    settings, choice = results.sweep.settings, results.choice
    several, averaged = settings.repeat > 1, settings.score == "mean"
    head = f"{settings.metric}, {settings.score} of {settings.repeat}" if several else settings.metric
    spread = ["mean ± deviation"] if several and not averaged else []
    shown = Table("", "number", *settings.keys, head, *spread, "rounds", "MB up", "folder", "status", box=box.SIMPLE)
    for configuration in choice.ranking:
        rows = results.of(configuration)
        first, last = rows[0], rows[-1]
        folders = first["folder"] if len(rows) == 1 else f"{first['folder']} to {last['folder'].rpartition('-')[2]}"
        sent = [row["up_bytes"] / 1e6 for row in rows if row.get("up_bytes") is not None]
        shown.add_row(
            _mark(results, configuration),
            str(configuration),
            *(written(first.get(key)) for key in settings.keys),
            *_scores(results.values(configuration), first["score"], several=several, averaged=averaged),
            "-" if first["rounds"] is None else str(first["rounds"]),
            f"{sum(sent) / len(sent):.2f}" if sent else "-",
            folders,
            ", ".join(dict.fromkeys(row["status"] for row in rows)),
        )
    if began := starts_of(results.rows, settings.metric):
        scores = [score(values, settings.score, settings.mode) for values in began]
        cells = _scores(began[0], scores[0], several=several, averaged=averaged)
        if low_high := _range(scores):  # configurations that begin with other encoders
            cells = [low_high, *("-" for _ in spread)]
        name = before_training(results.rows)
        shown.add_row("", name, *("-" * len(settings.keys)), *cells, "0", "-", "-", "-")
    return shown


def legend(results: Results) -> str:
    """The meaning of the marks that occur in the first column of the table."""
    choice = results.choice
    meanings = ["* chosen"] if choice.winner is not None else []
    meanings += ["= level with it"] if choice.level else []
    meanings += ["~ not told apart from it"] if choice.apart else []
    return "; ".join(meanings)


def _scores(values: Sequence[float], scored: float, *, several: bool, averaged: bool) -> list[str]:
    """The cells of a score; with repeats also the range of their values."""
    if not several:
        return [four_digits(scored)]
    return [_spread(values)] if averaged else [four_digits(scored), _spread(values)]


def _range(scores: Sequence[float]) -> str:
    """The smallest and the largest value, or "" if they look the same with the digits shown."""
    low, high = four_digits(min(scores)), four_digits(max(scores))
    return "" if low == high else f"{low} to {high}"


def _mark(results: Results, configuration: int) -> str:
    choice = results.choice
    marks = {**dict.fromkeys(choice.level, "="), **dict.fromkeys(choice.apart, "~")}
    return "*" if configuration == choice.winner else marks.get(configuration, "")


def _spread(values: Sequence[float]) -> str:
    mean = four_digits(float(np.mean(values))) if values else "-"
    return mean + (f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else "")


# -- parallel coordinates ----------------------------------------------------------------------------------------------


def draw_parallel(results: Results, folder: Path) -> None:
    """Draw ``figures/parallel.png``: an axis for each key and the score, and a line across them for each configuration,
    in the colour of its score; the winner's is thick.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from rayfed_ssl.records.figures import save_figure

    settings = results.sweep.settings
    rows = [results.of(c)[0] for c in results.choice.ranking]
    names = [*settings.keys, "score"]
    ranges = {key: "log" if d.loguniform else "linear" for key, d in settings.space.items() if d.values is None}
    scales = {**ranges, "score": "linear"}
    heights, ticks = zip(
        *(axis([row.get(name) for row in rows], scales.get(name, "even")) for name in names), strict=True
    )
    scores = np.array([row["score"] for row in rows])
    colour = Normalize(scores.min(), scores.max() if scores.max() > scores.min() else scores.min() + 1e-9)
    figure = Figure(figsize=(max(5.0, 1.9 * len(names)), 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for number in reversed(range(len(rows))):
        best = results.choice.ranking[number] == results.choice.winner
        shade = colormaps["viridis"](colour(scores[number]))
        axes.plot(range(len(names)), [height[number] for height in heights], color=shade, lw=3.0 if best else 1.2)
    for at, marks in enumerate(ticks):
        axes.axvline(at, color="#999999", lw=0.8, zorder=0)
        for height, text in marks:
            axes.annotate(text, (at, height), xytext=(4, 2), textcoords="offset points", fontsize=7, color="#555555")
    shown = f"{settings.metric} ({settings.score} of {settings.repeat})" if settings.repeat > 1 else settings.metric
    axes.set_xticks(range(len(names)), [*(_short(name) for name in names[:-1]), shown], fontsize=8)
    axes.set_yticks([])
    axes.set(ylim=(-0.06, 1.08), xlim=(-0.1, len(names) - 0.55))
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    save_figure(folder, "parallel", figure)


def _short(key: str) -> str:
    """A key on two lines: its block and its name."""
    block, _, name = key.rpartition(".")
    return f"{block}\n{name}" if block else name


def axis(values: Sequence[Any], scale: str = "even") -> tuple[list[float], list[tuple[float, str]]]:
    """The heights in [0, 1] of values on their axis, and the axis' marks (height, text).

    ``scale`` is "even" (each value that occurs is marked, in order), "linear" or "log" (the ends and the middle are).
    """
    if scale == "even":
        return _evenly(values)
    numbers = np.log(np.array(values, float)) if scale == "log" else np.array(values, float)
    low, high = float(numbers.min()), float(numbers.max())
    heights = [0.5] * len(values) if high == low else [float(n - low) / (high - low) for n in numbers]
    marks = {
        height: four_digits(float(v)) for height, v in zip(heights, values, strict=True) if height in (0.0, 0.5, 1.0)
    }
    return heights, sorted(marks.items())


def _evenly(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """The heights and marks of values at equal distances: each different value has a height and a mark of its own. A
    mark has few digits, or all of them if the few are the same for two values.
    """
    numbers = all(map(_number, values))
    shown = [v if isinstance(v, str) else f"{v:.4g}" if _number(v) else json.dumps(v) for v in values]
    keys = [(value,) if numbers else (text, json.dumps(value)) for value, text in zip(values, shown, strict=True)]
    texts = dict(zip(keys, zip(shown, map(json.dumps, values), strict=True), strict=True))
    occurrences = Counter(short for short, _ in texts.values())
    height = {key: number / max(len(texts) - 1, 1) for number, key in enumerate(sorted(texts))}
    marks = [(height[key], long if occurrences[short] > 1 else short) for key, (short, long) in texts.items()]
    return [height[key] for key in keys], sorted(marks)
