"""The report's tables of accuracy: each protocol beside the raw pixels and the untrained encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayfed_ssl.records.comparison import ordered
from rayfed_ssl.report.formats import how_many
from rayfed_ssl.report.measures import change, protocol_name, shown
from rayfed_ssl.report.page import Cell, HtmlTable
from rayfed_ssl.report.verdict import clients_images, compared, mean, pairs, test_images


def accuracy_table(summary: Mapping[str, Any], caption: str, began: str, *, keys: bool = True) -> HtmlTable | None:
    """A row for each accuracy of ``summary``, which is a run's, or as a run's is; None where it has none.

    Args:
        began: what the encoder is called before training.
        keys: whether it is the summary of the folder, to whose keys cells point.
    """
    rows = [_row(summary, name, keys) for name in ordered(list(summary.get("accuracy") or {}))]
    head = ["protocol", "raw pixels", began, "last round", "difference [95 %]"]
    if best := bool(summary.get("best")):
        head.append("best round")
    return HtmlTable(caption, head, [row if best else row[:-1] for row in rows]) if rows else None


def accuracy_cell(summary: Mapping[str, Any], block: str, protocol: str, keys: bool = True) -> Cell:
    """An accuracy of the summary; of clients' values their mean, with the extremes."""
    value = (summary.get(block) or {}).get(protocol)
    average, note = mean(value), ""
    if isinstance(value, Mapping):
        known = [v for v in value.values() if v is not None]
        note = f"{shown(protocol, min(known))} to {shown(protocol, max(known))}" if len(set(known)) > 1 else ""
    return Cell(shown(protocol, average), average, f"{block}/{protocol}" if keys else "", note)


def _row(summary: Mapping[str, Any], name: str, keys: bool) -> list[Cell]:
    last, began, best = ((summary.get(block) or {}).get(name) for block in ("accuracy", "untrained", "best"))
    found = compared(last, began, test_images(summary, name), pairs(summary, "untrained", name))
    apart, chosen = Cell("–"), Cell("–")
    if found is not None:
        apart = Cell(change(name, found.mean), note=f"{found.kind or ''} {found.interval(name)}".strip())
    if isinstance(best, Mapping) and isinstance(best.get("value"), int | float):
        note = f"round {best.get('round')}, by {best.get('by', 'test labels')}"
        chosen = Cell(shown(name, best["value"]), best["value"], f"best/{name}/value", note)
    values = [accuracy_cell(summary, block, name, keys) for block in ("pixels", "untrained", "accuracy")]
    return [Cell(protocol_name(name), note=images_each(clients_images(summary, name))), *values, apart, chosen]


def images_each(of: Mapping[int, int]) -> str:
    """On how many of its own images each client was measured, in words; empty where that is not known."""
    if not of:
        return ""
    low, high = min(of.values()), max(of.values())
    return f"on {low:,} to {high:,} images each" if low < high else f"on {how_many(low, 'image')} each"
