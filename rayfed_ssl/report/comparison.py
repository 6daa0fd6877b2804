"""The report of a comparison, made of ``comparison.json`` and the run folders that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, listed, printable
from rayfed_ssl.records.comparison import BEFORE_TRAINING, RAW_PIXELS, UNTRAINED, ordered, spread
from rayfed_ssl.records.comparison_choice import SMALLER
from rayfed_ssl.records.gains import never
from rayfed_ssl.records.guarantee import guarantee
from rayfed_ssl.records.image_pairs import WHAT, drawn
from rayfed_ssl.records.leaked import INTERVAL, largest
from rayfed_ssl.records.one_run import OneRun, read_run
from rayfed_ssl.records.significance import APART, judged, margin_of
from rayfed_ssl.report.comparison_verdict import Row, by_seed, value_of, verdict
from rayfed_ssl.report.features import WORDS
from rayfed_ssl.report.formats import how_many, number, size, span, upper
from rayfed_ssl.report.measures import DESCRIBED, axis, change, measure_name, scale, shown, subject, within
from rayfed_ssl.report.page import Cell, HtmlTable, Page, Section, Tile, write
from rayfed_ssl.report.style import GRID, INK, MUTED, SERIES, Drawing, Studio, lines, logarithmic_from_zero

FILE = "comparison.json"
SPREAD = 20.0  # if bytes differ by a larger factor, their axis is logarithmic
CURVES = 8  # the most rows in one figure of curves
HELD_OUT = "select/"
FIRST_FEATURES = tuple(f"{DESCRIBED}{name}" for name in WORDS)  # the columns of features that come first


def report(folder: Path) -> Path:
    """Write ``report.html`` and ``figures/`` into a comparison's folder.

    Raises:
        UserError: ``comparison.json`` is damaged.
        OSError: the folder cannot be written to.
    """
    document = _document(folder / FILE)
    rows = [row for row in document["rows"] if isinstance(row, dict) and isinstance(row.get("row"), str)]
    trained = [row for row in rows if row.get("runs")]
    if not trained:
        raise UserError(f"{folder / FILE}: found no row with a run; the file is damaged")
    studio, notes = Studio(folder), [str(note) for note in document.get("notes") or ()]
    measures = [
        name
        for name in document.get("measures") or ()
        if isinstance(name, str) and any(value_of(row, f"{name}.mean") is not None for row in trained)
    ]
    scores = ordered([name for name in measures if "/" not in name])
    described = [name for name in (*FIRST_FEATURES, *measures) if name in measures and name.startswith(DESCRIBED)]
    held_out = [name for name in measures if name.startswith(HELD_OUT)]
    runs = {row["row"]: _runs(folder, row, notes) for row in trained}
    seeds = document.get("seeds") or []
    facts = [
        how_many(len(trained), "row"),
        how_many(len(seeds), "seed"),
        f"first: {printable(document.get('first'), 60)}",
    ]
    sections = [
        _measured(studio, rows, "accuracy", "Accuracy", scores, "Last round"),
        _measured(studio, rows, "representations", "Representations", list(dict.fromkeys(described)), "Features"),
        Section(
            "held-out", "Held-out images", tables=_tables(rows, held_out, "Last round, on images held out to choose by")
        ),
        Section("curves", "Over rounds and bytes", drawings=_curves(studio, trained, scores, runs)),
        Section("costs", "Costs", tables=[_costs(rows, scores)], notes=_promises(rows)),
        Section("leak", "What messages give away", tables=_leaks(trained, runs)),
    ]
    tiles = []
    if isinstance(chosen := document.get("selection"), Mapping):
        tiles, sentence = [_chosen(chosen)], printable(chosen.get("sentence"), 1000)
        sections.insert(0, Section("selection", "Choice without test labels", notes=[sentence]))
    sections.append(Section("notes", "Notes", notes=notes))
    return write(Page("Comparison", folder.resolve().name, facts, verdict(rows, scores), tiles, sections), folder)


def _chosen(selection: Mapping[str, Any]) -> Tile:
    """A tile with the row that ``--select`` chose."""
    measure = str(selection.get("measure"))
    value = Cell(printable(selection.get("row") or "none", 60))
    if (mean := value_of(selection, "mean")) is not None:
        note = f"{shown(measure, mean)}; read: {printable(selection.get('labels'), 40)}"
    else:
        note = "why is said under Choice without test labels"
    return Tile(f"chosen by {measure_name(measure)}", value, note)


def _measured(
    studio: Studio, rows: Sequence[Row], id: str, title: str, measures: Sequence[str], caption: str
) -> Section:
    """A section with a table and figures: a column and a figure for each measure."""
    return Section(
        id, title, tables=_tables(rows, measures, caption), drawings=[_dots(studio, rows, m) for m in measures]
    )


def _document(path: Path) -> dict[str, Any]:
    """What ``comparison.json`` holds. Raises UserError if it is damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        list(document["rows"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error!r}); the comparison's records are damaged") from None
    return dict(document)


def _runs(folder: Path, row: Row, notes: list[str]) -> list[OneRun]:
    """The row's runs whose folders can be read; a line of ``notes`` for each of the others."""
    runs = []
    for seed in (row.get("seeds") or {}).values():
        try:
            runs.append(read_run(folder / str(seed["folder"])))
        except (UserError, OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
            notes.append(f"{printable(row['row'], 60)}: a run has no curve ({in_one_line(error)})")
    return runs


def _tables(rows: Sequence[Row], measures: Sequence[str], caption: str) -> list[HtmlTable]:
    """One table with a column for each measure; none if there are no measures."""
    body = []
    for place, row in enumerate(rows):
        cells = [Cell(printable(row["row"], 60))]
        for name in measures:
            value, difference = value_of(row, f"{name}.mean"), value_of(row, f"{name}.difference")
            deviation = value_of(row, f"{name}.deviation")
            notes = [] if deviation is None else [f"± {change(name, deviation).removeprefix('+')}"]
            if difference is not None:
                notes += _apart(row, name, difference)
            cells.append(Cell(shown(name, value), value, f"rows/{place}/{name}.mean", "\n".join(notes)))
        body.append(cells)
    apart = "difference to the first row [95 % interval over seeds; none of one seed]"
    counted = {WHAT[drawn(name)]: drawn(name) for name in measures if _known(rows, f"{name}.{WHAT[drawn(name)]}_low")}
    if counted:
        apart += f", and the interval that counts {listed(list(counted.values()))} too, by which it is judged"
    text = f"{caption}: mean over seeds ± deviation, {apart}"
    return [HtmlTable(text, ["", *(measure_name(name) for name in measures)], body)] if measures else []


def _known(rows: Sequence[Row], key: str) -> bool:
    """Whether any row has a number under ``key``."""
    return any(value_of(row, key) is not None for row in rows)


def _apart(row: Row, name: str, difference: float) -> list[str]:
    """The lines below a value: the difference to the first row with its interval over seeds; the interval that also
    counts images or clients; and the word for the difference if the last of these intervals contains zero.
    """
    what = WHAT[drawn(name)]
    seeds, counted = _interval(row, f"{name}."), _interval(row, f"{name}.{what}_")
    lines, last = [change(name, difference)], counted or seeds
    if seeds is not None:
        lines[0] += f" {within(name, *seeds)}"
    if counted is not None:
        lines.append(f"{what} {within(name, *counted)}")
    if last is not None and (word := judged(*last, margin_of(name))) in ("level", APART):
        of_one = str(row.get(f"{name}.verdict_over", "")).endswith("of one seed")
        lines.append(f"{word}, one seed" if of_one else word)
    return lines


def _interval(row: Row, key: str) -> tuple[float, float] | None:
    """A row's interval under a prefix of keys; None if it has none."""
    low, high = value_of(row, f"{key}low"), value_of(row, f"{key}high")
    return None if low is None or high is None else (low, high)


def _promises(rows: Sequence[Row]) -> list[str]:
    """A line for each row with an epsilon: what the epsilon covers."""
    known = [(row["row"], found.sentence) for row in rows if (found := guarantee(row)) is not None]
    return [f"{printable(name, 60)}: {sentence}." for name, sentence in known]


def _costs(rows: Sequence[Row], scores: Sequence[str]) -> HtmlTable:
    """The table of costs. A column stands in it if any row has a value."""
    main = scores[0] if scores else ""
    gain = f"90 % of {measure_name(main)} gain"
    goal = next((value for row in rows if (value := value_of(row, f"goal.{main}")) is not None), None)
    common = f"{measure_name(main)} {shown(main, goal)}"
    columns = {
        "bytes": ("bytes_total", size), "per round": ("bytes_per_round", size),
        f"to {gain}": (f"bytes_to_90.{main}", size), f"to {common}": (f"bytes_to_goal.{main}", size),
        "virtual hours": ("virtual_hours", number), f"hours to {gain}": (f"virtual_hours_to_90.{main}", number),
        f"hours to {common}": (f"virtual_hours_to_goal.{main}", number), "epsilon": ("epsilon", upper),
        "time of rounds": ("rounds_s", span),
    }  # fmt: skip
    shown_columns = {
        head: column for head, column in columns.items() if any(value_of(row, column[0]) is not None for row in rows)
    }
    body = []
    for place, row in enumerate(rows):
        cells = [Cell(printable(row["row"], 60))]
        for key, written in shown_columns.values():
            value = value_of(row, key)
            words = _never(row, main) if key.endswith(f"_to_goal.{main}") else ""
            cells.append(Cell(words or written(value), value, f"rows/{place}/{key}"))
        body += [cells] if row.get("runs") else []
    text = "What it cost: bytes of all clients, up and down"
    if goal is not None:
        first = printable(rows[0]["row"], 60)
        began = next((row["row"] for row in rows if row["row"] in BEFORE_TRAINING), UNTRAINED)
        text += f". {common} is 90 % of the way from the {began} to the last round of {first}, seed by seed"
    return HtmlTable(text, ["", *shown_columns], body)


def _never(row: Row, main: str) -> str:
    """How many of a row's runs did not reach the accuracy that all rows are asked for, in words; "" if all did."""
    seeds, arrived = (value_of(row, f"goal_{what}.{main}") for what in ("seeds", "reached"))
    return "" if seeds is None or arrived is None else never(int(seeds), int(arrived))


def _leaks(trained: Sequence[Row], runs: Mapping[str, Sequence[OneRun]]) -> list[HtmlTable]:
    """A table with each row's largest area under the curve of an attack; none unless all runs were audited."""
    audits = {row["row"]: [run.audited for run in runs[row["row"]]] for row in trained}
    if not all(found and None not in found for found in audits.values()):
        return []
    body = []
    for name, found in audits.items():
        area = largest([audit for audit in found if audit is not None])
        if area is None:
            unread = any(audit is not None and audit.unaudited for audit in found)
            why = "no attack reads what crossed" if unread else "nothing crossed"
            body.append([Cell(printable(name, 60)), Cell("–"), Cell(why)])
            continue
        value = Cell(f"{area.auc:.3f}", area.auc, note=f"[{area.low:.3f}, {area.high:.3f}]")
        body.append([Cell(printable(name, 60)), value, Cell(area.of)])
    caption = (
        "The largest area by which a message told members from others; 0.5 is chance, and of many areas the largest is "
        f"above it by chance. Its interval is {INTERVAL}"
    )
    return [HtmlTable(caption, ["", "AUC [95 %]", "of"], body)]


# -- figures -----------------------------------------------------------------------------------------------------------


def _dots(studio: Studio, rows: Sequence[Row], name: str) -> Drawing:
    """A figure with each row's mean and its seeds, sorted by the means; the baselines are vertical lines."""
    key, smaller = f"{name}.mean", name in SMALLER
    known = [row for row in rows if row.get("runs") and value_of(row, key) is not None]
    known.sort(key=lambda row: (value_of(row, key) or 0.0) * (1 if smaller else -1))
    listing = ", ".join(f"{printable(row['row'], 40)} {shown(name, value_of(row, key))}" for row in known)
    baselines = {row["row"]: v for row in rows if not row.get("runs") and (v := value_of(row, key)) is not None}
    return studio.draw(
        f"comparison_{name}", measure_name(name), lambda f: _paint_dots(f, known, name, baselines),
        alt=f"{subject(name)} by row, the {'lowest' if smaller else 'highest'} first: {listing}.",
        caption=_dots_caption(known, name, baselines),
        height=min(0.8 + 0.19 * len(known), 6.0),
    )  # fmt: skip


def _dots_caption(known: Sequence[Row], name: str, baselines: Mapping[str, float]) -> str:
    """What the measure is, and what the marks mean that are drawn."""
    sentences = [WORDS[feature][2]] if (feature := name.removeprefix(DESCRIBED)) in WORDS else []
    sentences += ["Large: the mean; small: each seed."] if any(len(by_seed(row, name)) > 1 for row in known) else []
    lines = {**{row: f"Dashed: the {row}." for row in BEFORE_TRAINING}, RAW_PIXELS: "Dotted: raw pixels."}
    return " ".join(sentences + [line for label, line in lines.items() if label in baselines])


def _paint_dots(figure: Figure, known: Sequence[Row], name: str, baselines: Mapping[str, float]) -> None:
    axes, by = figure.add_subplot(), scale(name)
    for label, style in (*((row, (0, (4, 2))) for row in BEFORE_TRAINING), (RAW_PIXELS, ":")):
        if label in baselines:
            axes.axvline(by * baselines[label], color=MUTED, linestyle=style, linewidth=0.9)
    for place, row in enumerate(known):
        seeds = list(by_seed(row, name).values())
        if len(seeds) > 1:
            axes.plot([by * v for v in seeds], [place] * len(seeds), "o", markersize=2.4, color=INK, alpha=0.5)
        axes.plot(by * (value_of(row, f"{name}.mean") or 0.0), place, "o", markersize=5, color=SERIES[0], zorder=3)
    axes.set_yticks(range(len(known)), [printable(row["row"], 28) for row in known])
    axes.set(xlabel=axis(name), ylim=(len(known) - 0.4, -0.6))
    axes.grid(axis="y", color=GRID)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _curves(
    studio: Studio, trained: Sequence[Row], scores: Sequence[str], runs: Mapping[str, Sequence[OneRun]]
) -> list[Drawing]:
    """Accuracy over rounds and over bytes, as means over seeds, of the rows with the highest accuracies."""
    drawings = []
    best = sorted(trained, key=lambda row: -(value_of(row, f"{scores[0]}.mean") or 0.0)) if scores else []
    for name in scores[:2]:
        names = [row["row"] for row in best if any(len(run.curves.get(name, {})) > 1 for run in runs[row["row"]])]
        if not names:
            continue
        best_names, measure = names[:CURVES], axis(name)
        over = {printable(row, 20): _over(runs[row], name, None) for row in best_names}
        sent = {printable(row, 20): _over(runs[row], name, 1e6) for row in best_names}
        few = f" The first {CURVES} of {len(names)} rows." if len(names) > CURVES else ""
        for key, what, label, values in (("rounds", "rounds", "round", over), ("bytes", "bytes", "MB", sent)):
            names_drawn = [row for row, line in values.items() if line]
            if names_drawn:
                drawing = studio.draw(
                    f"comparison_{name}_{key}",
                    f"{measure_name(name)} over {what}",
                    lambda f, v=values, x=label, y=measure: paint_curves(f, v, x, y),  # type: ignore[misc]
                    alt=f"{subject(name)} over {what} of {', '.join(names_drawn)}.",
                    caption=f"Means over seeds.{few}",
                    height=2.9,
                )
                drawings.append(drawing)
    return drawings


def _over(runs: Sequence[OneRun], name: str, unit: float | None) -> dict[float, float]:
    """x -> mean over seeds, in the axis' unit, for the rounds that all runs evaluated. x is the round if ``unit`` is
    None, else the bytes until its end divided by ``unit``.
    """
    common = set.intersection(*(set(run.curves.get(name, {})) for run in runs)) if runs else set()
    means: dict[float, float] = {}
    for t in sorted(common):
        value = spread([run.curves[name][t] for run in runs])
        sent = spread([float(run.bytes_until(t)) for run in runs])
        if value is not None and sent is not None:
            means[float(t) if unit is None else sent.mean / unit] = scale(name) * value.mean
    return means


def paint_curves(figure: Figure, values: dict[str, dict[float, float]], label: str, measure: str) -> None:
    axes = lines(figure, values, xlabel=label, ylabel=measure)
    if label != "MB":
        return
    places = [x for curve in values.values() for x in curve if x]
    if places and max(places) > SPREAD * min(places):
        logarithmic_from_zero(axes.xaxis, min(places))
    axes.set_xlim(left=0)
    for line in axes.lines:
        line.set_clip_on(False)  # the points of a row that sends nothing lie on the axis
