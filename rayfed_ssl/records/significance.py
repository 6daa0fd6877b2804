"""The words for a difference with a 95% interval, the same in every table, page and sentence."""

from __future__ import annotations

from typing import Literal

Judgement = Literal["above", "below", "level", "not told apart"]
MARGIN = 0.01
"""One point: what two shares differ by at most to be called level."""
APART: Judgement = "not told apart"


def judged(low: float, high: float, margin: float = MARGIN) -> Judgement:
    """``above`` or ``below`` where the interval excludes zero. Where it contains zero, ``level`` if it lies within
    ``margin`` of zero, so that what there may be of a difference is small; otherwise ``not told apart``: there may be
    one that was not shown. Where no difference but zero is small (``margin`` 0), nothing is level.
    """
    if low > 0:
        return "above"
    if high < 0:
        return "below"
    return "level" if 0 < margin >= max(-low, high) else APART


def partly_by_chance(count: int) -> str:
    """What a reader has to know of the best of ``count`` by the same values that then judge the others: it was picked
    for being highest, so that one as good may be told apart from it. Empty of two or fewer.
    """
    return f"the best of {count} is so partly by chance, and one as good may be told apart from it" if count > 2 else ""


def margin_of(measure: str) -> float:
    """What is small of a measure, named as in the records: one point of what lies between 0 and 1; of what describes
    features, which has no unit, nothing but zero.
    """
    return 0.0 if measure.startswith("features/") else MARGIN
