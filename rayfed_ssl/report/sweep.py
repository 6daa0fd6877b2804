"""The report of a sweep: from ``results.parquet``, ``sweep.yaml`` and ``trials.json`` to the sections of a page."""

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
from rayfed_ssl.base.text import printable
from rayfed_ssl.records.significance import APART, partly_by_chance
from rayfed_ssl.records.sweep_choice import (
    CHOICE,
    START,
    Choice,
    before_training,
    below_untrained,
    choose,
    untrained_of,
)
from rayfed_ssl.report.formats import number, percent, plural, size, span
from rayfed_ssl.report.page import Cell, HtmlTable, Page, Section, Text, Tile, words, write
from rayfed_ssl.report.style import MUTED, SERIES, Drawing, Studio, logarithmic, rules, whole_numbers
from rayfed_ssl.report.verdict import Verdict
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
FRACTIONS = ("accuracy.", "select.", "best.", "untrained.")
KEYS = 9  # the most keys with a figure
LISTED = 200  # configurations in the table
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
    choice = choose(rows, metric, mode)
    studio = Studio(folder)
    drawings = [_against(studio, key, rows, choice.winner, metric, place) for place, key in enumerate(keys[:KEYS])]
    if (course := _course(studio, folder, metric, notes)) is not None:
        drawings.append(course)
    sections = [
        *_answered(folder, notes),
        Section("ranking", "Configurations", tables=[_table(rows, choice, keys, metric)]),
        Section("keys", f"{metric} against each key", "A point is a trial; filled: the configuration that is chosen.",
                drawings=drawings),
        Section("settings", "The sweep", texts=[Text("sweep.yaml", yaml.safe_dump(settings, sort_keys=False))]),
        Section("notes", "Notes", notes=notes),
    ]  # fmt: skip
    statuses = [str(row.get("status")) for row in rows]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    tiles = [Tile(printable(status, 30), Cell(number(count)), "trials") for status, count in counts.items()]
    facts = [plural(len({row.get("configuration") for row in rows}), "configuration"), plural(len(rows), "trial"),
             f"{mode}imum of {printable(metric, 60)}"]  # fmt: skip
    page = Page("Sweep", folder.resolve().name, facts, verdict(rows, choice, keys, metric, mode), tiles, sections)
    return write(page, folder)


def _answered(folder: Path, notes: list[str]) -> list[Section]:
    """What ``choice.json`` says of the choice; nothing of a sweep of an earlier version, which wrote none."""
    path = folder / CHOICE
    if not path.exists():
        return []
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        winner, remarks = said["configuration"], [printable(remark, 1000) for remark in said["remarks"]]
        folders = ", ".join(printable(name, 60) for name in said["folders"])
        keys = ", ".join(f"{printable(key, 60)} = {words(value)}" for key, value in said["keys"].items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        notes.append(f"{CHOICE}: cannot be read ({error!r})")
        return []
    by = f"{said.get('mode')}imum of {printable(said.get('metric'), 60)}"
    chosen = "No configuration has run to its end." if winner is None else f"Number {winner}: {keys} ({folders})."
    return [Section("choice", "Choice", f"By the {by}.", notes=[chosen, *remarks])]


def _rows(path: Path) -> list[Row]:
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(
            f"{path}: cannot be read ({' '.join(str(error).split())}); the sweep's records are damaged"
        ) from None
    if not rows or not {"configuration", "status", "score"} <= rows[0].keys():
        raise UserError(f"{path}: found no trials; the sweep's records are damaged")
    return rows


def _settings(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return configfile.read(path)
    except (UserError, OSError) as error:
        notes.append(printable(str(error)))
        return {}


def _keys(rows: Sequence[Row], metric: str) -> list[str]:
    """The keys that varied: the columns that are neither bookkeeping nor results."""
    return [key for key in rows[0] if key not in (*COLUMNS, metric) and not key.startswith(FRACTIONS)]


def _score(value: float | None, metric: str) -> str:
    return percent(value) if metric.startswith(FRACTIONS) else number(value)


def verdict(rows: Sequence[Row], choice: Choice, keys: Sequence[str], metric: str, mode: str = "max") -> Verdict:
    """The configuration that the sweep chose and what it is; others that are level with it or not told apart, and those
    that have a score and cannot win; a single training of each is said to be one.
    """
    if not choice.ranking:
        return Verdict("No configuration has a score yet.")
    some = plural(len(choice.ranking), "configuration")
    if choice.winner is None:
        return Verdict(f"No configuration has run to its end yet; {some} with a score so far.")
    own = [row for row in rows if row["configuration"] == choice.winner]
    told = ", ".join(f"{key} = {words(own[0].get(key))}" for key in keys)
    labels = " (chosen by test labels)" if metric.startswith(("accuracy.", "best.")) else ""
    text = f"Of {plural(len(choice.finished), 'configuration')} that ran to the end, number {choice.winner} is "
    text += f"the best by {printable(metric, 60)}{labels}: {_score(own[0]['score'], metric)} with {told}"
    if below := below_untrained(rows, choice, metric, mode):
        text += f"; worse than the {before_training(rows)}, chance not counted: number {', '.join(map(str, below))}"
    if choice.level:
        text += f"; level with it: number {', '.join(map(str, choice.level))}, because {choice.why_level}"
    if choice.apart:
        text += f"; not told apart from it: number {', '.join(map(str, choice.apart))}, because {choice.why_apart}"
    if choice.ahead:
        text += f"; better by the mean of repeats: number {', '.join(map(str, choice.ahead))}"
    if choice.repeats > 1 and (chance := partly_by_chance(len(choice.finished))):
        text += f"; {chance}"
    if choice.repeats == 1 and not choice.level:
        text += "; each was trained once, so differences may be chance"
    if others := len(choice.ranking) - len(choice.finished):
        text += f"; {plural(others, 'other')} with a score did not run to the end and cannot be chosen"
    return Verdict(f"{text}.")


def _table(rows: Sequence[Row], choice: Choice, keys: Sequence[str], metric: str) -> HtmlTable:
    body = []
    marks: dict[int | None, str] = {
        **dict.fromkeys(choice.level, "level"), **dict.fromkeys(choice.apart, APART), choice.winner: "chosen",
    }  # fmt: skip
    for configuration in choice.ranking[:LISTED]:
        own = [row for row in rows if row["configuration"] == configuration]
        values = [row[metric] for row in own if row.get(metric) is not None]
        spread = f"{_score(min(values), metric)} to {_score(max(values), metric)}" if len(values) > 1 else ""
        sent = [row["up_bytes"] for row in own if row.get("up_bytes") is not None]
        seconds = [row["wall_s"] for row in own if row.get("wall_s") is not None]
        body.append(
            [
                Cell(str(configuration), note=", ".join(printable(row.get("folder"), 30) for row in own[:3])),
                *(Cell(words(own[0].get(key))) for key in keys),
                Cell(_score(own[0]["score"], metric), own[0]["score"], f"{own[0]['trial']}/score", spread),
                Cell(size(fmean(sent)) if sent else "–"),
                Cell(span(fmean(seconds)) if seconds else "–"),
                Cell(
                    ", ".join(dict.fromkeys(printable(row.get("status"), 30) for row in own)),
                    note=marks.get(configuration, ""),
                ),
            ]
        )
    if began := untrained_of(rows, metric):
        low, high = _score(min(began), metric), _score(max(began), metric)
        value = Cell(low if low == high else f"{low} to {high}")
        body.append([Cell(before_training(rows)), *(Cell("–") for _ in keys), value, *(Cell("–") for _ in range(3))])
    head = [
        "configuration",
        *(printable(key, 60) for key in keys),
        printable(metric, 60),
        "sent up",
        "wall clock",
        "status",
    ]
    return HtmlTable("Configurations with a score, the best first", head, body)


# -- figures -----------------------------------------------------------------------------------------------------------


def _against(studio: Studio, key: str, rows: Sequence[Row], best: int | None, metric: str, place: int) -> Drawing:
    known = [row for row in rows if row.get(metric) is not None and row.get(key) is not None]
    return studio.draw(
        f"sweep_key_{place}", printable(key, 60), lambda f: _paint_key(f, key, known, best, metric),
        alt=f"{metric} of {len(known)} trials against {key}.", height=2.0,
    )  # fmt: skip


def _paint_key(figure: Figure, key: str, known: Sequence[Row], best: int | None, metric: str) -> None:
    axes = figure.add_subplot()
    scale = 100 if metric.startswith(FRACTIONS) else 1
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
    axes.set(xlabel=printable(key, 40), ylabel=printable(metric, 30) + (" (%)" if scale == 100 else ""))
    rules(axes)


def _course(studio: Studio, folder: Path, metric: str, notes: list[str]) -> Drawing | None:
    """What each trial reported on its way."""
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
    scale = 100 if metric.startswith(FRACTIONS) else 1
    for curve in curves:
        x, y = zip(*curve, strict=True)
        axes.plot(x, [scale * value for value in y], color=MUTED, linewidth=0.8, alpha=0.7)
        axes.plot(x[-1], scale * y[-1], "o", color=SERIES[0], markersize=3)
    axes.set(xlabel="round", ylabel=printable(metric, 30) + (" (%)" if scale == 100 else ""))
    whole_numbers(axes)
    rules(axes)
