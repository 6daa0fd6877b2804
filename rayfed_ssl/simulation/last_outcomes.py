"""Keeps the outcomes, image by image, of a run's last evaluation and of the one before training, until the run ends and
writes them.

They are part of a checkpoint, because a resumed run does not repeat evaluations from before its checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.evaluation import Outcomes, outcomes_of
from rayfed_ssl.records.outcomes import PIXELS_FILE, UNTRAINED_FILE, write_outcomes
from rayfed_ssl.records.summary import PIXELS, history
from rayfed_ssl.records.tables import read_metrics

ByClient = dict[int | None, Outcomes]  # None: the global encoder


class LastOutcomes:
    """Outcomes of the newest evaluated round, of the untrained encoders, and of raw pixels."""

    def __init__(self) -> None:
        self.round = 0
        self.by_client: ByClient = {}
        self.untrained: ByClient = {}
        self.pixels: ByClient = {}

    def take(self, round: int, client: int | None, values: Mapping[str, float]) -> None:
        """Take what was measured of an encoder in ``round``, unless a later round is already known."""
        outcomes = outcomes_of(values) or Outcomes({}, {})
        if round == 0:
            of_pixels = any(tag.startswith(PIXELS) for tag in values)
            (self.pixels if of_pixels else self.untrained)[client] = outcomes
            return
        if round > self.round:
            self.round, self.by_client = round, {}
        if round == self.round:
            self.by_client[client] = outcomes

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: ``[[clients], right, draws]`` for each group of clients with equal outcomes."""
        kept = {"encoders": self.by_client, "untrained": self.untrained, "pixels": self.pixels}
        return {"round": self.round, **{name: _grouped(each) for name, each in kept.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what a checkpoint kept."""
        self.round = state["round"]
        self.by_client, self.untrained, self.pixels = (
            _by_client(state[name]) for name in ("encoders", "untrained", "pixels")
        )

    def write(self, folder: Path, labels: NDArray[np.int64], names: Sequence[str] | None) -> None:
        """Write ``outcomes.parquet`` and its two companions, or remove them if the last evaluation in the committed
        metrics is not this one.

        Args:
            labels: of all test images.
            names: of the clients, where they have any.
        """
        evaluated = {round for rounds in history(read_metrics(folder)).values() for round in rounds}
        known = self.by_client if self.round == max(evaluated, default=0) else {}
        write_outcomes(folder, self.round, known, labels, names)
        write_outcomes(folder, 0, self.untrained, labels, names, file=UNTRAINED_FILE)
        write_outcomes(folder, 0, self.pixels, labels, file=PIXELS_FILE)


def _grouped(by_client: ByClient) -> list[list[Any]]:
    """``[[clients], right, draws]`` for each group of clients with equal outcomes, such as clients with the same
    encoder, so that its arrays are kept only once.
    """
    groups: dict[object, tuple[list[int | None], Outcomes]] = {}
    known: dict[int, object] = {}  # of outcomes that are one object: their content
    for client, of in by_client.items():
        if id(of) not in known:
            known[id(of)] = _content(of)
        groups.setdefault(known[id(of)], ([], of))[0].append(client)
    return [[clients, dict(of.right), dict(of.draws)] for clients, of in groups.values()]


def _content(outcomes: Outcomes) -> object:
    """A value that is equal for equal outcomes: each score's draws, type and digest of counts."""
    return tuple(
        (
            score,
            outcomes.draws[score],
            counts.dtype.str,
            hashlib.sha256(np.ascontiguousarray(counts).tobytes()).digest(),
        )
        for score, counts in outcomes.right.items()
    )


def _by_client(groups: Sequence[Sequence[Any]]) -> ByClient:
    """The reverse of :func:`_grouped`."""
    found: ByClient = {}
    for clients, right, draws in groups:
        found.update(dict.fromkeys(clients, Outcomes(right, draws)))
    return found
