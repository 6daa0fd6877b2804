"""FedFoA: learn from everybody's feature correlations, factored by QR (Algorithm 1, eq. 4-13).

Nothing but R crosses. Each client factors its batches' projections Z = Q R (eq. 4), uploads Rbar_i, the mean of R over
its batches (eq. 12), and in the next round downloads everybody else's. Beside its own loss it minimises, for each peer
j, ``l_A = ||Z - Q* Rbar_j||`` with Q* = argmin over orthonormal Q (eq. 5-7): its features should be explicable by the
peer's correlations. Only peers whose trace is larger than that of the current batch are admitted (line 19), and only
after ``warmup`` rounds.

A plug-in: ``plugins: [{name: fedfoa, weight: 0.01}]`` adds it to any method's local objective. ``method.name: fedfoa``
is this plug-in over a local objective with no weights exchanged, so every client may have its own architecture;
``model.calibration`` maps them to one n.

Differs: the printed ||.||_2 is the Frobenius norm, unsquared (``norm``); R has a non-negative diagonal, without which
means of R and traces are arbitrary; Q* is a constant in the gradient, which is exact (envelope theorem); the server's
bank is double-buffered: round t reads what round t - 1 wrote. Z is the online projector's output of view 1 (``views``),
not normalised (``normalize``).

Shape legend: m batch rows, n projection dimension, P admitted peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.client import EncoderClient
from rayfed_ssl.linalg import canonical_r, polar_factor
from rayfed_ssl.methods.base import (
    ClientPlugin,
    Info,
    Method,
    MethodServer,
    PluginConfig,
    ServerPlugin,
    Setup,
    Subject,
)

if TYPE_CHECKING:
    from rayfed_ssl.config import RunConfig

EPSILON = 1e-12  # under the root: the unsquared norm is 0/0 at an exact fit
PAIRS_SHOWN = 16  # clients up to which every pair's distance is recorded


class Config(PluginConfig):
    name: Literal["fedfoa"] = "fedfoa"
    weight: Annotated[float, Field(ge=0)] = 0.01  # lambda
    warmup: Annotated[int, Field(ge=0)] = 5  # rounds without the term
    norm: Literal["frobenius", "squared", "mean"] = "frobenius"  # of Z - Q* R; mean: squared, over m n entries
    views: Literal["first", "both"] = "first"
    normalize: Literal["none", "rows", "columns"] = "none"  # of Z, before QR
    scale: bool = False  # R / sqrt(m): traces comparable between batch sizes
    correlation: Literal["batches", "round"] = (
        "batches"  # mean of R over batches, or R of the whole shard at the round's end
    )

    def minimum_batch(self, config: RunConfig) -> int:
        return config.projection_dim


def pack_triangle(r: np.ndarray) -> np.ndarray:
    """Upper triangle of (n, n), row by row: (n (n + 1) / 2,) float32."""
    return np.ascontiguousarray(r[np.triu_indices(len(r))], np.float32)


def unpack_triangle(packed: np.ndarray) -> np.ndarray:
    """The inverse of :func:`pack_triangle`, for (..., n (n + 1) / 2)."""
    n = int((np.sqrt(8 * packed.shape[-1] + 1) - 1) / 2)
    r = np.zeros((*packed.shape[:-1], n, n), packed.dtype)
    rows, columns = np.triu_indices(n)
    r[..., rows, columns] = packed
    return r


def mutual_understanding(z: Tensor, r: Tensor, norm: str = "frobenius") -> Tensor:
    """l_A(Z, R_j) of each peer (eq. 7): z (m, n), r (P, n, n) -> (P,). The gradient reaches z only."""
    residual = z - polar_factor(z.detach(), r) @ r.to(z.dtype)  # (P, m, n)
    squared = residual.square().sum((1, 2))
    if norm == "squared":
        return squared
    return squared / z.numel() if norm == "mean" else (squared + EPSILON).sqrt()


def admitted(r: Tensor, own: Tensor) -> Tensor:
    """Which peers have a larger trace than the current batch (Algorithm 1, line 19): r (P, n, n), own (n, n) -> (P,)
    bool.
    """
    traces: Tensor = r.diagonal(dim1=1, dim2=2).sum(1)
    return traces > own.trace()


class ClientHalf(ClientPlugin):
    def __init__(self, config: Any, client: EncoderClient) -> None:
        super().__init__(config, client)
        self.peers: Tensor | None = None  # (N - 1, n, n)
        self.total: Tensor | float = 0.0
        self.batches = 0
        self.used: Tensor | float = 0.0

    def receive(self, fields: Mapping[str, Any]) -> None:
        if "peers" in fields:
            self.peers = torch.tensor(unpack_triangle(fields["peers"]), device=self.client.bench.device)

    def penalty(self, projections: tuple[Tensor, ...]) -> Tensor | None:
        chosen = projections[:1] if self.config.views == "first" else projections
        terms: list[Tensor] = []
        for z in chosen:
            z = self.prepared(z.float())
            own = canonical_r(z.detach())
            self.total, self.batches = self.total + own.double(), self.batches + 1
            if self.peers is not None:
                peers = self.peers[admitted(self.peers, own)]
                self.used = self.used + len(peers)
                if len(peers):
                    terms.append(mutual_understanding(z, peers, self.config.norm).sum())
        return self.config.weight * torch.stack(terms).mean() if terms else None

    def prepared(self, z: Tensor) -> Tensor:
        """Z as it is factored: optionally normalised, optionally over sqrt(m)."""
        if self.config.normalize == "rows":
            z = torch.nn.functional.normalize(z, dim=1)
        elif self.config.normalize == "columns":
            z = (z - z.mean(0)) / z.std(0, correction=0).clamp_min(1e-6)
        return z / len(z) ** 0.5 if self.config.scale else z

    def reply(self) -> dict[str, Any]:
        if self.config.correlation == "round":
            r = self.of_whole_shard()
        else:
            assert isinstance(self.total, Tensor)
            r = self.total / self.batches
        self.client.metrics |= {"trace": float(r.trace()), "admitted": float(self.used) / max(self.batches, 1)}
        return {"correlation": pack_triangle(r.cpu().numpy())}

    def of_whole_shard(self) -> Tensor:
        """R of the clean shard after training, at the scale of a batch: R^T R sums over parts, so parts are folded in
        one by one.
        """
        folded: Tensor | None = None
        rows = 0
        for z in self.client.projections(self.client.pixels()):
            part, rows = z.double(), rows + len(z)
            folded = canonical_r(part if folded is None else torch.cat([folded, part]))
        assert folded is not None
        batch = 1 if self.config.scale else min(self.client.config.train.batch_size, rows)
        scaled: Tensor = folded * (batch / rows) ** 0.5
        return scaled


class ServerHalf(ServerPlugin):
    """The memory bank: client -> packed Rbar. ``incoming`` becomes ``bank`` when the round is over."""

    def __init__(self, config: Any, setup: Setup) -> None:
        super().__init__(config, setup)
        self.state["bank"] = {}
        self.incoming: dict[int, np.ndarray] = {}

    def message(self, t: int, client: int) -> dict[str, Any]:
        bank = self.state["bank"]
        peers = [bank[j] for j in sorted(bank) if j != client]
        return {"peers": np.stack(peers)} if peers and t > self.config.warmup else {}

    def collect(self, t: int, client: int, fields: Mapping[str, Any]) -> None:
        self.incoming[client] = fields["correlation"]

    def end_round(self, t: int) -> None:
        self.state["bank"] = {**self.state["bank"], **self.incoming}
        self.incoming = {}
        if not (bank := self.state["bank"]):
            return
        matrices = {client: unpack_triangle(packed) for client, packed in bank.items()}
        distances = {(i, j): float(np.linalg.norm(matrices[i] - matrices[j])) for i, j in combinations(sorted(bank), 2)}
        self.metrics["fedfoa/trace"] = float(np.mean([m.trace() for m in matrices.values()]))
        if distances:
            self.metrics["fedfoa/distance"] = float(np.mean(list(distances.values())))
        if len(bank) <= PAIRS_SHOWN:
            self.metrics |= {f"fedfoa/distance_{i}_{j}": value for (i, j), value in distances.items()}


class Client(EncoderClient):
    def train(self) -> dict[str, Any]:
        self.load_own()
        self.fit()
        self.keep_own()
        return {}


class Server(MethodServer):
    def round(self, t: int, cohort: Any) -> None:
        for _ in cohort.ask("train"):
            pass  # what came back is in the bank

    def subjects(self) -> list[Subject]:
        return self.own_subjects()


FEDFOA = Method(
    Config,
    Client,
    Server,
    Info("FedFoA", "feature correlations R", stateful=True, heterogeneous=True),
    objectives=("byol", "simclr", "simsiam", "spectral"),
    plugin=(ClientHalf, ServerHalf),
    is_plugin=True,
)
