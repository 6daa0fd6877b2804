"""Draws the clients that are asked in a round, uniformly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from rayfed_ssl.base.seeding import numpy_generator


def selected(clients: Sequence[int] | np.ndarray, count: int, *address: int | str) -> tuple[int, ...]:
    """A uniform draw without replacement of ``count`` clients, ascending; all of them without a draw."""
    everybody = np.asarray(clients)
    if count >= len(everybody):
        return tuple(everybody.tolist())
    return tuple(np.sort(numpy_generator(*address).choice(everybody, count, replace=False)).tolist())


def named(asked: Iterable[int] | None, clients: Iterable[int], said: str) -> tuple[int, ...]:
    """The clients that a method names, as they are. Raises ValueError, beginning with ``said``, if these are none of
    the run's ``clients``, or not each once.
    """
    if asked is None:
        raise ValueError(f"{said}: found None; must be clients' numbers")
    whom, known = tuple(map(int, asked)), sorted(clients)
    if strangers := set(whom).difference(known):
        allowed = f"0 to {known[-1]}" if len(known) == known[-1] + 1 else ", ".join(map(str, known[:20]))
        raise ValueError(f"{said}: found client {min(strangers)}; must be one with training images: {allowed}")
    if len(set(whom)) < len(whom):
        raise ValueError(f"{said}: found client {Counter(whom).most_common(1)[0][0]} twice; each client once")
    return whom
