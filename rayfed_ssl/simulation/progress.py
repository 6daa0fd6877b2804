"""What a run reports while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """Something worth a line: what is going on, or a finished round with what was measured."""

    round: int
    rounds: int
    line: str
    values: dict[str, float] = field(default_factory=dict)
