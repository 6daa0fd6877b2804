"""Orders the rows of a comparison over the seeds that all rows have, and chooses one by a measure without test
labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import four_digits, printable
from rayfed_ssl.evaluation import PROTOCOLS, Protocol
from rayfed_ssl.records.comparison import Comparison, Row, difference
from rayfed_ssl.records.significance import APART, Judgement, margin_of, partly_by_chance

SMALLER = ("features/alignment", "features/uniformity")  # the better
FILE = "comparison.json"
PREFIXES = {"select": "held-out labels", "features": "no labels"}


@dataclass(frozen=True)
class Order:
    """``means``: row -> mean over ``seeds``, which all of these rows have, the best first; empty if they share no seed.
    ``fewer``: whether some rows have further seeds, too. ``left_out``: row -> ``1 of 3 seeds``.
    """

    means: dict[str, float]
    seeds: tuple[str, ...]
    fewer: bool
    left_out: dict[str, str]


def in_order(values: Mapping[str, Mapping[str, float]], missing: Mapping[str, int], *, smaller: bool = False) -> Order:
    """Rows by their means over the seeds that all have: a seed's split and first values move every row's value.

    A row with runs that diverged or have not ended is left out if other rows are complete, because the runs that ended
    may be those that went well.

    Args:
        values: row -> seed -> value; empty for a row without a complete run.
        missing: row -> how many of its runs are not complete.
        smaller: whether smaller values are better.
    """
    known = [row for row, of_seeds in values.items() if of_seeds]
    ranked = [row for row in known if not missing[row]] or known
    counts = {row: f"{len(values[row])} of {len(values[row]) + missing[row]} seeds" for row in values}
    seeds = [seed for seed in values[ranked[0]] if all(seed in values[row] for row in ranked)] if ranked else []
    means = {row: fmean(values[row][seed] for seed in seeds) for row in ranked} if seeds else {}
    return Order(
        dict(sorted(means.items(), key=lambda item: item[1] if smaller else -item[1])),
        tuple(seeds),
        any(len(values[row]) > len(seeds) for row in ranked),
        {row: count for row, count in counts.items() if row not in ranked},
    )


def named(asked: str) -> str:
    """The measure that ``asked`` names; it is checked before anything has run. Raises UserError if it is not a
    measure.
    """
    described = [name for row in PROTOCOLS.values() if isinstance(row, Protocol) for name in row.describes]
    if asked in described:
        return f"features/{asked}"
    head, *rest = re.split(r"[./]", asked)  # select/knn as the table's head has it, too
    if head == "select" and len(rest) == 1:
        return f"select/{rest[0]}"
    raise UserError(f"--select: found {printable(asked)!r}; allowed: {', '.join(described)}, select.PROTOCOL")


@dataclass(frozen=True)
class Selection:
    """What a measure without test labels chose. ``measure``: as in the records; ``labels``: the labels that it reads.
    ``row``: the best row, with its ``mean`` over ``seeds``; None if the rows have no seed in common, or no longer have
    the measure that chose before. ``level``: the rows that are level with it; ``not_told_apart``: those not told apart
    from it. Both are None with one seed, which cannot say. ``left_out``: row -> ``1 of 3 seeds``.
    """

    asked: str
    measure: str
    labels: str
    row: str | None
    mean: float | None
    seeds: tuple[str, ...]
    level: tuple[str, ...] | None
    not_told_apart: tuple[str, ...] | None
    left_out: dict[str, str]
    sentence: str


def selected(comparison: Comparison, asked: str | None, folder: Path | None) -> Selection | None:
    """The choice by ``asked`` or, without it, by the measure that chose before, according to ``comparison.json`` in
    ``folder``, so that tables that are written again keep their answer. None if nothing chose. If these rows lack the
    measure that chose before, there is no row, and the sentence says so; the measure is kept, so that rows that have it
    later are chosen from.

    Raises:
        UserError: as :func:`choice`, of ``asked``.
    """
    if asked is not None:
        return choice(comparison, asked)
    before = None if folder is None else asked_before(folder)
    if before is None:
        return None
    measure, (_, known) = named(before), _offered(comparison)
    if measure in known:
        return choice(comparison, before)
    told = f"no row is chosen: --select was {before} before, and these runs have {_of_these(known)}"
    labels, left_out = PREFIXES[measure.partition("/")[0]], dict[str, str]()
    return Selection(before, measure, labels, None, None, (), None, None, left_out, told)


def asked_before(folder: Path) -> str | None:
    """The measure by which a row was chosen; None if there is none, or if the file is missing or damaged: it is about
    to be replaced.
    """
    try:
        asked = str(json.loads((folder / FILE).read_text(encoding="utf-8"))["selection"]["asked"])
        named(asked)
    except (OSError, ValueError, LookupError, TypeError, UserError):
        return None
    return asked


def _offered(comparison: Comparison) -> tuple[list[Row], list[str]]:
    """The rows to choose from, which are on the first row's images, and the measures without test labels that they
    have.
    """
    alike = [row for row in comparison.trained if row.name not in comparison.other_images]
    read = [name for name in comparison.measures if name.partition("/")[0] in PREFIXES and name.count("/") == 1]
    return alike, [name for name in read if any(row.values.get(name) for row in alike)]


def _of_these(known: Sequence[str]) -> str:
    """The measures that a choice could use, as written for ``--select``, or what to set so that there are some."""
    names = ", ".join(name.removeprefix("features/").replace("/", ".") for name in known)
    return names or (
        "nothing without test labels: name rank in evaluation.protocols, or, with labels, set evaluation.select"
    )


def choice(comparison: Comparison, asked: str) -> Selection:
    """The best row by a measure, and the rows whose paired differences to it over seeds have an interval that contains
    zero; with one seed there is no interval. Rows on other images than the first row's are left out, and those that
    :func:`in_order` leaves out are named.

    Args:
        asked: ``rankme``, ``uniformity`` or ``alignment``, or ``select.PROTOCOL``.
    Raises:
        UserError: the rows have no such measure, or it reads test labels.
    """
    measure = named(asked)
    alike, known = _offered(comparison)
    if measure not in known:
        raise UserError(f"--select: found {printable(asked)}; these runs have {_of_these(known)}")
    values = {
        row.name: {str(seed): value for seed, value in row.values.get(measure, {}).items()}
        for row in alike
        if row.values.get(measure) or not row.runs
    }
    found = in_order(values, {row.name: len(row.unfinished) for row in alike}, smaller=measure in SMALLER)
    best, *others = found.means or [None]
    level = open_ = None
    if best is not None and len(found.seeds) > 1:
        words = {row: _word(values[row], values[best], found.seeds, measure) for row in others if row is not None}
        level, open_ = (tuple(row for row, own in words.items() if own == word) for word in ("level", APART))
    labels = PREFIXES[measure.partition("/")[0]]
    mean = None if best is None else found.means[best]
    told = _sentence(asked, labels, found, level, open_)
    return Selection(asked, measure, labels, best, mean, found.seeds, level, open_, found.left_out, told)


def _sentence(asked: str, labels: str, found: Order, level: Sequence[str] | None, open_: Sequence[str] | None) -> str:
    by = f"chosen by {asked}, by {labels}"
    less = "".join(f"; not ranked: {name} ({count})" for name, count in found.left_out.items())
    if not found.means:
        return f"{by}: none, because the rows have no seed in common{less}"
    best, count = next(iter(found.means)), len(found.seeds)
    over = f" over {count} seed{'s' if count > 1 else ''} that all have" if found.fewer else ""
    told = f"{by}: {best} ({four_digits(found.means[best])}{over})"
    if len(found.means) > 1:
        if level is None or open_ is None:
            told += "; of one seed, so differences may be chance"
        else:
            told += f"; level with it: {', '.join(level)}" if level else ""
            told += f"; not told apart from it: {', '.join(open_)}" if open_ else ""
            told += "" if level or open_ else "; every other is told apart from it"
            told += f"; {chance}" if (chance := partly_by_chance(len(found.means))) else ""
    return told + less


def _word(own: Mapping[str, float], best: Mapping[str, float], seeds: Sequence[str], measure: str) -> Judgement | None:
    """The word for the paired differences over ``seeds``."""
    found = difference([own[seed] - best[seed] for seed in seeds])
    return None if found is None else found.judged(margin_of(measure))
