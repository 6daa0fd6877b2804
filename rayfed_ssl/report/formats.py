"""Formats numbers for a page: shares as per cent, counts of bytes, durations, all short enough for a table."""

from __future__ import annotations

import math

from rayfed_ssl.base.text import amount, bounded, printable, signed
from rayfed_ssl.base.text import bounds as plain_bounds

ABSENT = "–"


def percent(share: float | None) -> str:
    """``0.8412`` as ``84.1 %``. A share that is neither 0 nor 1 and would be rounded to one of them is ``<0.1 %`` or
    ``>99.9 %``.
    """
    if share is None or not math.isfinite(share):
        return ABSENT
    text = f"{100 * share:.1f} %"
    if text == "0.0 %" and share > 0:
        return "<0.1 %"
    return ">99.9 %" if text == "100.0 %" and share < 1 else text


def points(difference: float | None) -> str:
    """A difference of shares in percentage points, with its sign."""
    if difference is None or not math.isfinite(difference):
        return ABSENT
    return signed(100 * difference, ".1f").replace("-", "−")


def bounds(low: float, high: float) -> str:
    """``[+1.2, +4.5]`` in percentage points; with more decimals if a bound that is not zero would read as zero."""
    return plain_bounds(100 * low, 100 * high, 1).replace("-", "−")


def number(value: float | None) -> str:
    """Four significant digits; whole numbers in full, with commas."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    return f"{value:,.4g}".replace("-", "−")


def upper(bound: float | None) -> str:
    """An upper bound, such as an epsilon, in four significant digits, rounded up."""
    return ABSENT if bound is None or not math.isfinite(bound) else bounded(bound)


def size(count: float | None) -> str:
    """Bytes in units of a thousand (kB, MB, ..)."""
    return ABSENT if count is None or not math.isfinite(count) else amount(count)


def span(seconds: float | None) -> str:
    """Seconds as ``42 s``, ``3 min 20 s``, ``2 h 05 min``, ``3 d 4 h``."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def how_many(count: int, noun: str) -> str:
    """``1,200 clients``, ``1 client``: for nouns whose plural ends with s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(name: str, longest: int = 14) -> str:
    """A name that fits beside an axis: at most ``longest`` characters."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def words(value: object) -> str:
    """A setting on one line."""
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return printable(", ".join(words(item) for item in value))
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return printable(value)
