"""The report of a comparison: from ``comparison.json``, and the run folders it names, to the sections of a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.report.formats import bounds, number, percent, plural, points, size, span
from rayfed_ssl.report.page import Cell, Page, Section, Table, write
from rayfed_ssl.report.style import GRID, INK, MUTED, SERIES, Drawing, Studio, lines, logarithmic
from rayfed_ssl.report.verdict import BETTER, LEVEL_WITH, WORSE, Compared, Verdict, compared, protocol_name
from rayfed_ssl.reporting.comparison import RAW_PIXELS, UNTRAINED, OneRun, difference, ordered, read_run, spread
from rayfed_ssl.reporting.comparison_choice import Order, in_order

FILE = "comparison.json"
SPREAD = 20.0  # of bytes, from which on their axis is logarithmic
CURVES = 8  # the most rows in one figure of curves
Row = dict[str, Any]


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
    measures = [name for name in document.get("measures") or () if isinstance(name, str) and "/" not in name]
    scores = ordered([name for name in measures if any(_value(row, f"{name}.mean") is not None for row in trained)])
    runs = {row["row"]: _runs(folder, row, notes) for row in trained}
    seeds = document.get("seeds") or []
    facts = [plural(len(trained), "row"), plural(len(seeds), "seed"), f"first: {printable(document.get('first'), 60)}"]
    section = Section("accuracy", "Accuracy", tables=[_table(rows, scores)] if scores else [])
    section.drawings += [_dots(studio, rows, name) for name in scores]
    over = Section("curves", "Over rounds and bytes", drawings=_curves(studio, trained, scores, runs))
    costs = Section("costs", "Costs", tables=[_costs(rows, scores)])
    sections = [section, over, costs, Section("notes", "Notes", notes=notes)]
    return write(Page("Comparison", folder.resolve().name, facts, verdict(rows, scores), (), sections), folder)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        list(document["rows"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error!r}); the comparison's records are damaged") from None
    return dict(document)


def _runs(folder: Path, row: Row, notes: list[str]) -> list[OneRun]:
    """The row's runs, as far as their folders are where they were."""
    found = []
    for seed in (row.get("seeds") or {}).values():
        try:
            found.append(read_run(folder / str(seed["folder"])))
        except (UserError, OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
            notes.append(f"{printable(row['row'], 60)}: a run has no curve ({printable(' '.join(str(error).split()))})")
    return found


def _value(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# -- words -------------------------------------------------------------------------------------------------------------


def verdict(rows: Sequence[Row], scores: Sequence[str]) -> Verdict:
    """Which row is first by the main measure, whether others are level with it, and how many beat the untrained one.
    Rows on other images than the first row's are left out; which others are, and over which seeds the rows are
    ordered, :func:`in_order` says.
    """
    trained = [row for row in rows if row.get("runs") or row.get("unfinished")]
    alike = [row for row in trained if row.get("same_images") is not False]
    for name in scores:
        values = {row["row"]: _by_seed(row, name) for row in alike if not row.get("runs") or _by_seed(row, name)}
        if any(values.values()):
            order = in_order(values, {row["row"]: str(row.get("unfinished") or "").count(": ") for row in alike})
            return _of({row["row"]: row for row in rows}, order, name)
    return Verdict("Nothing was measured that could be compared.")


def _by_seed(row: Row, name: str) -> dict[str, float]:
    known = ((row.get("values") or {}).get(name) or {}).items()
    return {seed: float(value) for seed, value in known if isinstance(value, int | float)}


def against(row: Row, other: Row, name: str, seeds: Sequence[str]) -> Compared | None:
    """How ``row`` does beside ``other``, over those of ``seeds`` that both have: level is a 95% interval of the
    difference that holds zero.

    Of two seeds or more the interval is of the paired differences; of one seed it is what the number of test images
    allows, which knows nothing of the seed. None where no seed has both.
    """
    own, theirs = _by_seed(row, name), _by_seed(other, name)
    both = [seed for seed in seeds if seed in own and seed in theirs]
    if len(both) == 1:
        images = (row.get("test_images") or {}).get(name) or (other.get("test_images") or {}).get(name)
        return compared(own[both[0]], theirs[both[0]], images)
    found = difference([own[seed] - theirs[seed] for seed in both])
    if found is None or found.low is None or found.high is None:
        return None
    kind = LEVEL_WITH if found.level else BETTER if found.mean > 0 else WORSE
    return Compared(kind, found.mean, found.low, found.high, plural(found.count, "seed"))


def _of(rows: Mapping[str, Row], order: Order, name: str) -> Verdict:
    less = "".join(f"; not ranked: {printable(row, 60)} ({count})" for row, count in order.left_out.items())
    if not order.means:
        return Verdict(f"By {protocol_name(name)}, no row is first: they have no seed in common{less}.", None, name)
    best, *others = (rows[row] for row in order.means)
    first, *means = order.means.values()
    text = (
        f"By {protocol_name(name)}, {printable(best['row'], 60)} is first of {len(order.means)} with {percent(first)}"
    )
    text += f" over the {plural(len(order.seeds), 'seed')} that all have" if order.fewer else ""
    level = [row for row in others if (of := against(row, best, name, order.seeds)) is None or of.kind == LEVEL_WITH]
    if level:
        text += f", and {plural(len(level), 'other')} {'is' if len(level) == 1 else 'are'} level with it"
    elif others:
        text += f", {100 * (first - means[0]):.1f} points before {printable(others[0]['row'], 60)}"
    text += less
    base = rows.get(UNTRAINED, {})
    began = [value for seed, value in _by_seed(base, name).items() if seed in order.seeds]
    if not began:
        return Verdict(f"{text}. {_rule(best, others, name, order.seeds)}".rstrip(), None, name)
    found = [against(row, base, name, order.seeds) for row in (best, *others)]
    counts = {kind: sum(of is not None and of.kind == kind for of in found) for kind in (BETTER, LEVEL_WITH, WORSE)}
    told = ", ".join(
        f"{count} {word}" for kind, word in ((LEVEL_WITH, "level with it"), (WORSE, "worse")) if (count := counts[kind])
    )
    text += f"; {counts[BETTER]} of {len(found)} beat the untrained encoder ({percent(fmean(began))})"
    text += f", {told}" if told else ""
    kind = None if found[0] is None else found[0].kind
    return Verdict(f"{text}. {_rule(best, [*others, base], name, order.seeds)}".rstrip(), kind, name)


def _rule(best: Row, others: Sequence[Row], name: str, seeds: Sequence[str]) -> str:
    """What level means here."""
    of = next((found for row in others if (found := against(row, best, name, seeds)) is not None), None)
    if of is None:
        return ""
    if not of.interval:
        return "One seed and no interval: below one point is called level."
    alone = "" if of.of.endswith(("seed", "seeds")) else "; of one seed, so another may order them otherwise"
    return f"Level: the 95 % interval of the difference over {of.of} holds zero{alone}."


def _table(rows: Sequence[Row], scores: Sequence[str]) -> Table:
    body = []
    for place, row in enumerate(rows):
        cells = [Cell(printable(row["row"], 60))]
        for name in scores:
            value, apart = _value(row, f"{name}.mean"), _value(row, f"{name}.difference")
            deviation, low, high = (_value(row, f"{name}.{key}") for key in ("deviation", "low", "high"))
            note = "" if deviation is None else f"± {100 * deviation:.1f}"
            if apart is not None:
                within = "" if low is None or high is None else f" {bounds(low, high)}"
                note = f"{note} · {points(apart)}{within}".removeprefix(" · ")
            cells.append(Cell(percent(value), value, f"rows/{place}/{name}.mean", note))
        body.append(cells)
    caption = "Accuracy of the last round: mean over seeds ± deviation, difference to the first row [95 % interval]"
    return Table(caption, ["", *(protocol_name(name) for name in scores)], body)


def _costs(rows: Sequence[Row], scores: Sequence[str]) -> Table:
    main = scores[0] if scores else ""
    columns = {
        "bytes": ("bytes_total", size), "per round": ("bytes_per_round", size),
        f"to 90 % of {protocol_name(main)} gain": (f"bytes_to_90.{main}", size),
        "virtual hours": ("virtual_hours", number), "epsilon": ("epsilon", number),
        "time of rounds": ("rounds_s", span),
    }  # fmt: skip
    shown = {head: of for head, of in columns.items() if any(_value(row, of[0]) is not None for row in rows)}
    body = [
        [
            Cell(printable(row["row"], 60)),
            *(Cell(f(_value(row, key)), _value(row, key), f"rows/{place}/{key}") for key, f in shown.values()),
        ]
        for place, row in enumerate(rows)
        if row.get("runs")
    ]
    return Table("What it cost: bytes of all clients, up and down", ["", *shown], body)


# -- figures -----------------------------------------------------------------------------------------------------------


def _dots(studio: Studio, rows: Sequence[Row], name: str) -> Drawing:
    """Every row's mean, and its seeds, in the order of the means; the baselines are level lines."""
    known = [row for row in rows if row.get("runs") and _value(row, f"{name}.mean") is not None]
    known.sort(key=lambda row: -(_value(row, f"{name}.mean") or 0.0))
    told = ", ".join(f"{printable(row['row'], 40)} {percent(_value(row, f'{name}.mean'))}" for row in known)
    base = {row["row"]: v for row in rows if not row.get("runs") and (v := _value(row, f"{name}.mean")) is not None}
    return studio.draw(
        f"comparison_{name}", protocol_name(name), lambda f: _paint_dots(f, known, name, base),
        alt=f"{protocol_name(name)} accuracy by row, the highest first: {told}.",
        caption=_dots_caption(known, name, base),
        height=min(0.8 + 0.19 * len(known), 6.0),
    )  # fmt: skip


def _dots_caption(known: Sequence[Row], name: str, base: Mapping[str, float]) -> str:
    """What the marks mean that are drawn."""
    said = ["Large: the mean; small: each seed."] if any(len(_seeds(row, name)) > 1 for row in known) else []
    lines = {UNTRAINED: "Dashed: the untrained encoder.", RAW_PIXELS: "Dotted: raw pixels."}
    return " ".join(said + [line for label, line in lines.items() if label in base])


def _seeds(row: Row, name: str) -> list[float]:
    return [v for v in ((row.get("values") or {}).get(name) or {}).values() if isinstance(v, int | float)]


def _paint_dots(figure: Figure, known: Sequence[Row], name: str, base: Mapping[str, float]) -> None:
    axes = figure.add_subplot()
    for label, style in ((UNTRAINED, (0, (4, 2))), (RAW_PIXELS, ":")):
        if label in base:
            axes.axvline(100 * base[label], color=MUTED, linestyle=style, linewidth=0.9)
    for place, row in enumerate(known):
        seeds = _seeds(row, name)
        if len(seeds) > 1:
            axes.plot([100 * v for v in seeds], [place] * len(seeds), "o", markersize=2.4, color=INK, alpha=0.5)
        axes.plot(100 * (_value(row, f"{name}.mean") or 0.0), place, "o", markersize=5, color=SERIES[0], zorder=3)
    axes.set_yticks(range(len(known)), [printable(row["row"], 28) for row in known])
    axes.set(xlabel="accuracy (%)", ylim=(len(known) - 0.4, -0.6))
    axes.grid(axis="y", color=GRID)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _curves(
    studio: Studio, trained: Sequence[Row], scores: Sequence[str], runs: Mapping[str, Sequence[OneRun]]
) -> list[Drawing]:
    """Accuracy over rounds and over bytes of the rows with the highest means, means over seeds."""
    found = []
    best = sorted(trained, key=lambda row: -(_value(row, f"{scores[0]}.mean") or 0.0)) if scores else []
    for name in scores[:2]:
        names = [row["row"] for row in best if any(len(run.curves.get(name, {})) > 1 for run in runs[row["row"]])]
        if not names:
            continue
        shown = names[:CURVES]
        over = {printable(row, 20): _over(runs[row], name, None) for row in shown}
        sent = {printable(row, 20): _over(runs[row], name, 1e6) for row in shown}
        few = f" The first {CURVES} of {len(names)} rows." if len(names) > CURVES else ""
        for key, what, label, values in (("rounds", "rounds", "round", over), ("bytes", "bytes", "MB", sent)):
            drawn = [row for row, line in values.items() if line]
            if drawn:
                drawing = studio.draw(
                    f"comparison_{name}_{key}",
                    f"{protocol_name(name)} over {what}",
                    lambda f, v=values, x=label: _paint_curves(f, v, x),  # type: ignore[misc]
                    alt=f"{protocol_name(name)} accuracy over {what} of {', '.join(drawn)}.",
                    caption=f"Means over seeds.{few}",
                    height=2.9,
                )
                found.append(drawing)
    return found


def _over(runs: Sequence[OneRun], name: str, unit: float | None) -> dict[float, float]:
    """x -> mean accuracy in per cent over seeds, of the rounds that all runs evaluated; x: round, or bytes / unit."""
    common = set.intersection(*(set(run.curves.get(name, {})) for run in runs)) if runs else set()
    points_: dict[float, float] = {}
    for t in sorted(common):
        mean = spread([run.curves[name][t] for run in runs])
        sent = spread([float(run.bytes_until(t)) for run in runs])
        if mean is not None and sent is not None and (unit is None or sent.mean > 0):
            points_[float(t) if unit is None else sent.mean / unit] = 100 * mean.mean
    return points_


def _paint_curves(figure: Figure, values: dict[str, dict[float, float]], label: str) -> None:
    axes = lines(figure, values, xlabel=label, ylabel="accuracy (%)")
    places = [x for points_ in values.values() for x in points_]
    if label == "MB" and max(places) > SPREAD * min(places):
        logarithmic(axes.xaxis)
