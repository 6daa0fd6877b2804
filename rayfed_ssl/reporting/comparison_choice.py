"""Which row of a comparison is best by a measure that reads no test label: effective rank, or held-out images."""

from __future__ import annotations

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.evaluation import PROTOCOLS, Protocol
from rayfed_ssl.reporting.comparison import Comparison, Row

SMALLER = ("features/alignment", "features/uniformity")  # the better
PREFIXES = {"select": "held-out labels", "features": "no labels"}


def named(asked: str) -> str:
    """The measure that ``asked`` names, known before anything has run. Raises UserError for what is none."""
    described = [name for row in PROTOCOLS.values() if isinstance(row, Protocol) for name in row.describes]
    if asked in described:
        return f"features/{asked}"
    if asked.startswith("select.") and asked.count(".") == 1:
        return asked.replace(".", "/")
    raise UserError(f"--select: found {printable(asked)!r}; allowed: {', '.join(described)}, select.PROTOCOL")


def choice(comparison: Comparison, asked: str) -> str:
    """The best row by a measure in one sentence, and the rows that are level with it; rows on other images than the
    first row's are left out.

    Level is a 95% interval of the paired difference over seeds that holds zero; of one seed there is none.

    Args:
        asked: ``rankme``, ``uniformity`` or ``alignment``, or ``select.PROTOCOL``.
    Raises:
        UserError: the rows have no such measure, or it reads test labels.
    """
    measure = named(asked)
    allowed = [name for name in comparison.measures if name.partition("/")[0] in PREFIXES and name.count("/") == 1]
    alike = [row for row in comparison.trained if row.name not in comparison.other_images]
    rows = [row for row in alike if row.values.get(measure)]
    if measure not in allowed or not rows:
        known = ", ".join(name.removeprefix("features/").replace("/", ".") for name in allowed)
        missing = "nothing without test labels: name rank in evaluation.protocols, or set evaluation.select"
        raise UserError(f"--select: found {printable(asked)}; these runs have {known or missing}")
    sign = -1.0 if measure in SMALLER else 1.0
    means = {row.name: sum(row.values[measure].values()) / len(row.values[measure]) for row in rows}
    best = max(rows, key=lambda row: sign * means[row.name])
    told = f"chosen by {asked}, by {PREFIXES[measure.partition('/')[0]]}: {best.name} ({means[best.name]:.4g})"
    if len(rows) == 1:
        return told
    if all(len(row.values[measure]) == 1 for row in rows):
        return f"{told}; of one seed each, so differences may be chance"
    level = [row.name for row in rows if row is not best and _level(row, best, measure)]
    return f"{told}; level with it: {', '.join(level)}" if level else f"{told}; no other is level with it"


def _level(row: Row, best: Row, measure: str) -> bool:
    """Whether the difference may be chance; without two common seeds nothing says that it is not."""
    found = row.difference(best, measure)
    return found is None or found.low is None or found.high is None or found.low <= 0 <= found.high
