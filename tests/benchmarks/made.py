"""Rows of the leaderboard made by hand, for tests of what is made from them."""

from __future__ import annotations

from typing import Any

from boards import rows


def row(method: str, seed: int = 0, knn: float | None = 0.5, **others: Any) -> rows.Record:
    """A complete row with these numbers; of most of what is not given there is none."""
    made: rows.Record = dict.fromkeys(rows.SCHEMA.names)
    made |= {
        "data": "cifar10", "partition": "iid", "table": rows.ONE, "method": method, "seed": seed, "knn": knn,
        "status": "complete", "commit": "abc", "changed": False, "tuned": False, "untrained_knn": 0.25,
        "bytes_total": 1_000_000, "objective": "simclr",
    }  # fmt: skip
    return made | others
