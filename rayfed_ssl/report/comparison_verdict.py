"""A comparison in one sentence: which row is first, which rows are not told apart from it, and how many beat the
untrained encoder and raw pixels.

A row is a row of ``comparison.json``. If a difference has no interval, the sentence gives the difference and no word
for it: for example with one seed whose number of test images is not known, or for areas and features of one seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rayfed_ssl.base.text import printable
from rayfed_ssl.records.comparison import BEFORE_TRAINING, RAW_PIXELS, UNTRAINED, difference
from rayfed_ssl.records.comparison_choice import SMALLER, Order, in_order
from rayfed_ssl.records.significance import APART, margin_of, partly_by_chance
from rayfed_ssl.report.formats import how_many
from rayfed_ssl.report.measures import DESCRIBED, change, measure_name, shown, small, unit
from rayfed_ssl.report.verdict import BETTER, LEVEL_WITH, WORDS, WORSE, Compared, Verdict, compared

BY_FEATURES = ("rankme", "uniformity", "alignment")  # without an accuracy, rows are ordered by the first that they have
NOTHING = "Nothing was measured that could be compared."
Row = dict[str, Any]


def value_of(row: Mapping[str, Any], key: str) -> float | None:
    """The number that a row has under ``key``; None if it has none."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def by_seed(row: Row, measure: str) -> dict[str, float]:
    """Seed -> the row's value of a measure."""
    known = ((row.get("values") or {}).get(measure) or {}).items()
    return {seed: float(value) for seed, value in known if isinstance(value, int | float)}


def verdict(rows: Sequence[Row], scores: Sequence[str]) -> Verdict:
    """Which row is first, how many others are level with it or not told apart from it, and how many beat the untrained
    encoder.

    The rows are ordered by the first of ``scores`` that any of them has, or else by what describes features. Rows on
    other images than the first row's are left out. :func:`in_order` chooses the seeds, and leaves out more rows.
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
    """Compare ``row`` with ``other`` over those of ``seeds`` that both have; None if there is no such seed.

    The interval is that of the differences paired by seed and by test image or client, if the comparison has it.
    Otherwise, for two seeds or more, it is that of the differences by seed; for one seed, it follows from the number
    of test images and takes the encoders' answers as independent.
    """
    own, theirs = by_seed(row, name), by_seed(other, name)
    both = [seed for seed in seeds if seed in own and seed in theirs]
    if (paired := _paired(row, other, name, both)) is not None:
        return paired
    if len(both) == 1:
        images = (row.get("test_images") or {}).get(name) or (other.get("test_images") or {}).get(name)
        return compared(own[both[0]], theirs[both[0]], images)
    by_seeds = difference([own[seed] - theirs[seed] for seed in both])
    if by_seeds is None:
        return None
    return Compared(by_seeds.mean, by_seeds.low, by_seeds.high, how_many(by_seeds.count, "seed"), margin_of(name))


def _paired(row: Row, other: Row, name: str, seeds: Sequence[str]) -> Compared | None:
    """Compare two rows by the interval that counts test images or clients, over exactly these seeds; None if the
    comparison has no such interval.
    """
    for a, b, sign in ((row, other, 1.0), (other, row, -1.0)):
        entry = ((a.get("pairs") or {}).get(b["row"]) or {}).get(name) or {}
        low, high = (value_of(entry, key) for key in ("low", "high"))
        counts = [(value_of(entry, key), noun) for key, noun in (("test_images", "test image"), ("clients", "client"))]
        known = [how_many(int(count), noun) for count, noun in counts if count is not None]
        if low is None or high is None or not known or entry.get("seeds") != list(seeds):
            continue
        over = known[0]
        over = over if len(seeds) == 1 else f"{how_many(len(seeds), 'seed')} and {over}"
        low, high = sorted((sign * low, sign * high))
        own, theirs = by_seed(row, name), by_seed(other, name)
        apart = fmean(own[seed] - theirs[seed] for seed in seeds)  # an interval that ends at 1 has another middle
        return Compared(apart, low, high, over, margin_of(name))
    return None


def _of(rows: Mapping[str, Row], order: Order, name: str) -> Verdict:
    """The verdict on rows in a known order: the first row, those next to it, and the rows that nobody trained for."""
    less = "".join(f"; not ranked: {printable(row, 60)} ({count})" for row, count in order.left_out.items())
    described = name.startswith(DESCRIBED)
    opening = f"{'No accuracy was measured; by' if described else 'By'} {measure_name(name)}"
    if not order.means:
        return Verdict(f"{opening}, no row is first: they have no seed in common{less}.", None, name)
    best, *others = (rows[row] for row in order.means)
    first = next(iter(order.means.values()))
    text = f"{opening}, {printable(best['row'], 60)} is first of {len(order.means)} with {shown(name, first)}"
    text += f" over the {how_many(len(order.seeds), 'seed')} that all have" if order.fewer else ""
    text += _next(best, others, order, name) + less
    before = next((row for row in BEFORE_TRAINING if row in rows), UNTRAINED)
    base = rows.get(before, {})
    began = [value for seed, value in by_seed(base, name).items() if seed in order.seeds]
    if not began:
        return Verdict(f"{text}. {_rule(best, others, name, order.seeds, len(order.means))}".rstrip(), None, name)
    rule = _rule(best, [*others, _began(best, base)], name, order.seeds, len(order.means))
    if described:  # no better or worse
        text += f"; the {before} has {shown(name, fmean(began))}"
        return Verdict(f"{text}. {rule}".rstrip(), None, name)
    differences = [against(row, _began(row, base), name, order.seeds) for row in (best, *others)]
    own = " of the first row; each is compared with its own" if any(row.get("began") for row in (best, *others)) else ""
    text += _beside(differences, f"the {before}", "it", shown(name, fmean(began)) + own)
    pixels = rows.get(RAW_PIXELS, {})
    if worth := [value for seed, value in by_seed(pixels, name).items() if seed in order.seeds]:
        beside = [against(row, pixels, name, order.seeds) for row in (best, *others)]
        text += _beside(beside, "raw pixels", "them", shown(name, fmean(worth)))
    kinds = {
        None if of is None else of.kind for of in differences
    }  # of all rows: one that is better is not the comparison
    return Verdict(f"{text}. {rule}".rstrip(), kinds.pop() if len(kinds) == 1 else None, name)


def _began(row: Row, base: Row) -> Row:
    """The encoder before training of a row: its own, where that is not ``base``."""
    return base if row.get("began") is None else {**base, "values": row["began"]}


def _beside(found: Sequence[Compared | None], whose: str, it: str, value: str) -> str:
    """How many rows beat a row that nobody trained for, how many are level with it, and so on. If no row has an
    interval, only the ``value`` of the other row.
    """
    counts = {kind: sum(of is not None and of.kind == kind for of in found) for kind in WORDS}
    words = ((LEVEL_WITH, f"level with {it}"), (APART, f"not told apart from {it}"), (WORSE, "worse"))
    told = "".join(f", {count} {word}" for kind, word in words if (count := counts[kind]))
    if any(counts.values()):
        return f"; {counts[BETTER]} of {len(found)} beat {whose} ({value}){told}"
    return f"; {whose} {'has' if it == 'it' else 'have'} {value}"


def _next(best: Row, others: Sequence[Row], order: Order, name: str) -> str:
    """How many rows are level with the first row or not told apart from it; if none are, the distance to the second."""
    if not others:
        return ""
    differences = {row["row"]: against(row, best, name, order.seeds) for row in others}
    kinds = [of.kind for of in differences.values() if of is not None]
    counts = [(kind, kinds.count(kind)) for kind in (LEVEL_WITH, APART) if kind in kinds]
    if counts:
        parts = [f"{count} {'is' if count == 1 else 'are'} {WORDS[kind]} it" for kind, count in counts]
        return f"; of the others {' and '.join(parts)}"
    second = next(iter(differences.values()))
    apart = order.means[best["row"]] - order.means[others[0]["row"]]
    how = "" if second is not None and second.kind is not None else ", no interval"
    after = printable(others[0]["row"], 60)
    if name in SMALLER:  # first is what is smallest
        return f", {change(name, apart)} to {after}{how}"
    return f", {change(name, apart).removeprefix('+')}{unit(name)} before {after}{how}"


def _rule(best: Row, others: Sequence[Row], name: str, seeds: Sequence[str], ranked: int) -> str:
    """What the words mean here, and what the interval does not count. ``best`` is the first of ``ranked`` rows."""
    differences = [of for row in others if (of := against(row, best, name, seeds)) is not None]
    if not differences:
        return ""
    known = [of for of in differences if of.kind is not None]
    if not known:
        why = (
            "One seed and no interval"
            if len(seeds) < 2
            else "All seeds in common differ alike, so there is no interval"
        )
        return f"{why}: what is apart may be so by chance."
    over, margin = known[0].of, known[0].margin
    seeds_alone = [of.of for of in known if of.of.endswith(("seed", "seeds"))]
    if not seeds_alone:
        beyond = "" if " and " in over else "; of one seed, so another may order them otherwise"
    else:
        beyond = "; it counts seeds, not which test images were drawn" if margin else ""
        if over != seeds_alone[0] and not over.endswith(("seed", "seeds")):
            lacking = "beside those that have none" if "client" in over else "where no answers image by image are kept"
            over += f" (over {seeds_alone[0]} alone {lacking})"
            beyond = ""
    holds = f"the 95 % interval of the difference over {over} contains zero"
    if chance := partly_by_chance(ranked):
        beyond += f". {chance[0].upper()}{chance[1:]}"
    if not margin:
        return f"Not told apart: {holds}{beyond}."
    near = f"Level: {holds} and lies within {small(name, margin)}; not told apart: it contains zero and reaches further"
    return f"{near}{beyond}."
