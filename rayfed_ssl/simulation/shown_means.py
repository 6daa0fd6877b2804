"""The means over clients that a run shows while evaluations come in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rayfed_ssl.evaluation import recorded


class ShownMeans:
    """Keeps what was measured of the round that was evaluated last, by client."""

    def __init__(self) -> None:
        self.round = 0
        self._known: dict[int | None, dict[str, float]] = {}

    def of(self, t: int, parts: Mapping[int | None, Mapping[str, float]]) -> dict[str, float]:
        """The means over the clients measured so far in round t, of which ``parts`` has just come in; for an earlier
        round, over ``parts`` alone.
        """
        if t > self.round:
            self.round, self._known = t, {}
        known = self._known if t == self.round else {}
        for client, values in parts.items():
            known[client] = {**known.get(client, {}), **values}
        return means_by_tag(known)


def means_by_tag(parts: Mapping[int | None, Mapping[str, float]]) -> dict[str, float]:
    """The mean of each value over the encoders it was measured for, by its tag in the table of metrics. A global
    encoder's value hides those of clients, as in ``summary.json``.
    """
    names = sorted({name for values in parts.values() for name in values})
    of_all = parts.get(None, {})
    return {
        recorded(name): float(
            np.mean([of_all[name]] if name in of_all else [values[name] for values in parts.values() if name in values])
        )
        for name in names
    }
