"""Keeps the outcomes of a run's last evaluation, image by image, until the run ends and writes them.

They are part of a checkpoint: a resumed run does not evaluate again what was evaluated before its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.evaluation import Outcomes, outcomes_of
from rayfed_ssl.records.outcomes import write_outcomes
from rayfed_ssl.records.summary import history
from rayfed_ssl.records.tables import read_metrics


class LastOutcomes:
    """Those of one round, by client (None: the global encoder); a later round takes the place of an earlier one.

    Round 0 is not kept: what untrained encoders are worth may be known from another run, which has no outcomes.
    """

    def __init__(self) -> None:
        self.round = 0
        self.by_client: dict[int | None, Outcomes] = {}

    def take(self, round: int, client: int | None, values: Mapping[str, float]) -> None:
        """What was measured of an encoder in ``round``; nothing of it is kept where a later round is known."""
        if round > self.round:
            self.round, self.by_client = round, {}
        if round and round == self.round:
            self.by_client[client] = outcomes_of(values) or Outcomes({}, {})

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        each = [[client, dict(of.right), dict(of.draws)] for client, of in self.by_client.items()]
        return {"round": self.round, "encoders": each}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Take what a checkpoint kept; None: an earlier version's, which kept nothing."""
        if state is not None:
            self.round = state["round"]
            self.by_client = {client: Outcomes(right, draws) for client, right, draws in state["encoders"]}

    def write(self, folder: Path, labels: NDArray[np.int64], names: Sequence[str] | None) -> None:
        """Write ``outcomes.parquet``, or remove it where the evaluation that the committed metrics end with is not this
        one.

        Args:
            labels: of all test images.
            names: of the clients, where they have any.
        """
        evaluated = {round for rounds in history(read_metrics(folder)).values() for round in rounds}
        known = self.by_client if self.round == max(evaluated, default=0) else {}
        write_outcomes(folder, self.round, known, labels, names)
