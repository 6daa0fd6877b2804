"""The report's table of accuracies: each protocol with the raw pixels, the untrained encoder and the last round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayfed_ssl.records.comparison import ordered
from rayfed_ssl.report.formats import how_many
from rayfed_ssl.report.measures import change, protocol_name, shown
from rayfed_ssl.report.page import Cell, HtmlTable
from rayfed_ssl.report.verdict import clients_images, compared, mean, pairs, test_images


def accuracy_table(summary: Mapping[str, Any], caption: str, began: str, *, keys: bool = True) -> HtmlTable | None:
    """A row for each accuracy of ``summary``, a run's or one of the same form; None if it has no accuracy.

    Args:
        began: what the encoder before training is called.
        keys: whether ``summary`` is the folder's own ``summary.json``, so that cells refer to its keys.
    """
    rows = [_row(summary, name, keys) for name in ordered(list(summary.get("accuracy") or {}))]
    head = ["protocol", "raw pixels", began, "last round", "difference [95 %]"]
    if best := bool(summary.get("best")):
        head.append("best round")
    return HtmlTable(caption, head, [row if best else row[:-1] for row in rows]) if rows else None


def accuracy_cell(summary: Mapping[str, Any], block: str, protocol: str, keys: bool = True) -> Cell:
    """One accuracy of the summary; if each client has one, their mean, with the smallest and the largest as a note."""
    value = (summary.get(block) or {}).get(protocol)
    average, note = mean(value), ""
    if isinstance(value, Mapping):
        known = [v for v in value.values() if v is not None]
        note = f"{shown(protocol, min(known))} to {shown(protocol, max(known))}" if len(set(known)) > 1 else ""
    return Cell(shown(protocol, average), average, f"{block}/{protocol}" if keys else "", note)


def _row(summary: Mapping[str, Any], name: str, keys: bool) -> list[Cell]:
    """The cells of one protocol."""
    last, began, best = ((summary.get(block) or {}).get(name) for block in ("accuracy", "untrained", "best"))
    result = compared(last, began, test_images(summary, name), pairs(summary, "untrained", name))
    apart, chosen = Cell("–"), Cell("–")
    if result is not None:
        apart = Cell(change(name, result.mean), note=f"{result.kind or ''} {result.interval(name)}".strip())
    if isinstance(best, Mapping) and isinstance(best.get("value"), int | float):
        note = f"round {best.get('round')}, by {best.get('by', 'test labels')}"
        chosen = Cell(shown(name, best["value"]), best["value"], f"best/{name}/value", note)
    values = [accuracy_cell(summary, block, name, keys) for block in ("pixels", "untrained", "accuracy")]
    return [Cell(protocol_name(name), note=images_each(clients_images(summary, name))), *values, apart, chosen]


def images_each(of: Mapping[int, int]) -> str:
    """On how many of its own images each client was measured, in words; "" if that is not known."""
    if not of:
        return ""
    low, high = min(of.values()), max(of.values())
    return f"on {low:,} to {high:,} images each" if low < high else f"on {how_many(low, 'image')} each"
