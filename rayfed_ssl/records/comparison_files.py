"""Writes a comparison: its table for readers, as Parquet, CSV, Markdown, LaTeX and JSON, and its figures.

The Parquet and CSV tables hold every number, one row per row of the comparison; the others hold what a reader needs.
Accuracies are fractions, bytes are bytes (MB: millions) of all clients, up and down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from rayfed_ssl.base.files import finite, replace_file, write_json
from rayfed_ssl.base.text import bounded, bounds, fraction, printable, signed
from rayfed_ssl.records.comparison import Comparison, Difference, Row, Spread
from rayfed_ssl.records.comparison_choice import Selection
from rayfed_ssl.records.comparison_notes import goal_name, leaked, notes
from rayfed_ssl.records.gains import GoalCost
from rayfed_ssl.records.image_pairs import WHAT, DrawnInterval, drawn
from rayfed_ssl.records.image_sampling import test_images
from rayfed_ssl.records.leaked import Area
from rayfed_ssl.records.significance import APART, margin_of

NAME = "comparison"
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": "$<$", ">": "$>$",
}  # fmt: skip


def write(comparison: Comparison, folder: Path, selection: Selection | None = None) -> None:
    """Write ``comparison.{parquet,csv,md,tex,json}`` and ``figures/`` into ``folder``. The files for readers and the
    JSON also have the choice of ``selection``.
    """
    from rayfed_ssl.records import comparison_figures  # matplotlib, loaded only to draw

    table = pa.Table.from_pylist(records(comparison))
    replace_file(folder / f"{NAME}.parquet", lambda path: pq.write_table(table, path))
    replace_file(folder / f"{NAME}.csv", lambda path: pa_csv.write_csv(table, path))
    for suffix, text in (("md", markdown(comparison, selection)), ("tex", latex(comparison, selection))):
        _write_text(folder / f"{NAME}.{suffix}", text)
    write_json(folder / f"{NAME}.json", document(comparison, folder, selection))
    comparison_figures.draw(comparison, folder)


def _write_text(path: Path, text: str) -> None:
    replace_file(path, lambda draft: draft.write_text(text, encoding="utf-8"))


# -- numbers -----------------------------------------------------------------------------------------------------------


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat mapping per row, all with the same keys; values that a row lacks are None. ``leak.auc`` and its interval
    are there if all runs were audited.
    """
    leaks = leaked(comparison)
    return [
        {
            "row": row.name,
            "method": next((run.method for run in row.runs.values()), None),
            "runs": len(row.runs),
            "unfinished": ", ".join(f"{name}: {status}" for name, status in row.unfinished.items()) or None,
            **{key: value for m in comparison.measures for key, value in _measured(comparison, row, m).items()},
            "bytes_total": row.bytes_total,
            "bytes_per_round": row.bytes_per_round,
            **{f"bytes_to_90.{m}": row.bytes_to(m) for m in comparison.scores},
            "virtual_hours": row.virtual_hours,
            **{f"virtual_hours_to_90.{m}": row.hours_to(m) for m in comparison.scores},
            **{key: value for m in comparison.scores for key, value in _to_goal(comparison, row, m).items()},
            "epsilon": row.epsilon,
            **{f"leak.{key}": getattr(leaks[row.name], key, None) for key in ("auc", "low", "high") if leaks},
            "wall_s": row.wall_s,
            "rounds_s": row.rounds_s,
            "same_split": row.name not in comparison.other_splits if row.runs else None,
            "same_images": row.name not in comparison.other_images if row.runs else None,
            "differs_in": ", ".join(row.differing) or None,
        }
        for row in comparison.rows
    ]


def _measured(comparison: Comparison, row: Row, measure: str) -> dict[str, Any]:
    found, to_first = row.spread(measure), row.difference(comparison.first, measure)
    counted = None if to_first is None or isinstance(to_first.drawn, str) else to_first.drawn
    of = WHAT[drawn(measure)]
    return {
        f"{measure}.mean": None if found is None else found.mean,
        f"{measure}.deviation": None if found is None else found.deviation,
        f"{measure}.difference": None if to_first is None else to_first.mean,
        f"{measure}.low": None if to_first is None else to_first.low,
        f"{measure}.high": None if to_first is None else to_first.high,
        f"{measure}.{of}_low": None if counted is None else counted.low,
        f"{measure}.{of}_high": None if counted is None else counted.high,
        f"{measure}.verdict": None if to_first is None else to_first.judged(margin_of(measure)),
        f"{measure}.verdict_over": None if to_first is None else to_first.over,
    }


def _to_goal(comparison: Comparison, row: Row, measure: str) -> dict[str, Any]:
    found = row.to_goal(comparison.first, measure)
    return {
        f"goal.{measure}": None if found is None else found.accuracy,
        f"goal_seeds.{measure}": None if found is None else found.seeds,
        f"goal_reached.{measure}": None if found is None else found.arrived,
        f"bytes_to_goal.{measure}": None if found is None else found.bytes,
        f"virtual_hours_to_goal.{measure}": None if found is None else found.hours,
    }


def document(comparison: Comparison, folder: Path, selection: Selection | None = None) -> dict[str, Any]:
    """The content of the tables, with every seed's values and run folder (relative to ``folder``), and the intervals
    between every two rows that count test images or clients; ``selection`` is null if nothing was to be chosen.
    """
    rows = []
    for row, record in zip(comparison.rows, records(comparison), strict=True):
        seeds = {
            str(seed): {
                "folder": os.path.relpath(run.folder, folder),
                "bytes": run.total_bytes,
                "wall_s": run.wall_s,
                "rounds_s": run.rounds_s,
                "split": run.split,
            }
            for seed, run in row.runs.items()
        }
        values = _by_seed(row)
        differing = {key: {"first": theirs, "own": own} for key, (theirs, own) in row.differing.items()}
        images = {name: found for name in row.values if (found := test_images(row, name)) is not None}
        private = None if row.guarantee is None else asdict(row.guarantee)
        more = {
            "values": values, "seeds": seeds, "differing": differing, "test_images": images, "privacy": private,
            "pairs": _pairs(comparison, row), "began": None if row.began is None else _by_seed(row.began),
        }  # fmt: skip
        rows.append({**record, **more})
    return {
        "first": comparison.first.name,
        "seeds": comparison.seeds,
        "measures": comparison.measures,
        "same_split": not comparison.other_splits,
        "same_images": not comparison.other_images,
        "left_out": dict(comparison.left_out),
        "selection": None if selection is None else finite(asdict(selection)),
        "notes": notes(comparison),
        "rows": finite(rows),
    }


def _by_seed(row: Row) -> dict[str, dict[str, float]]:
    return {name: {str(seed): value for seed, value in of.items()} for name, of in row.values.items()}


def _pairs(comparison: Comparison, row: Row) -> dict[str, dict[str, dict[str, Any]]]:
    """Other row -> score -> the interval of the row's mean less the other's that counts so many ``test_images``, or
    ``clients``, over ``seeds``: of every two rows that can be paired by them, with the earlier of them, and of each
    with the untrained encoder, its own if that is another, and raw pixels.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    own = {row.began.name: row.began} if row.began is not None else {}
    baselines = [own.get(other.name, other) for other in comparison.rows if not other.trained]
    after = [*comparison.trained[comparison.trained.index(row) + 1 :], *baselines] if row.trained else []
    for other, measure in product(after, comparison.scores):
        apart = row.difference(other, measure)
        if apart is not None and isinstance(of := apart.drawn, DrawnInterval):
            seeds = [str(seed) for seed in row.common_seeds(other, measure)]
            numbers = {"seeds": seeds, "low": of.low, "high": of.high, of.of.replace(" ", "_"): of.count}
            found.setdefault(other.name, {})[measure] = numbers
    return found


# -- words -------------------------------------------------------------------------------------------------------------


def cells(comparison: Comparison) -> tuple[list[str], list[list[tuple[str, ...]]]]:
    """Head and rows of the table for readers; a cell has one to four lines: the mean, the difference with its
    interval over seeds, the interval that counts images or clients too, and its word.
    """
    shown = comparison.measures
    main = comparison.main
    clock = any(row.virtual_hours is not None for row in comparison.rows)
    private = any(row.epsilon is not None for row in comparison.rows)
    leaks = leaked(comparison)
    head = ["", *(measure.removeprefix("features/") for measure in shown), "MB/round", "MB total"]
    goal = goal_name(comparison)
    until = [f"90% of {main} gain", *([goal] if goal else [])] if main else []
    head += [f"MB to {what}" for what in until]
    head += ["virtual h", *(f"h to {what}" for what in until)] if clock else []
    head += ["epsilon"] if private else []
    head += ["leak AUC"] if leaks else []
    head += ["seconds"]
    rows = []
    for row in comparison.rows:
        numbers: list[str | tuple[str, ...]] = [megabytes(row.bytes_per_round), megabytes(row.bytes_total)]
        numbers += [megabytes(row.bytes_to(main))] if main else []
        cost = row.to_goal(comparison.first, main) if main else None
        numbers += [_until(cost, megabytes, "bytes")] if goal else []
        numbers += [_number(row.virtual_hours), *([_number(row.hours_to(main))] if main else [])] if clock else []
        numbers += [_until(cost, _number, "hours")] if clock and goal else []
        numbers += ["-" if row.epsilon is None else bounded(row.epsilon, 3)] if private else []
        numbers += [_area(leaks[row.name])] if leaks else []
        numbers += [_seconds(row.rounds_s)]
        measured = [_cell(m, row.spread(m), row.difference(comparison.first, m)) for m in shown]
        rows.append(
            [
                (marked(comparison, row),),
                *measured,
                *(cell if isinstance(cell, tuple) else (cell,) for cell in numbers),
            ]
        )
    return head, rows


def marked(comparison: Comparison, row: Row) -> str:
    """The row's name with marks: ``#`` other images, ``*`` other settings beyond the method, ``+`` another split, ``!``
    runs missing.
    """
    elsewhere, split = (of.get(row.name, []) for of in (comparison.other_images, comparison.other_splits))
    marks = [("#", elsewhere), ("*", row.differing), ("+", set(split) - set(elsewhere)), ("!", row.unfinished)]
    return printable(row.name) + "".join(mark for mark, holds in marks if holds)


def _cell(measure: str, found: Spread | None, to_first: Difference | None) -> tuple[str, ...]:
    """The mean, the difference, its intervals, and what it is called where the interval judged by contains zero."""
    if found is None:
        return ("-",)
    mean = fraction(found.mean) + ("" if found.deviation is None else f" ± {found.deviation:.3f}")
    if to_first is None:
        return (mean,)
    lines = [mean, signed(to_first.mean)]
    if to_first.low is not None and to_first.high is not None:
        lines[1] += f" {bounds(to_first.low, to_first.high)}"
    if isinstance(counted := to_first.drawn, DrawnInterval):
        lines.append(f"{WHAT[counted.of]} {bounds(counted.low, counted.high)}")
    if (word := to_first.judged(margin_of(measure))) in ("level", APART):
        lines.append(f"{word}, one seed" if to_first.count == 1 else word)
    return tuple(lines)


def _until(cost: GoalCost | None, shown: Callable[[float | None], str], of: Literal["bytes", "hours"]) -> str:
    """What it cost to reach the first row's goal, or, in words, that it was not reached."""
    return "-" if cost is None else cost.never or shown(cost.bytes if of == "bytes" else cost.hours)


def _area(area: Area | None) -> tuple[str, ...]:
    return ("-",) if area is None else (f"{area.auc:.3f}", f"[{area.low:.3f}, {area.high:.3f}]")


def megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.3g}" if count < 1e9 else f"{count / 1e6:,.0f}"


def _seconds(value: float | None) -> str:
    """Seconds, with a decimal for short runs: two of less than a second each need not be alike."""
    return "-" if value is None else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


# -- formats -----------------------------------------------------------------------------------------------------------


def markdown(comparison: Comparison, selection: Selection | None = None) -> str:
    """The table and its notes as GitHub's Markdown, beginning with the choice."""
    head, rows = cells(comparison)
    told = _notes_with_choice(comparison, selection)

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", r"\|") for text in texts) + " |"

    lines = [line(head), line(["---", *("---:" for _ in head[1:])])]
    lines += [line(["<br>".join(cell) for cell in row]) for row in rows]
    return "\n".join([*lines, "", *(f"- {_escaped(note)}" for note in told), ""])


def _notes_with_choice(comparison: Comparison, selection: Selection | None) -> list[str]:
    """The choice, followed by the notes."""
    said = [] if selection is None else [f"{printable(selection.sentence, 1000)}."]
    return [*said, *notes(comparison)]


def _escaped(note: str) -> str:
    return note.replace("*", r"\*").replace("_", r"\_").replace("<", "&lt;")


def latex(comparison: Comparison, selection: Selection | None = None) -> str:
    """The table as LaTeX with booktabs rules; differences and words have rows of their own, notes are comments."""
    head, rows = cells(comparison)
    lines = [r"% \usepackage{booktabs}", *(f"% {note}" for note in _notes_with_choice(comparison, selection))]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", _texed(head), r"\midrule"]
    for row in rows:
        lines.append(_texed([cell[0] for cell in row]))
        for line in range(1, max(map(len, row))):
            shown = [r"\scriptsize " + _tex(cell[line]) if len(cell) > line else "" for cell in row]
            lines.append(_texed(shown, escape=False))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _texed(texts: Sequence[str], *, escape: bool = True) -> str:
    return " & ".join(_tex(text) if escape else text for text in texts) + r" \\"


def _tex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)
