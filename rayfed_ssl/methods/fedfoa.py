"""FedFoA: learn from everybody's feature correlations, factored by QR (Algorithm 1, eq. 4-13).

Each client factors its batches' projections Z = Q R (eq. 4). It uploads Rbar_i, the mean of R over its batches (eq.
12). In the next round it downloads everybody else's. Its loss gains ``l_A = ||Z - Q* Rbar_j||`` per peer j, with Q* =
argmin over orthonormal Q (eq. 5-7). A peer is admitted if its trace is larger than that of the current batch (line
19). No peer is admitted in the first ``warmup`` rounds. Q* is a constant in the gradient, which is exact (envelope
theorem).

``plugins: [{name: fedfoa}]`` adds the term to any method's local objective. ``method.name: fedfoa`` is this plug-in
over a local objective; no weights cross, so every client may have its own architecture.

The paper leaves open the norm of eq. 7, whose projections Z holds, and how they are scaled (``norm``, ``views``,
``normalize``, ``scale``). R has a non-negative diagonal: with arbitrary signs, as of Householder's QR, its mean over
batches would cancel, and traces could not be compared.

Shape legend: m batch rows, n projection dimension, P admitted peers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.base.linalg import canonical_r, polar_factor
from rayfed_ssl.base.notes import Note
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.ledger import array_size
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, projecting
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.federated.results import ClientMatrix, EvaluatedEncoder
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.federated.uploads import Correlation
from rayfed_ssl.federated.workload import Traffic, Workload, local_batches
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.run import PluginConfig, RunSettings

_distance = LazyModule("scipy.spatial.distance")
EPSILON = 1e-12  # under the root: the unsquared norm is 0/0 at an exact fit
PAIRS_SHOWN = 16  # clients up to which every pair's distance is recorded


class Config(PluginConfig):
    name: Literal["fedfoa"] = "fedfoa"
    weight: Annotated[float, Field(ge=0)] = 0.01
    """lambda, the weight of the term in the loss."""
    warmup: Annotated[int, Field(ge=0)] = 5
    """Rounds at the start without the term."""
    norm: Literal["frobenius", "squared", "mean"] = "frobenius"
    """Norm of Z - Q* R in the term; ``mean``: squared and divided by the m n entries."""
    views: Literal["first", "both"] = "first"
    """Whose projections the term reads: the first view's, or both views'."""
    normalize: Literal["none", "rows", "columns"] = "none"
    """What is done to Z before QR: ``rows``, each to length 1; ``columns``, each to mean 0 and variance 1."""
    scale: bool = False
    """Whether R is divided by sqrt(m), which makes traces comparable between batch sizes."""
    correlation: Literal["batches", "round"] = "batches"
    """The mean of R over batches, or R of the whole shard at the round's end."""

    def minimum_batch(self, config: RunSettings) -> int:
        return config.projection_dim

    def called(self, config: RunSettings) -> str:
        return f"{self.name} with model.projector.dim={config.projection_dim}"

    def unused(self, path: str) -> Mapping[str, str]:
        return {} if self.weight else {f"{path}.norm": f"{path}.weight above 0"}  # R crosses all the same


def pack_triangle(r: np.ndarray) -> np.ndarray:
    """Upper triangle of (n, n), row by row: (n (n + 1) / 2,) float32."""
    return np.ascontiguousarray(r[np.triu_indices(len(r))], np.float32)


def side(packed: np.ndarray) -> int:
    """n of packed triangles (..., n (n + 1) / 2)."""
    return int((np.sqrt(8 * packed.shape[-1] + 1) - 1) / 2)


def unpack_triangle(packed: np.ndarray) -> np.ndarray:
    """The inverse of :func:`pack_triangle`, for (..., n (n + 1) / 2)."""
    n = side(packed)
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


def prepared(z: Tensor, normalize: str, *, scale: bool) -> Tensor:
    """Z (m, n) as it is factored: rows of unit length, or columns of mean 0 and variance 1; over sqrt(m) on request."""
    if normalize == "rows":
        z = torch.nn.functional.normalize(z, dim=1)
    elif normalize == "columns":
        z = (z - z.mean(0)) / z.std(0, correction=0).clamp_min(1e-6)
    return z / len(z) ** 0.5 if scale else z


def distances(packed: np.ndarray) -> np.ndarray:
    """||R_i - R_j||_F of packed triangles (N, n (n + 1) / 2), as an (N, N) matrix (Figure 6)."""
    apart: np.ndarray = _distance.squareform(_distance.pdist(packed.astype(np.float64)))
    return apart


def packed_traces(packed: np.ndarray) -> np.ndarray:
    """The traces of packed triangles (N, n (n + 1) / 2): (N,)."""
    n = side(packed)
    firsts: np.ndarray = packed[:, np.cumsum([0, *range(n, 1, -1)])]  # row i of a triangle has n - i values
    summed: np.ndarray = firsts.sum(axis=1)
    return summed


class ClientHalf(ClientPlugin[Config]):
    def __init__(self, config: Config, client: EncoderClient[MethodConfig]) -> None:
        super().__init__(config, client)
        self.peers: Tensor | None = None  # (N - 1, n, n)
        self.total: Tensor | float = 0.0
        self.batches = 0
        self.used: Tensor | float = 0.0

    def receive(self, fields: Mapping[str, Any]) -> None:
        if "peers" in fields:
            self.peers = torch.tensor(unpack_triangle(np.stack(fields["peers"])), device=self.client.context.device)

    def penalty(self, projections: tuple[Tensor, ...], features: tuple[Tensor, ...] = ()) -> Tensor | None:
        chosen = projections[:1] if self.config.views == "first" else projections
        terms: list[Tensor] = []
        for z in chosen:
            z = prepared(z.float(), self.config.normalize, scale=self.config.scale)
            own = canonical_r(z.detach())
            self.total, self.batches = self.total + own.double(), self.batches + 1
            if self.peers is not None:
                peers = self.peers[admitted(self.peers, own)]
                self.used = self.used + len(peers)
                if len(peers):
                    terms.append(mutual_understanding(z, peers, self.config.norm).sum())
        # The mean over views: one that admits nobody counts as zero.
        return self.config.weight * torch.stack(terms).sum() / len(chosen) if terms else None

    def reply(self) -> dict[str, Any]:
        if self.config.correlation == "round":
            r = self.of_whole_shard()
        else:
            assert isinstance(self.total, Tensor)
            r = self.total / self.batches
        self.client.metrics |= {"trace": float(r.trace()), "admitted": float(self.used) / max(self.batches, 1)}
        return {"correlation": pack_triangle(r.cpu().numpy())}

    def of_whole_shard(self) -> Tensor:
        """R (n, n) of the clean shard after training, sqrt(m / n_i) times: at the scale of a batch of m rows."""
        z = torch.cat(list(self.client.projections(self.client.pixels()))).double()  # (n_i, n)
        r = canonical_r(prepared(z, self.config.normalize, scale=self.config.scale))
        return r if self.config.scale else r * (local_batches(self.client.config, len(z)).size / len(z)) ** 0.5


class ServerHalf(ServerPlugin[Config]):
    """The memory bank: client -> packed Rbar. ``incoming`` becomes ``bank`` when the round is over."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.state["bank"] = {}
        self.incoming: dict[int, np.ndarray] = {}

    def message(self, t: int, client: int) -> dict[str, Any]:
        bank = self.state["bank"]
        peers = [bank[j] for j in sorted(bank) if j != client]  # the bank's own arrays: N, not N^2, are held in a round
        return {"peers": peers} if peers and t > self.config.warmup else {}

    def collect(self, t: int, client: int, fields: Mapping[str, Any]) -> None:
        self.incoming[client] = fields["correlation"]

    def notes(self) -> list[Note]:
        """The bank is filled at the end of a round, so not even a warm-up of 0 gives round 1 the term."""
        config, warmup = self.setup.config, self.config.warmup
        rounds, first = config.train.rounds, max(warmup, 1) + 1
        if rounds >= first:
            return []
        alone = self.config is config.method
        key = "method.warmup" if alone else f"plugins.{config.plugins.index(self.config)}.warmup"
        so = "clients train alone" if alone else f"clients train as {config.method.name}'s do without the plug-in"
        sooner = f"a {key} of at most {rounds - 1}, or " if rounds > 1 else ""
        more = (
            f": found train.rounds={rounds} and {key}={warmup}, by which it begins in round {first}, so {so}; to have "
            f"some, {sooner}train.rounds of at least {first}"
        )
        return [Note.shareable("no round applies fedfoa's term", more)]

    def end_round(self, t: int) -> None:
        self.state["bank"] = {**self.state["bank"], **self.incoming}
        self.incoming = {}
        if not (bank := self.state["bank"]):
            return
        known = sorted(bank)
        packed = np.stack([bank[i] for i in known])
        self.metrics["fedfoa/trace"] = float(packed_traces(packed).mean())
        if len(known) < 2:
            return
        apart = distances(packed)
        pairs = list(combinations(range(len(known)), 2))
        self.metrics["fedfoa/distance"] = float(np.mean([apart[pair] for pair in pairs]))
        if len(known) <= PAIRS_SHOWN:
            self.metrics |= {f"fedfoa/distance_{known[i]}_{known[j]}": float(apart[i, j]) for i, j in pairs}

    def client_matrices(self) -> dict[str, ClientMatrix]:
        """The distances between the matrices in the bank (Figure 6)."""
        bank = self.state["bank"]
        if len(bank) < 2:
            return {}
        known, values = sorted(bank), np.full((len(self.setup.federation.sizes),) * 2, np.nan)
        values[np.ix_(known, known)] = distances(np.stack([bank[i] for i in known]))
        return {"fedfoa_distance": ClientMatrix(values, "one", "other")}

    # -- costs ---------------------------------------------------------------------------------------------------------

    def traffic(self, t: int, client: int, met: Collection[int]) -> Traffic | None:
        peers = len(set(met) - {client}) if t > self.config.warmup else 0
        triangle = self.workload(client).up_bytes
        return Traffic(peers * triangle, triangle) if t else Traffic(0, 0)

    def workload(self, client: int) -> Workload:
        n, config = self.setup.config.projection_dim, self.config
        images = int(self.setup.federation.sizes[client]) if config.correlation == "round" else 0
        return Workload.inferred(images, correlation=array_size(n * (n + 1) // 2))


class Client(EncoderClient[Config]):
    def train(self) -> dict[str, Any]:
        """Local epochs from this client's own model; the plug-in's half adds the term, and replies with Rbar."""
        self.load_own()
        self.fit()
        self.keep_own()
        return {}


class Server(MethodServer[Config]):
    def round(self, t: int, cohort: Cohort) -> None:
        cohort.tell("train")  # what came back is in the bank

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        return self.own_encoders()

    # -- costs ---------------------------------------------------------------------------------------------------------

    def workload(self, operation: str, client: int) -> Workload | None:
        return self.fitting(client)

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        return {}  # all that crosses is the plug-in's


def footprint(config: RunSettings, images: int) -> ClientFootprint:
    """The bank's triangle; as a method also the client's own model."""
    d = config.projection_dim
    return ClientFootprint(models=1 if config.method.name == "fedfoa" else 0, bank=2 * d * (d + 1))


def options_of(config: RunSettings) -> Config:
    """The plug-in's block of a run that has it, over whichever method."""
    return next(plugin for plugin in config.active_plugins if isinstance(plugin, Config))


def as_factored(client: EncoderClient[Any], z: Tensor) -> Tensor:
    """Projections (V, m, n), each view prepared as for QR, but not divided by sqrt(m): an audit takes means itself."""
    return torch.stack([prepared(view, options_of(client.config).normalize, scale=False) for view in z])


def mean_product(client: EncoderClient[Any], packed: np.ndarray) -> Tensor:
    """Z'Z / m (n, n) in float64 of an uploaded triangle: R'R is Z'Z of a batch of m rows, or at its scale; for the mean
    of R it is near that.
    """
    r = torch.from_numpy(unpack_triangle(np.array(packed, np.float64)))
    product, rows = r.T @ r, local_batches(client.config, len(client.indices)).size
    return product if options_of(client.config).scale else product / rows


def views_of(config: RunSettings) -> int:
    """How many augmented views of an image an audit makes of those that are factored; 0: the clean images are.

    Two, also where the first alone is factored: they tell more of its mean product than one does. Not where the second
    view is made in another way.
    """
    options, recipe = options_of(config), config.augment.recipe()
    if options.correlation == "round":
        return 0
    return 1 if options.views == "first" and recipe.second_view_differs else 2


FEDFOA = Method(
    Config,
    Client,
    Server,
    Info("FedFoA", "feature correlations R", stateful=True, heterogeneous=True, independent=True),
    objective="byol",
    accepts=projecting,
    sends_weights=lambda config: (),
    plugin=(ClientHalf, ServerHalf),
    footprint=footprint,
    uploads={"fedfoa.correlation": Correlation(as_factored, views_of, mean_product)},
)
