"""What a run reports while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """An event worth a line: what is going on, or a finished round with its measurements. If a finished round came to
    nothing, ``came_to_nothing`` says so and why, and the line ends with it; else it is empty.
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
