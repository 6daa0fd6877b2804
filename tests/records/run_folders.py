"""Run folders written by hand, for tests of what compares runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_ssl.base.files import write_json
from rayfed_ssl.federated.ledger import Booking
from rayfed_ssl.records.comparison import Comparison
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.records.tables import (
    METRICS,
    Commit,
    Metric,
    PartitionRows,
    bookings_table,
    communication_parts,
    metrics_parts,
    table,
    write_partition,
)
from rayfed_ssl.settings import files as configfile
from tests.tiny import tiny

A = [0.50, 0.60, 0.55]  # final kNN accuracies by seed
B = [0.58, 0.63, 0.66]
UNTRAINED, PIXELS = 0.3, 0.4


def run_folder(
    folder: Path,
    seed: int,
    curve: Sequence[float],
    *,
    method: str = "fedsimclr",
    changes: Mapping[str, Any] | None = None,
    status: str = "complete",
    sent: Sequence[tuple[int, int]] = ((100, 40), (100, 40), (100, 40)),
    virtual: Sequence[float] = (),
    epsilon: Any = None,
    images: Sequence[int] = (3, 1, 2),
    held_out: Sequence[int] | None = None,
    clients: bool = False,
    own: bool | Sequence[float] = False,
    void: Sequence[int] = (),
) -> Path:
    """A run of ``len(curve)`` rounds: kNN after each, (up, down) bytes and seconds of the virtual clock by round."""
    folder.mkdir(parents=True)
    config = tiny(method, **{**(changes or {}), "seed": seed})
    configfile.dump(config, folder / "config.yaml")
    rows = [Metric(0, None, "eval/knn", UNTRAINED, 0.0)]
    rows += [
        Metric(0, None, f"eval/pixels_{name}", PIXELS, 0.0) for name in ("knn", "fewshot")
    ]  # kept from another run
    for t, value in enumerate(curve, 1):
        of = {0: value - 0.1, 1: value + 0.1} if clients else {None: value}
        rows += [Metric(t, client, "eval/knn", v, float(t)) for client, v in of.items()]
        further = own if isinstance(own, Sequence) else [0.0, 0.0] if own else []
        rows += [Metric(t, client, "eval/own_knn", value + more, float(t)) for client, more in enumerate(further)]
        rows.append(Metric(t, None, "select/knn", value / 2, float(t)))
        rows.append(Metric(t, None, "features/rank", 10.0 * value, float(t)))
    rows += [Metric(t, None, "system/round_s", (10.0 + seed) / len(curve), 0.0) for t in range(1, len(curve) + 1)]
    rows += [Metric(t, None, "time/virtual_s", seconds, 0.0) for t, seconds in enumerate(virtual, 1)]
    rows += [Metric(t, None, "system/void_round", 1.0, 0.0) for t in void]
    metrics_parts(folder).write(Commit(len(curve), 0), table(rows, METRICS))
    booked = [
        Booking(t, 0, d, "train", "weights", n)
        for t, ud in enumerate(sent, 1)
        for d, n in zip(("up", "down"), ud, strict=True)
    ]
    communication_parts(folder).write(Commit(len(curve), 0), bookings_table(booked))
    chosen = None if held_out is None else np.array(held_out)
    write_partition(
        folder,
        PartitionRows({0: {"train": np.array(images)}}, labels=np.zeros(10, np.int64), public=None, held_out=chosen),
    )
    sums = {f"{d}_bytes": sum(b.bytes for b in booked if b.direction == d) for d in ("up", "down")}
    write_json(
        folder / "summary.json",
        {"status": status, "rounds": len(curve), "communication": sums, "epsilon": epsilon, "wall_s": 10.0 + seed},
    )
    return folder


def three(root: Path, name: str, finals: Sequence[float], **how: Any) -> list[Path]:
    return [run_folder(root / f"{name}-{s}", s, [0.1, 0.85 * v, v], **how) for s, v in enumerate(finals)]


def two_rows(root: Path, **how: Any) -> Comparison:
    return of_variants({"a": three(root, "a", A), "b": three(root, "b", B, method="fedprox", **how)})
