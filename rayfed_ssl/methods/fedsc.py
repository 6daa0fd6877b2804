"""FedSC: spectral contrast against everybody's correlations (Jing et al. 2024, Algorithm 1).

A round has two exchanges: weights down and R_j up; R_{-j} down and weights up. The mean of the others,
``R_{-j} = sum_{k != j} q_k R_k / (1 - q_j)``, lets client j contrast against images it never sees:
``L_j = -2 Tr R+_j + alpha ||R_j||^2 + 2 (1 - alpha) Tr(R_j R_{-j})`` (eq. 5). With alpha = q_j the q-weighted sum of
the clients' gradients is the gradient of the global loss (eq. 6).

The first round that shares asks everybody. A client that is not asked is represented by the matrix it sent last. An
exchange is left out if alpha is 1 in every round that would use its matrices.

With ``method.privacy`` each client adds Gaussian noise to R_j before it leaves (Algorithm 2, DP-CalR). Embeddings are
clipped to ||z||^2 <= mu = ``objective.clip`` in sharing and in training. A client's epsilon counts the matrices it did
release. Nothing else that leaves a client is private: see ``rayfed_ssl.methods.parts.privacy``.

Differs: in the released code clients count alike (``weights`` and ``rest``: uniform) and alpha falls towards 0.2
(``alpha_floor``), which is q_j only if there are five equal clients; here it falls towards q_j.

Shape legend: D projection, N clients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import WireSize, array_size
from rayfed_ssl.federated.messages import TRAINS
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, only
from rayfed_ssl.federated.server import MethodServer, counting
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.federated.uploads import Correlation
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.methods.parts.privacy import (
    Mechanism,
    PrivacyConfig,
    Spent,
    noise,
    require_accountant,
    rho,
    spent,
    statement,
)
from rayfed_ssl.objectives.base import Step, encoded_together
from rayfed_ssl.objectives.spectral import SpectralConfig, clip_norm, correlation, spectral_loss
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.run import RunSettings


class Config(MethodConfig):
    name: Literal["fedsc"] = "fedsc"
    weights: Literal["size", "uniform"] = "size"
    """How clients count in the mean of models: by their number of images, or all the same."""
    alpha: Literal["decay", "share"] = "decay"
    """Weight of a client's own correlations: ``decay``, linearly from 1 towards the floor; ``share``, always q_j."""
    alpha_floor: Annotated[float, Field(ge=0, le=1)] | None = None
    """Alpha falls from 1 towards it: 1 - (1 - floor) (t - 1) / rounds in round t; null: q_j."""
    sharing_passes: Annotated[int, Field(ge=1)] = 10
    """V', how many views of an image R_j is averaged over."""
    rest: Literal["shares", "uniform"] = "shares"
    """How the others count in R_{-j}: by their number of images, or all the same."""
    sharing_mode: Literal["eval", "train"] = "eval"
    """Mode of the network that R_j is computed with; ``train``: BatchNorm uses the statistics of the batch."""
    share_every: Annotated[int, Field(ge=1)] = 1
    """R is exchanged every so many rounds; in between the last matrices are used."""
    share_rounds: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    """The rounds that exchange R, in place of ``share_every``."""
    privacy: PrivacyConfig | None = None

    def sharing_rounds(self, rounds: int) -> tuple[int, ...]:
        """The rounds among 1 .. ``rounds`` in which R is exchanged, ascending.

        An exchange serves from its round until the next one; it is left out where alpha is 1 all that time.
        """
        if self.share_rounds is not None:
            wanted = sorted(set(self.share_rounds))
        else:
            wanted = list(range(1, rounds + 1, self.share_every))
        untils = [*wanted[1:], rounds + 1]
        return tuple(t for t, until in zip(wanted, untils, strict=True) if any(map(self.others_count, range(t, until))))

    def others_count(self, t: int) -> bool:
        """Whether alpha is below 1 in round t, for a client that does not hold all images."""
        return self.alpha == "share" or (t > 1 and self.alpha_floor != 1)


def noise_scale(config: RunSettings, images: int) -> float:
    """sigma of a client with so many images: as given, or such that the target holds if every sharing round asks it."""
    method, mu = config.method_as(Config), config.objective_as(SpectralConfig).clip
    assert method.privacy is not None
    assert mu is not None
    releases = len(method.sharing_rounds(config.train.rounds))
    return method.privacy.noise_scale(mu, images, max(1, releases))


def alpha_of(t: int, rounds: int, floor: float) -> float:
    """A client's weight for its own correlations in round t >= 1: 1 - (1 - floor) (t - 1) / rounds (appendix C)."""
    return 1 - (1 - floor) * (t - 1) / rounds


def weighted_sum(matrices: Mapping[int, np.ndarray], client_shares: np.ndarray) -> np.ndarray:
    """sum_k q_k R_k (D, D) in float64, over everybody whose matrix is known, in client order."""
    total = np.zeros(())
    for k in sorted(matrices):
        total = total + float(client_shares[k]) * matrices[k].astype(np.float64)
    return total


def without(total: np.ndarray, own: np.ndarray | None, weight: float, everybody: float) -> np.ndarray:
    """R_{-j} = (sum_k q_k R_k - q_j R_j) / (sum_k q_k - q_j): (D, D) float32, exact up to float64 rounding.

    ``own`` is None for a client whose matrix is not in the sums.
    """
    if own is None:
        return np.asarray(total / everybody, np.float32)
    return np.asarray((total - weight * own.astype(np.float64)) / (everybody - weight), np.float32)


class Client(EncoderClient[Config]):
    def correlation(self, weights: Weights) -> dict[str, Any]:
        """R_j (D, D) over the whole shard, V' augmented views of each image, with DP-CalR's noise where asked for."""
        self.load(weights)
        pixels = self.pixels()
        total: Tensor = torch.zeros(())
        training = self.method.sharing_mode == "train"
        for z in self.projections(pixels, views=self.method.sharing_passes, training=training):  # (V', B, D)
            total = total + correlation(self.clipped(z)).double() * z.shape[1]
        r = total / len(pixels)
        if self.method.privacy is not None:
            sigma = noise_scale(self.config, len(pixels))
            r = r + noise(r.shape, sigma, self.generator("noise"))
        return {"correlation": r.float().cpu().numpy()}

    def train(self, weights: Weights, rest: np.ndarray | None, alpha: float) -> dict[str, Any]:
        """Local epochs of L_j (eq. 5); ``rest`` is R_{-j} (D, D), None where nobody else's matrix is known."""
        self.load(weights)
        others = None if rest is None else torch.tensor(rest, device=self.context.device)

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            features, projections = encoded_together(self.network, views)
            z = self.clipped(torch.stack(projections))  # (V, B, D)
            return Step(spectral_loss(z, others, alpha), z.unbind(), features)

        self.fit(loss)
        return {"weights": self.weights}

    def clipped(self, z: Tensor) -> Tensor:
        """Projections with ||z||^2 <= mu, in sharing and in training alike."""
        mu = self.config.objective_as(SpectralConfig).clip
        return z if mu is None else clip_norm(z.float(), mu)


class Server(MethodServer[Config]):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        several = len(setup.clients) > 1  # a client alone has nobody to compare with, and releases nothing
        self.sharing: tuple[int, ...] = self.method.sharing_rounds(self.config.train.rounds) if several else ()

    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()
        self.state["bank"] = {}  # client -> the R_j it sent last
        self.state["releases"] = {}  # client -> how many it was asked for

    def asks_everybody(self, t: int) -> bool:
        return bool(self.sharing) and t == self.sharing[0]

    def counts(self, clients: Sequence[int]) -> dict[int, float] | None:
        return counting(self.method.weights, clients)

    def round(self, t: int, cohort: Cohort) -> None:
        if t in self.sharing:
            self.share(cohort)
        bank: dict[int, np.ndarray] = self.state["bank"]
        client_shares = cohort.shares if self.method.rest == "shares" else np.ones(len(cohort.shares))
        total, everybody = weighted_sum(bank, client_shares), float(sum(client_shares[k] for k in bank))
        alone = {c for c in cohort.clients if not bank.keys() - {c}}  # nobody else's matrix: plain spectral contrast
        alphas = {c: 1.0 if c in alone else self.alpha(t, c) for c in cohort.clients}

        def own(client: int) -> dict[str, Any]:
            if client in alone:
                return {"rest": None, "alpha": alphas[client]}
            rest = without(total, bank.get(client), float(client_shares[client]), everybody)
            return {"rest": rest, "alpha": alphas[client]}

        by = self.counts(cohort.clients)
        self.weights = cohort.mean("train", by=by, weights=self.weights, each=own)["weights"]
        self.metrics["train/alpha"] = float(np.mean(list(alphas.values())))
        if self.method.privacy is not None:
            most = self.most_spent(self.method.privacy)
            self.metrics |= {"privacy/epsilon": most.epsilon, "privacy/epsilon_closed_form": most.epsilon_closed_form}

    def share(self, cohort: Cohort) -> None:
        """The first exchange: each client's R_j into the bank. Every client asked has released one, whether or not its
        reply is late, or used.
        """
        releases: dict[int, int] = self.state["releases"]
        for client in cohort.clients:
            releases[client] = releases.get(client, 0) + 1
        for reply in cohort.ask("correlation", weights=self.weights):
            self.state["bank"][reply.client] = reply["correlation"]

    def alpha(self, t: int, client: int) -> float:
        """The weight of a client's own correlations in round t."""
        share = float(self.setup.shares[client])
        if self.method.alpha == "share":
            return share
        floor = share if self.method.alpha_floor is None else self.method.alpha_floor
        return alpha_of(t, self.config.train.rounds, floor)

    # -- costs ---------------------------------------------------------------------------------------------------------

    def workload(self, operation: str, client: int) -> Workload | None:
        if operation == "correlation":
            images = int(self.setup.federation.sizes[client])
            return Workload.inferred(images, self.method.sharing_passes, correlation=self.matrix_size)
        return self.fitting(client, **self.setup.network_sizes(self.common_encoder))

    def operations(self, t: int, client: int, met: Collection[int]) -> tuple[str, ...]:
        return ("correlation", TRAINS) if t in self.sharing else (TRAINS,)

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """Weights, for both operations; from the first round that shares on R_{-j}, too."""
        weights = self.setup.network_sizes(self.common_encoder, "down")
        return {**weights, "rest": self.matrix_size} if self.sharing and t >= self.sharing[0] else weights

    @property
    def matrix_size(self) -> WireSize:
        """The size of R_j, and of R_{-j}."""
        return array_size(self.config.projection_dim, self.config.projection_dim)

    # -- DP-CalR -------------------------------------------------------------------------------------------------------

    @cached_property
    def noise_scales(self) -> dict[int, float]:
        """sigma of a client by its number of images."""
        sizes = np.unique(self.setup.federation.sizes[list(self.setup.clients)]).tolist()
        return {images: noise_scale(self.config, images) for images in sizes}

    def released(self, client: int) -> Mechanism:
        """A client's matrices so far."""
        return self.mechanism(client, self.state["releases"].get(client, 0))

    def mechanism(self, client: int, releases: int) -> Mechanism:
        """So many matrices of a client."""
        mu = self.config.objective_as(SpectralConfig).clip
        assert mu is not None
        images = int(self.setup.federation.sizes[client])
        return Mechanism(mu, self.noise_scales[images], images, releases)

    def most_spent(self, privacy: PrivacyConfig) -> Spent:
        """What the client that has spent most has spent so far."""
        mechanisms = dict.fromkeys(map(self.released, self.setup.clients))  # of equal clients once
        return spent(max(mechanisms, key=rho), privacy.delta)

    def privacy(self) -> dict[str, Any] | None:
        """What each client has spent, in both conversions; its Renyi curve is order times ``rho``."""
        if self.method.privacy is None:
            return None
        mechanisms = {client: self.released(client) for client in self.setup.clients}
        return statement(mechanisms, self.method.privacy.delta, len(self.sharing))

    def notes(self) -> list[Note | str]:
        return [*self.unshared(), *self.spending()]

    def unshared(self) -> list[Note]:
        """A line if no round exchanges matrices, and why."""
        if self.sharing:
            return []
        if len(self.setup.clients) == 1:
            why = "one client that trains, and there are no others; to have some, at least 2"
        elif self.method.alpha_floor == 1:
            why = "method.alpha_floor=1, and others' matrices have the weight 1 - alpha; to have some, one below 1"
        else:
            why = (
                "method.alpha=decay and train.rounds=1, and alpha is 1 in round 1; to have some, method.alpha=share or "
                "train.rounds of at least 2"
            )
        line = "no round exchanges correlation matrices, so clients train as fedavg_sc's do"
        return [Note.shareable(line, f": found {why}")]

    def spending(self) -> list[Note | str]:
        """Lines on what ``method.privacy`` may spend."""
        if self.method.privacy is None:
            return []
        planned = [self.mechanism(c, len(self.sharing)) for c in self.setup.clients]
        most = spent(max(planned, key=rho), self.method.privacy.delta)
        delta, images = self.method.privacy.delta, max(m.images for m in planned)
        large = Note.shareable(
            f"method.privacy.delta: found {delta:g}, but clients have up to {images} images: a delta of 1/{images} or "
            "more allows a mechanism that publishes one of them",
            f"; set method.privacy.delta below 1/{images}",
        )
        return [
            *([large] if delta * images >= 1 else []),
            f"privacy: after all {most.releases} planned releases of {most.covers}, at most epsilon {most.epsilon:.4g} "
            f"(closed form {most.epsilon_closed_form:.4g}) per client at delta {most.delta:g}; neighbours: "
            f"{most.neighbours}; not covered: {most.not_covered}",
        ]


def check(config: RunSettings) -> None:
    """Refuse sharing rounds that never come, an unused floor, what breaks the privacy bound. Raises ValueError."""
    method = config.method_as(Config)
    if method.share_rounds is not None:
        if method.share_every != 1:
            raise ValueError(f"method.share_every: found {method.share_every}; allowed beside method.share_rounds: 1")
        if (last := max(method.share_rounds)) > config.train.rounds:
            raise ValueError(f"method.share_rounds: found {last}; allowed: 1 to train.rounds={config.train.rounds}")
    if method.alpha == "share" and method.alpha_floor is not None:
        raise ValueError(f"method.alpha_floor: found {method.alpha_floor}; allowed beside method.alpha=share: null")
    if method.privacy is None:
        return
    if config.plugins:
        raise ValueError(
            f"plugins: found {', '.join(p.name for p in config.plugins)} beside method.privacy, which does not cover "
            "what a plug-in sends; allowed then: none"
        )
    mu = config.objective_as(SpectralConfig).clip
    if mu is None or not math.isfinite(mu):
        raise ValueError(
            f"objective.clip: found {'null' if mu is None else mu}; method.privacy needs a finite bound on ||z||^2"
        )
    if method.sharing_mode == "train":
        raise ValueError(
            "method.sharing_mode: found 'train'; method.privacy allows eval only: with batch statistics one image "
            "moves the embeddings of others, so the sensitivity bound does not hold"
        )


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse privacy where the accountant is not installed. Raises UserError."""
    if config.method_as(Config).privacy is not None:
        require_accountant()


def planned(config: RunSettings) -> str:
    """Why results depend on the number of rounds planned, so that a run cannot be extended; empty where they do not."""
    method = config.method_as(Config)
    if method.alpha == "decay" and method.alpha_floor != 1:
        return "method.alpha: found 'decay', which reaches its floor after train.rounds"
    if method.privacy is not None and method.privacy.epsilon is not None and method.share_rounds is None:
        return "method.privacy.epsilon: found a bound on what all of train.rounds may spend, which sets their noise"
    return ""


def as_summed(client: EncoderClient[Any], z: Tensor) -> Tensor:
    """Projections (V, n, D) as a client's R_j sums them."""
    assert isinstance(client, Client)
    return client.clipped(z)


def footprint(config: RunSettings, images: int) -> ClientFootprint:
    """A matrix of each client at the server, if any round shares them."""
    shares = bool(config.method_as(Config).sharing_rounds(config.train.rounds))
    return ClientFootprint(bank=4 * config.projection_dim**2 if shares else 0)


FEDSC = Method(
    Config,
    Client,
    Server,
    Info("FedSC (Jing 2024)", "weights, correlation matrices"),
    objective="spectral",
    accepts=only("spectral"),
    step="mean",
    second_view=True,
    check=check,
    check_federation=check_federation,
    footprint=footprint,
    planned=planned,
    uploads={"correlation": Correlation(as_summed, lambda config: config.method_as(Config).sharing_passes)},
)
