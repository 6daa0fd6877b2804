"""Draws the clients that are asked in a round, uniformly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfed_ssl.base.seeding import numpy_generator


def selected(clients: Sequence[int] | np.ndarray, count: int, *address: int | str) -> tuple[int, ...]:
    """A uniform draw without replacement of ``count`` clients, ascending; all of them without a draw."""
    everybody = np.asarray(clients)
    if count >= len(everybody):
        return tuple(everybody.tolist())
    return tuple(np.sort(numpy_generator(*address).choice(everybody, count, replace=False)).tolist())
