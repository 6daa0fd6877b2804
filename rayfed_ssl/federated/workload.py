"""What an operation will cost a client, known before it runs: who replies in time is decided before anybody trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rayfed_ssl.settings.blocks import TrainConfig


@dataclass(frozen=True)
class Workload:
    """``images``: source images the operation reads, each once per pass over it. ``up``: bytes of the reply by field,
    as the ledger books them.
    """

    images: int
    up: Mapping[str, int] = field(default_factory=dict)

    @property
    def up_bytes(self) -> int:
        return sum(self.up.values())

    def __add__(self, other: Workload) -> Workload:
        return Workload(self.images + other.images, {**self.up, **other.up})


@dataclass(frozen=True)
class Traffic:
    """Bytes that one client is sent and sends in one round, as the ledger books them."""

    down: int
    up: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.down + other.down, self.up + other.up)


def fit_steps(train: TrainConfig, count: int) -> int:
    """Batches of the local epochs over ``count`` images; short last batches are dropped."""
    return train.local_steps or count // min(train.batch_size, count) * train.local_epochs


def fit_images(train: TrainConfig, count: int) -> int:
    """Images of those batches."""
    return fit_steps(train, count) * min(train.batch_size, count)
