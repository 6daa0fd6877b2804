"""The report of a sweep, made of ``results.parquet``, ``sweep.yaml`` and ``trials.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from matplotlib.figure import Figure

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, printable
from rayfed_ssl.records.significance import APART
from rayfed_ssl.records.sweep_choice import CHOICE, SHARES, START, Choice, before_training, choose, score, starts_of
from rayfed_ssl.report.formats import how_many, number, size, span, words
from rayfed_ssl.report.page import Cell, HtmlTable, Page, Section, Text, Tile, write
from rayfed_ssl.report.style import MUTED, SERIES, Drawing, Studio, logarithmic, rules, whole_numbers
from rayfed_ssl.report.sweep_verdict import remarks, shown, verdict
from rayfed_ssl.settings import files as configfile

RESULTS = "results.parquet"
COLUMNS = (
    "trial",
    "configuration",
    "repeat",
    "folder",
    "status",
    "rounds",
    "score",
    "up_bytes",
    "down_bytes",
    "wall_s",
    START,
)
KEYS = 9  # the most keys with a figure
LISTED = 200  # the most configurations in the table
Row = dict[str, Any]


def report(folder: Path) -> Path:
    """Write ``report.html`` and ``figures/`` into a sweep's folder.

    Raises:
        UserError: ``results.parquet`` is damaged or holds no trial.
        OSError: the folder cannot be written to.
    """
    notes: list[str] = []
    rows = _rows(folder / RESULTS)
    settings = _settings(folder / "sweep.yaml", notes)
    metric = str(settings.get("metric"))
    metric = metric if metric in rows[0] else "score"
    mode = "min" if settings.get("mode") == "min" else "max"
    keys = _keys(rows, metric)
    choice, of = choose(rows, metric, mode), str(settings.get("score", "mean"))
    studio = Studio(folder)
    drawings = [_against(studio, key, rows, choice.winner, metric, place) for place, key in enumerate(keys[:KEYS])]
    if (course := _course(studio, folder, metric, notes)) is not None:
        drawings.append(course)
    sections = [
        *_answered(folder, choice, metric, notes),
        Section("ranking", "Configurations", tables=[_table(rows, choice, keys, metric, mode, of)]),
        Section("keys", f"{metric} against each key", _explained(rows, metric), drawings=drawings),
        Section("settings", "The sweep", texts=[Text("sweep.yaml", yaml.safe_dump(settings, sort_keys=False))]),
        Section("notes", "Notes", notes=notes),
    ]  # fmt: skip
    statuses = [str(row.get("status")) for row in rows]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    tiles = [Tile(printable(status, 30), Cell(number(count)), "trials") for status, count in counts.items()]
    facts = [how_many(len({row.get("configuration") for row in rows}), "configuration"), how_many(len(rows), "trial"),
             f"{mode}imum of {printable(metric, 60)}"]  # fmt: skip
    page = Page("Sweep", folder.resolve().name, facts, verdict(rows, choice, keys, metric, mode, of), tiles, sections)
    return write(page, folder)


def _answered(folder: Path, choice: Choice, metric: str, notes: list[str]) -> list[Section]:
    """What ``choice.json`` says about the choice. A sweep of an earlier version has no such file: then what follows
    from its rows.
    """
    path = folder / CHOICE
    if not path.exists():
        return [Section("choice", "Choice", notes=remarks(choice, metric))]
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        winner, sentences = document["configuration"], [printable(remark, 1000) for remark in document["remarks"]]
        folders = ", ".join(printable(name, 60) for name in document["folders"])
        keys = ", ".join(f"{printable(key, 60)} = {words(value)}" for key, value in document["keys"].items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        notes.append(f"{CHOICE}: cannot be read ({error!r})")
        return []
    by = f"{document.get('mode')}imum of {printable(document.get('metric'), 60)}"
    chosen = "No configuration has run to its end." if winner is None else f"Number {winner}: {keys} ({folders})."
    command = [] if winner is None else ["To run it: rayfed-ssl run FOLDER/best.yaml, where FOLDER is this folder."]
    return [Section("choice", "Choice", f"By the {by}.", notes=[chosen, *sentences, *command])]


def _rows(path: Path) -> list[Row]:
    """The rows of ``results.parquet``. Raises UserError if it is damaged or has none."""
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read ({in_one_line(error)}); the sweep's records are damaged") from None
    if not rows or not {"configuration", "status", "score"} <= rows[0].keys():
        raise UserError(f"{path}: found no trials; the sweep's records are damaged")
    return rows


def _settings(path: Path, notes: list[str]) -> dict[str, Any]:
    """What ``sweep.yaml`` holds; nothing, with a note, if it cannot be read."""
    try:
        return configfile.read(path)
    except (UserError, OSError) as error:
        notes.append(printable(str(error)))
        return {}


def _keys(rows: Sequence[Row], metric: str) -> list[str]:
    """The keys that varied: the columns that are neither bookkeeping nor results."""
    return [key for key in rows[0] if key not in (*COLUMNS, metric) and not key.startswith(SHARES)]


def _table(rows: Sequence[Row], choice: Choice, keys: Sequence[str], metric: str, mode: str, of: str) -> HtmlTable:
    """A row for each configuration with a score, the best first, and one for the encoder before training."""
    body = []
    marks: dict[int | None, str] = {
        **dict.fromkeys(choice.level, "level"), **dict.fromkeys(choice.apart, APART), choice.winner: "chosen",
    }  # fmt: skip
    for configuration in choice.ranking[:LISTED]:
        own = [row for row in rows if row["configuration"] == configuration]
        values = [row[metric] for row in own if row.get(metric) is not None]
        sent = [row["up_bytes"] for row in own if row.get("up_bytes") is not None]
        seconds = [row["wall_s"] for row in own if row.get("wall_s") is not None]
        body.append(
            [
                Cell(str(configuration), note=", ".join(printable(row.get("folder"), 30) for row in own[:3])),
                *(Cell(words(own[0].get(key))) for key in keys),
                Cell(
                    shown(own[0]["score"], metric), own[0]["score"], f"{own[0]['trial']}/score", _spread(values, metric)
                ),
                Cell(size(fmean(sent)) if sent else "–"),
                Cell(span(fmean(seconds)) if seconds else "–"),
                Cell(
                    ", ".join(dict.fromkeys(printable(row.get("status"), 30) for row in own)),
                    note=marks.get(configuration, ""),
                ),
            ]
        )
    if began := starts_of(rows, metric):
        scores = sorted(score(values, of, mode) for values in began)
        low, high = shown(scores[0], metric), shown(scores[-1], metric)
        value = Cell(low if low == high else f"{low} to {high}", note=_spread(began[0], metric) if low == high else "")
        body.append([Cell(before_training(rows)), *(Cell("–") for _ in keys), value, *(Cell("–") for _ in range(3))])
    head = [
        "configuration",
        *(printable(key, 60) for key in keys),
        printable(metric, 60) + (f", {of} of {choice.repeats}" if choice.repeats > 1 else ""),
        "sent up",
        "wall clock",
        "status",
    ]
    return HtmlTable("Configurations with a score, the best first", head, body)


def _spread(values: Sequence[float], metric: str) -> str:
    """The smallest and the largest value of several repeats; "" for one."""
    return f"{shown(min(values), metric)} to {shown(max(values), metric)}" if len(values) > 1 else ""


def _began(rows: Sequence[Row], metric: str) -> float | None:
    """The mean score before training; None if configurations began with different encoders."""
    means = {round(fmean(values), 9) for values in starts_of(rows, metric)}
    return means.pop() if len(means) == 1 else None


def _explained(rows: Sequence[Row], metric: str) -> str:
    """What the marks and lines of the figures mean."""
    dashed = "" if _began(rows, metric) is None else f" Dashed: the {before_training(rows)}, in the mean."
    return f"A point is a trial; filled: the configuration that is chosen.{dashed}"


# -- figures -----------------------------------------------------------------------------------------------------------


def _against(studio: Studio, key: str, rows: Sequence[Row], best: int | None, metric: str, place: int) -> Drawing:
    """A figure of the metric against one key."""
    known = sum(row.get(metric) is not None and row.get(key) is not None for row in rows)
    return studio.draw(
        f"sweep_key_{place}", printable(key, 60), lambda f: _paint_key(f, key, rows, best, metric),
        alt=f"{metric} of {known} trials against {key}.", height=2.0,
    )  # fmt: skip


def _paint_key(figure: Figure, key: str, rows: Sequence[Row], best: int | None, metric: str) -> None:
    """A point for each trial; categories stand on the axis in alphabetical order."""
    known = [row for row in rows if row.get(metric) is not None and row.get(key) is not None]
    axes = figure.add_subplot()
    scale = 100 if metric.startswith(SHARES) else 1
    values = [row[key] for row in known]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = sorted({words(value) for value in values})
    for row in known:
        x = row[key] if numeric else names.index(words(row[key]))
        won = row["configuration"] == best
        axes.plot(x, scale * row[metric], "o", color=SERIES[0], markerfacecolor=SERIES[0] if won else "none",
                  markersize=5 if won else 4)  # fmt: skip
    if not numeric:
        axes.set_xticks(range(len(names)), [name[:14] for name in names])
    elif values and min(values) > 0 and max(values) / min(values) > 20:
        logarithmic(axes.xaxis)
    if (began := _began(rows, metric)) is not None:
        axes.axhline(scale * began, color=MUTED, linestyle=(0, (4, 2)), linewidth=0.9)
    axes.set(xlabel=printable(key, 40), ylabel=printable(metric, 30) + (" (%)" if scale == 100 else ""))
    rules(axes)


def _course(studio: Studio, folder: Path, metric: str, notes: list[str]) -> Drawing | None:
    """A figure of the values that each trial reported while it ran; None if no trial reported two."""
    try:
        trials = json.loads((folder / "trials.json").read_text(encoding="utf-8"))["trials"]
        curves = [[(int(t), float(v)) for t, v in trial["reports"]] for trial in trials if isinstance(trial, Mapping)]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        notes.append(f"trials.json: cannot be read ({error!r})")
        return None
    curves = [curve for curve in curves if len(curve) > 1]
    if not curves:
        return None
    return studio.draw(
        "sweep_course", "Trials on their way", lambda f: _paint_course(f, curves, metric),
        alt=f"{metric} over rounds of {len(curves)} trials; some were stopped early.", height=2.0,
    )  # fmt: skip


def _paint_course(figure: Figure, curves: Sequence[Sequence[tuple[int, float]]], metric: str) -> None:
    axes = figure.add_subplot()
    scale = 100 if metric.startswith(SHARES) else 1
    for curve in curves:
        x, y = zip(*curve, strict=True)
        axes.plot(x, [scale * value for value in y], color=MUTED, linewidth=0.8, alpha=0.7)
        axes.plot(x[-1], scale * y[-1], "o", color=SERIES[0], markersize=3)
    axes.set(xlabel="round", ylabel=printable(metric, 30) + (" (%)" if scale == 100 else ""))
    whole_numbers(axes)
    rules(axes)
