"""What a run's epsilon guarantees, at which delta and for which messages: read from its summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayfed_ssl.base.text import bounded, printable


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy of what clients sent: the ``epsilon`` of the client that spent most, at ``delta``, for the
    messages that ``covers`` names. Other messages, ``not_covered``, are sent without protection. None: the run did not
    record it.
    """

    epsilon: float
    delta: float | None = None
    covers: str | None = None
    not_covered: str | None = None

    @property
    def scope(self) -> str:
        """``at delta 0.01, of correlation matrices R_j alone; weights theta_j are not covered``."""
        at = "at a delta that is not recorded" if self.delta is None else f"at delta {self.delta:g}"
        if self.covers is None:
            return f"{at}; what it covers is not recorded"
        less = "" if self.not_covered is None else f" alone; {printable(self.not_covered)} are sent without noise"
        return f"{at}, of {printable(self.covers)}{less}"

    @property
    def sentence(self) -> str:
        return f"epsilon {bounded(self.epsilon, 3)} {self.scope}"


def guarantee(summary: Mapping[str, Any]) -> Guarantee | None:
    """The guarantee by a summary's ``epsilon`` and ``privacy``; None if a client has no guarantee, or nothing is known.

    Raises:
        TypeError, ValueError: an epsilon is no number.
    """
    epsilon, privacy = summary.get("epsilon"), summary.get("privacy")
    values = list(epsilon.values()) if isinstance(epsilon, Mapping) else [epsilon]
    if not values or None in values:
        return None
    largest = max(float(value) for value in values if value is not None)
    told = privacy if isinstance(privacy, Mapping) else {}
    delta = told.get("delta")
    covers, not_covered = (str(told[key]) if told.get(key) else None for key in ("covers", "not_covered"))
    known = float(delta) if isinstance(delta, int | float) else None
    return Guarantee(largest, known, covers, not_covered)
