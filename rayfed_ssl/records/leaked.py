"""Reads what an audit found in a run's messages: ``leak.json``, which ``rayfed-ssl leak`` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable

FILE = "leak.json"
UNTRAINED = "(untrained encoder)"  # the field of the score that must be at chance
INTERVAL = "DeLong's, over the images of that row alone: not over rounds, clients or seeds"
BY_CHANCE = "of twenty rows that know nothing one leaves 0.5 out"
ENOUGH = 100  # non-members, below which 1% of them is no image


@dataclass(frozen=True)
class Area:
    """How well one score of one field of a client's messages in ``round`` tells ``members`` from as many others: the
    area under the ROC curve with its 95% interval, and the true-positive rate at 1% false positives.
    """

    client: int
    round: int
    field: str
    score: str
    members: int
    auc: float
    low: float
    high: float
    tpr: float

    @property
    def of(self) -> str:
        """A name for what the area measures."""
        return f"{printable(self.field, 60)} ({printable(self.score, 60)}) of client {self.client}"


@dataclass(frozen=True)
class Audited:
    """``unaudited``: fields that crossed and that no attack reads. ``null_deviation``: by how much the area of a score
    that knows nothing spreads around 0.5; None where nothing was measured.
    """

    areas: tuple[Area, ...]
    unaudited: tuple[str, ...]
    null_deviation: float | None

    @property
    def largest(self) -> Area | None:
        """The largest area of what crossed; None where nothing did."""
        return largest([self])


def largest(audits: Iterable[Audited]) -> Area | None:
    """The largest area of what crossed in any of the runs; None if nothing did."""
    crossed = [area for audit in audits for area in audit.areas if area.field != UNTRAINED]
    return max(crossed, key=lambda area: area.auc, default=None)


def read_leak(run: Path) -> Audited | None:
    """The audit of a run folder; None if the run was not audited.

    Raises:
        UserError: ``leak.json`` is damaged.
    """
    path = run / FILE
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        areas = tuple(
            Area(
                int(row["client"]), int(row["round"]), str(row["field"]), str(row["score"]), int(row["members"]),
                *(float(row[key]) for key in ("auc", "low", "high", "tpr_at_1_percent")),
            )
            for row in document["findings"]
        )  # fmt: skip
        null = document["null_deviation"]
        known = float(null) if isinstance(null, int | float) and math.isfinite(null) else None
        return Audited(areas, tuple(map(str, document["unaudited"])), known)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error!r}); mend it, or move it away and give rayfed-ssl leak {quote(str(run))}"
        ) from None
