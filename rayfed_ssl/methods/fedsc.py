"""FedSC: spectral contrast against everybody's correlations (Jing et al. 2024, Algorithm 1).

Two exchanges a round: weights down, R_j up; R_{-j} down, weights up. The correlation matrices of the other clients let
each one contrast against images it never sees: L_j = -2 Tr R+_j + alpha ||R_j||^2 + 2 (1 - alpha) Tr(R_j R_{-j}) (eq.
5). With alpha = q_j the q-weighted sum of the clients' gradients is the gradient of the global loss (eq. 6).

A client that is not asked is represented by the matrix it sent last; the first round asks everybody.

Differs: R_{-j} = sum_{k != j} q_k R_k / (1 - q_j) exactly, where the released code takes the unweighted mean of the
others, which is the same only for equal q_j (``rest: uniform``). alpha falls linearly from 1 to q_j by the last round;
the released code's floor is 0.2 for every client and never quite reached (``alpha: decay, alpha_floor: 0.2``).

Shape legend: D projection, N clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.client import EncoderClient
from rayfed_ssl.methods.base import Info, Method, MethodConfig, MethodServer
from rayfed_ssl.objectives.base import Step
from rayfed_ssl.objectives.spectral import clip_norm, correlation, spectral_loss
from rayfed_ssl.weights import Weights


class Config(MethodConfig):
    name: Literal["fedsc"] = "fedsc"
    alpha: Literal["decay", "share"] = "decay"  # linearly from 1 to the floor over rounds, or q_j throughout
    alpha_floor: Annotated[float, Field(ge=0, le=1)] | None = None  # None: q_j
    sharing_passes: Annotated[int, Field(ge=1)] = 10  # V', views per image that R_j is averaged over
    rest: Literal["shares", "uniform"] = "shares"  # how the others count in R_{-j}
    share_every: Annotated[int, Field(ge=1)] = 1  # rounds between exchanges of R; in between the last ones serve


def alpha_of(t: int, rounds: int, floor: float) -> float:
    """A client's weight for its own correlations in round t >= 1: 1 - (1 - floor) (t - 1) / rounds (appendix C)."""
    return 1 - (1 - floor) * (t - 1) / rounds


def weighted_sum(matrices: Mapping[int, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """sum_k q_k R_k (D, D) in float64, over everybody whose matrix is known, in client order."""
    total = np.zeros(next(iter(matrices.values())).shape)
    for k in sorted(matrices):
        total += float(weights[k]) * matrices[k].astype(np.float64)
    return total


def without(total: np.ndarray, own: np.ndarray, weight: float, everybody: float) -> np.ndarray:
    """R_{-j} = (sum_k q_k R_k - q_j R_j) / (sum_k q_k - q_j): (D, D) float32, exact up to float64 rounding."""
    return np.asarray((total - weight * own.astype(np.float64)) / (everybody - weight), np.float32)


class Client(EncoderClient):
    def correlation(self, weights: Weights) -> dict[str, Any]:
        """R_j (D, D) over the whole shard: eval mode, V' augmented views of each image."""
        self.load(weights)
        total: Tensor = torch.zeros(())
        seen = 0
        for z in self.projections(self.pixels(), views=self.method.sharing_passes):  # (V', B, D)
            total = total + correlation(self.clipped(z)).double() * z.shape[1]
            seen += z.shape[1]
        return {"correlation": (total / seen).float().cpu().numpy()}

    def train(self, weights: Weights, rest: np.ndarray | None, alpha: float) -> dict[str, Any]:
        self.load(weights)
        others = None if rest is None else torch.tensor(rest, device=self.bench.device)

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            z = self.clipped(torch.stack(self.network.project(torch.cat(views)).chunk(len(views))))  # (V, B, D)
            return Step(spectral_loss(z, others, alpha), z.unbind())

        self.fit(loss)
        return {"weights": self.weights}

    def clipped(self, z: Tensor) -> Tensor:
        """Projections with ||z||^2 <= mu, in sharing and in training alike."""
        mu = self.config.objective.clip  # type: ignore[union-attr]
        return z if mu is None else clip_norm(z.float(), mu)


class Server(MethodServer):
    def start(self, cohort: Any) -> None:
        self.weights = self.setup.initial(self.config.clients.encoder(self.setup.clients[0]))
        self.state["bank"] = {}  # client -> the R_j it sent last

    def asks_everybody(self, t: int) -> bool:
        return t == 1

    def round(self, t: int, cohort: Any) -> None:
        bank: dict[int, np.ndarray] = self.state["bank"]
        if (t - 1) % self.method.share_every == 0:
            bank |= {r.client: r["correlation"] for r in cohort.ask("correlation", weights=self.weights)}
        weights = cohort.shares if self.method.rest == "shares" else np.ones(len(cohort.shares))
        total, everybody = weighted_sum(bank, weights), float(sum(weights[k] for k in bank))

        def own(client: int) -> dict[str, Any]:
            if len(bank) == 1:  # nobody else: plain spectral contrast
                return {"rest": None, "alpha": 1.0}
            rest = without(total, bank[client], float(weights[client]), everybody)
            return {"rest": rest, "alpha": self.alpha(t, client)}

        self.weights = cohort.mean("train", weights=self.weights, each=own)["weights"]
        self.metrics["train/alpha"] = float(np.mean([self.alpha(t, c) for c in cohort.clients]))

    def alpha(self, t: int, client: int) -> float:
        share = float(self.setup.shares[client])
        if self.method.alpha == "share":
            return share
        floor = share if self.method.alpha_floor is None else self.method.alpha_floor
        return alpha_of(t, self.config.train.rounds, floor)


FEDSC = Method(
    Config, Client, Server, Info("Jing et al. 2024", "weights, correlation matrices"), objectives=("spectral",)
)
