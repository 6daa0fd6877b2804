"""What a run reports while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """Something worth a line: what is going on, or a finished round with what was measured. ``came_to_nothing`` says
    that a finished round did, and why; the line ends with it. Empty where it did not.
    """

    round: int
    rounds: int
    line: str
    values: dict[str, float] = field(default_factory=dict)
    came_to_nothing: str = ""

    @property
    def finishes_a_round(self) -> bool:
        """Whether it is a finished round."""
        return "system/round_s" in self.values
