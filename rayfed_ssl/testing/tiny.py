"""Runs that are small enough to be repeated many times, and their results in a form that can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.extensions import gather
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import Mean
from rayfed_ssl.records.outcomes import FILE as OUTCOMES
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.assembly import assemble
from rayfed_ssl.simulation.local import LocalCohort

BASE: dict[str, Any] = {
    "name": "tiny",
    "data": {
        "name": "digits", "image_size": 8, "limit": 160, "test_limit": 60,
        "partition": {"name": "dirichlet", "alpha": 1.0},
    },
    "clients": {"count": 4, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25, "projector": {"hidden": [16], "dim": 8, "batch_norm": "hidden"}},
    "augment": {"preset": "digits"},
    "train": {"rounds": 3, "batch_size": 16, "optimizer": {"lr": 0.05}},
    "evaluation": {"protocols": ["knn"], "batch_size": 64, "fewshot": {"draws": 1}},
    "checkpoint": {"every": 1},
    "resources": {"device": "cpu"},
    "figures": False,
}  # fmt: skip
"""160 digits at 8 px, a thin network with BatchNorm, four unequal clients, three rounds."""

CLOCK = ("system/round_s", "system/images_per_s")


def tiny_run(method: str, changes: Mapping[str, object] | None = None, beside: Path | None = None) -> RunConfig:
    """The configuration of a method's tiny run.

    Args:
        changes: dotted keys, such as ``{"method.warmup": 1}``; ``imports`` may be among them.
        beside: the folder to which paths in ``imports`` are relative; by default the working folder.
    """
    dotted = dict(changes or {})
    imports = gather(dotted.pop("imports", None), beside or Path())
    return build({**BASE, "method": {"name": method}}, dotted, origin="tiny", imports=imports)


def run_locally(config: RunConfig, folder: Path, **options: Any) -> dict[str, Any]:
    """Run in this process, and return the summary."""
    return loop.run(config, folder, LocalCohort, **options)


class AskedMean(NamedTuple):
    """A mean that a server asked for: its fields, and the share with which each client counted."""

    fields: Sequence[str]
    shares: dict[int, float]


class HeardCohort(LocalCohort):
    """A cohort that records how clients count in the means that it is asked for."""

    def __init__(self, config: RunConfig, federation: Federation, ledger: Ledger) -> None:
        super().__init__(config, federation, ledger)
        self.means: list[AskedMean] = []

    def mean(
        self,
        operation: str,
        *,
        by: Mapping[int, float] | None = None,
        fields: Sequence[str] = ("weights",),
        **rest: Any,
    ) -> Mean:
        self.means.append(AskedMean(fields, self.shares_of(by)))
        return super().mean(operation, by=by, fields=fields, **rest)

    def shares_of(self, counts: Mapping[int, float] | None) -> dict[int, float]:
        """The shares with which the round's clients count; with None, in proportion to their numbers of images."""
        counted = {c: float(self.shares[c] if counts is None else counts[c]) for c in self.clients}
        return {c: count / sum(counted.values()) for c, count in counted.items()}


def counted(config: RunConfig) -> tuple[list[AskedMean], dict[int, float]]:
    """The means of a run's first round, and the clients' shares by the server's ``counts``."""
    federation = load_federation(config)
    cohort = HeardCohort(config, federation, Ledger())
    parts = assemble(config, federation, InitialWeights(config, federation))
    cohort.attach(parts.plugins, None)
    parts.server.start(cohort)
    cohort.begin_round(1, parts.server.asked(1))
    parts.server.round(1, cohort)
    return cohort.means, cohort.shares_of(parts.server.counts(cohort.clients))


def encoders(folder: Path) -> dict[str, bytes]:
    """The exported encoders of a run: file name -> bytes."""
    files = {path.name: path.read_bytes() for path in sorted((folder / "encoder").glob("*.safetensors"))}
    assert files, f"{folder} holds no encoder"
    return files


def measured(folder: Path) -> dict[tuple[int, int | None, str], float]:
    """Every metric of a run that is not read from a clock: (round, client, tag) -> value. Fails if a row appears
    twice.
    """
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    kept = [r for r in rows if r["tag"] not in CLOCK and not r["tag"].endswith("/seconds")]
    values = {(r["round"], r["client"], r["tag"]): r["value"] for r in kept}
    assert len(values) == len(kept), "a metric was recorded twice"
    return values


def booked(folder: Path) -> list[tuple[Any, ...]]:
    """The communication table of a run, sorted."""
    return sorted(tuple(row.values()) for row in pq.read_table(folder / "communication.parquet").to_pylist())


def outcomes(folder: Path) -> bytes | None:
    """The bytes of the outcomes of a run's last evaluation; None if no score of it classifies."""
    path = folder / OUTCOMES
    return path.read_bytes() if path.exists() else None
