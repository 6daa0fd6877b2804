"""The results of a method: encoders to evaluate and export, matrices over clients to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rayfed_ssl.base.weights import Weights

Evaluated = tuple[int, int | None, dict[str, float]]  # round, client (None: global), protocol -> value


@dataclass(frozen=True)
class EvaluatedEncoder:
    """An encoder to evaluate or export: the global one (weights given), or a client's own (kept in its state under
    ``model``).
    """

    client: int | None
    architecture: str
    weights: Weights | None = None
    classes: int | None = None  # of the classifier in ``model``, where a client has a task of its own
    holders: tuple[int, ...] = ()  # clients that hold these very weights: measured once, on all clients' own tests


class ClientMatrix(NamedTuple):
    """What a method knows about pairs of clients."""

    values: np.ndarray  # (N, N); NaN where nothing is known
    rows: str  # what a row is, e.g. "target"
    columns: str


PIXELS = EvaluatedEncoder(None, "pixels")  # evaluated once per run, before the first round
