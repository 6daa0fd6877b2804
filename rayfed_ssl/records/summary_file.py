"""``summary.json``: marks a run as ended, and holds its results. All code that reads it does so here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfed_ssl.base.files import read_json, write_json
from rayfed_ssl.base.schema import UserError

SUMMARY = "summary.json"


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of the run in ``folder``; None if it has not ended. Raises UserError if the file is damaged."""
    return read_json(folder / SUMMARY)


def known_summary(folder: Path) -> dict[str, Any]:
    """The same for callers that can do without it: empty if there is no readable summary."""
    try:
        return read_summary(folder) or {}
    except UserError:
        return {}


def write_summary(folder: Path, summary: Mapping[str, object]) -> None:
    """Write ``summary.json`` atomically."""
    write_json(folder / SUMMARY, summary)


def summary_bytes(folder: Path) -> bytes | None:
    """``summary.json`` as it is, which a run that goes on removes; None if there is none."""
    path = folder / SUMMARY
    return path.read_bytes() if path.exists() else None


TRY_AGAIN = "try again when it has ended"


def refuse_gone_on(where: object, before: bytes | None, now: bytes | None, remedy: str = TRY_AGAIN) -> None:
    """Raise UserError if the :func:`summary_bytes` of the run at a place are others now than before its encoders were
    read. ``remedy``: what to do about it.
    """
    if before != now:
        raise UserError(f"{where}: the run has gone on since its encoders were read, and nothing was written; {remedy}")
