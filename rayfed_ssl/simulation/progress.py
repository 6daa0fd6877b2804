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

    @property
    def came_to_nothing(self) -> str:
        """That a finished round came to nothing, and why; empty where it did not."""
        before, _, after = self.line.partition(f"round {self.round}/{self.rounds} ")
        return after if self.finishes_a_round and not before else ""

    @property
    def finishes_a_round(self) -> bool:
        """Whether it is a finished round."""
        return "system/round_s" in self.values
