"""A comparison in one sentence: which row is first, who is level with it, who beats the untrained encoder.

A row is one of ``comparison.json``. Where a difference has no interval, as of one seed whose number of test images is
not known, or of one seed's areas and features, there is the difference and no word for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rayfed_ssl.base.text import printable
from rayfed_ssl.records.comparison import UNTRAINED, difference
from rayfed_ssl.records.comparison_choice import SMALLER, Order, in_order
from rayfed_ssl.report.formats import plural
from rayfed_ssl.report.measures import DESCRIBED, change, measure_name, shown, unit
from rayfed_ssl.report.verdict import BETTER, LEVEL_WITH, WORSE, Compared, Verdict, compared

BY_FEATURES = ("rankme", "uniformity", "alignment")  # without an accuracy, by the first of these
NOTHING = "Nothing was measured that could be compared."
Row = dict[str, Any]


def value_of(row: Mapping[str, Any], key: str) -> float | None:
    """The number that a row has under ``key``; None where it has none."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def by_seed(row: Row, measure: str) -> dict[str, float]:
    """Seed -> the row's value of a measure."""
    known = ((row.get("values") or {}).get(measure) or {}).items()
    return {seed: float(value) for seed, value in known if isinstance(value, int | float)}


def verdict(rows: Sequence[Row], scores: Sequence[str]) -> Verdict:
    """Which row is first by the first of ``scores`` that rows have, else by what describes features; whether others are
    level with it, and how many beat the untrained encoder.

    Rows on other images than the first row's are left out; which others are, and over which seeds the rows are
    ordered, :func:`in_order` says.
    """
    trained = [row for row in rows if row.get("runs") or row.get("unfinished")]
    alike = [row for row in trained if row.get("same_images") is not False]
    missing = {row["row"]: str(row.get("unfinished") or "").count(": ") for row in alike}
    for name in (*scores, *(f"{DESCRIBED}{feature}" for feature in BY_FEATURES)):
        values = {row["row"]: by_seed(row, name) for row in alike if not row.get("runs") or by_seed(row, name)}
        if any(values.values()):
            order = in_order(values, missing, smaller=name in SMALLER)
            return _of({row["row"]: row for row in rows}, order, name)
    return Verdict(NOTHING)


def against(row: Row, other: Row, name: str, seeds: Sequence[str]) -> Compared | None:
    """How ``row`` does beside ``other``, over those of ``seeds`` that both have: level is a 95% interval of the
    difference that holds zero.

    Of two seeds or more the interval is of the paired differences; of one seed it is what the number of test images
    allows, which knows nothing of the seed. None where no seed has both.
    """
    own, theirs = by_seed(row, name), by_seed(other, name)
    both = [seed for seed in seeds if seed in own and seed in theirs]
    if len(both) == 1:
        images = (row.get("test_images") or {}).get(name) or (other.get("test_images") or {}).get(name)
        return compared(own[both[0]], theirs[both[0]], images)
    found = difference([own[seed] - theirs[seed] for seed in both])
    return None if found is None else Compared(found.mean, found.low, found.high, plural(found.count, "seed"))


def _of(rows: Mapping[str, Row], order: Order, name: str) -> Verdict:
    less = "".join(f"; not ranked: {printable(row, 60)} ({count})" for row, count in order.left_out.items())
    described = name.startswith(DESCRIBED)
    opening = f"{'No accuracy was measured; by' if described else 'By'} {measure_name(name)}"
    if not order.means:
        return Verdict(f"{opening}, no row is first: they have no seed in common{less}.", None, name)
    best, *others = (rows[row] for row in order.means)
    first = next(iter(order.means.values()))
    text = f"{opening}, {printable(best['row'], 60)} is first of {len(order.means)} with {shown(name, first)}"
    text += f" over the {plural(len(order.seeds), 'seed')} that all have" if order.fewer else ""
    text += _next(best, others, order, name) + less
    base = rows.get(UNTRAINED, {})
    began = [value for seed, value in by_seed(base, name).items() if seed in order.seeds]
    if not began:
        return Verdict(f"{text}. {_rule(best, others, name, order.seeds)}".rstrip(), None, name)
    rule = _rule(best, [*others, base], name, order.seeds)
    if described:  # no better or worse
        text += f"; the untrained encoder has {shown(name, fmean(began))}"
        return Verdict(f"{text}. {rule}".rstrip(), None, name)
    found = [against(row, base, name, order.seeds) for row in (best, *others)]
    counts = {kind: sum(of is not None and of.kind == kind for of in found) for kind in (BETTER, LEVEL_WITH, WORSE)}
    told = "".join(
        f", {count} {word}"
        for kind, word in ((LEVEL_WITH, "level with it"), (WORSE, "worse"))
        if (count := counts[kind])
    )
    judged = f"{counts[BETTER]} of {len(found)} beat the untrained encoder ({shown(name, fmean(began))})"
    text += f"; {judged}{told}" if any(counts.values()) else f"; the untrained encoder has {shown(name, fmean(began))}"
    return Verdict(f"{text}. {rule}".rstrip(), None if found[0] is None else found[0].kind, name)


def _next(best: Row, others: Sequence[Row], order: Order, name: str) -> str:
    """Who is level with the first row, or how far the second is from it."""
    if not others:
        return ""
    found = {row["row"]: against(row, best, name, order.seeds) for row in others}
    level = [row for row, of in found.items() if of is not None and of.kind == LEVEL_WITH]
    if level:
        return f", and {plural(len(level), 'other')} {'is' if len(level) == 1 else 'are'} level with it"
    second = next(iter(found.values()))
    apart = order.means[best["row"]] - order.means[others[0]["row"]]
    how = "" if second is not None and second.kind is not None else ", no interval"
    after = printable(others[0]["row"], 60)
    if name in SMALLER:  # first is what is smallest
        return f", {change(name, apart)} to {after}{how}"
    return f", {change(name, apart).removeprefix('+')}{unit(name)} before {after}{how}"


def _rule(best: Row, others: Sequence[Row], name: str, seeds: Sequence[str]) -> str:
    """What level means here."""
    found = [of for row in others if (of := against(row, best, name, seeds)) is not None]
    if not found:
        return ""
    known = [of for of in found if of.kind is not None]
    if not known:
        return "One seed and no interval: what is apart may be so by chance."
    alone = "" if known[0].of.endswith(("seed", "seeds")) else "; of one seed, so another may order them otherwise"
    return f"Level: the 95 % interval of the difference over {known[0].of} holds zero{alone}."
