"""FedLinked: clients with tasks of their own teach each other representations of public images (thesis, Algorithm 3).

A round has seven steps. (1) Every client sends its representations of the public images. (2) The server finds the
orthogonal map B_kj from each source k's space into each target j's (3.8), and the utility A_kj of k for j (3.4). (3)
Client j alone gets its target f*_j = sum_k A_kj B_kj alpha_k / sum_k A_kj. (4) The client follows it (3.6). (5) It
fine-tunes its head on the frozen trunk. (6) It trains on its private images. (7) It remembers its best round, to which
it returns after the last one.

No weights leave a client, so only the size r of the representation is shared. The public images are with everybody
beforehand, so they are not booked. ``gamma`` sum_j ||theta_j||^2 (3.1, 3.7) is weight decay 2 gamma. The likeness G_kj
/ (||P_k||_F ||P_j||_F) is recorded beside A, because G grows with the length of representations.

Differs: (3.5) and Algorithm 3 divide by the norm over all pairs, which breaks the constraint sum_k A_kj^2 = eta of each
target j; here the norm is over the sources of one target, as in the printed tables. These have s = eta
(``utility_scale``), the constraint s = sqrt(eta); f*_j is the same for both.

Shape legend: N clients, M public images, r representation, k source, j target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.linalg import orthogonal_map
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, require_public
from rayfed_ssl.federated.method import Info, Method, only
from rayfed_ssl.federated.results import ClientMatrix
from rayfed_ssl.federated.server import pretrain
from rayfed_ssl.federated.steps import descend
from rayfed_ssl.federated.uploads import PublicOutputs
from rayfed_ssl.methods.parts.tasks import Epochs, TaskClient, TaskConfig, TaskServer, check_tasks, footprint, planned
from rayfed_ssl.models.encoders import encoder_dim
from rayfed_ssl.settings.run import RunSettings

PAIRS_SHOWN = 16  # clients up to which every pair's utility is a metric of its own; the figure shows all
SIZED = "fedlinked_cnn"  # the encoder whose representation may have any size
CANCELLED = 1e-6  # of ||A_.j||: a sum of utilities not above this gives no target


class Config(TaskConfig):
    name: Literal["fedlinked"] = "fedlinked"
    eta: Annotated[float, Field(gt=0)] = 2.97
    """Strength of the utilities that are recorded; it changes training only with ``weighted_distillation``."""
    utility_scale: Literal["sqrt_eta", "eta"] = "sqrt_eta"
    """s, the factor of the utilities: the square root of ``eta``, or ``eta`` itself."""
    transformation: bool = True
    """Whether the maps B_kj are found; false leaves every representation in its own space."""
    weighted_distillation: bool = False
    """Whether the distillation is multiplied by sum_k A_kj."""
    distillation_epochs: Epochs = None
    """Epochs on the public images; null: ``train.local_epochs``."""
    fine_tune_epochs: Epochs = None
    """Epochs of the head on the frozen trunk; null: ``train.local_epochs``."""
    gamma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of gamma ||theta||^2 in the loss, applied as weight decay."""

    @property
    def scale(self) -> float:
        """s."""
        return self.eta if self.utility_scale == "eta" else self.eta**0.5


def gains(representations: Tensor, transformation: bool = True) -> tuple[Tensor, dict[tuple[int, int], Tensor]]:
    """G (N, N), G_kj = sum_x <alpha_j(x), B_kj alpha_k(x)>, zeros on the diagonal, and the maps B_kj (r, r) by (k, j).

    Representations are (N, M, r) float64. With the transformation G_kj = ||R_kj||_* is symmetric and not negative, and
    B_jk = B_kj^T; without it B_kj = I.
    """
    count, _, r = representations.shape
    g, maps = representations.new_zeros(count, count), {}
    for k in range(count):
        for j in range(k + 1, count):
            if transformation:
                maps[k, j], value = orthogonal_map(representations[k], representations[j])
            else:
                maps[k, j] = torch.eye(r, dtype=representations.dtype, device=representations.device)
                value = (representations[k] * representations[j]).sum()
            maps[j, k] = maps[k, j].mT
            g[k, j] = g[j, k] = value
    return g, maps


def utilities(g: Tensor, scale: float) -> Tensor:
    """A (N, N), A[k, j] = s G[k, j] / sqrt(sum_{u != j} G[u, j]^2): the utility of source k for target j.

    Zeros on the diagonal, and in the column of a target that nobody's representation fits at all.
    """
    others = g.clone().fill_diagonal_(0)
    norm = others.norm(dim=0)
    return scale * others / torch.where(norm > 0, norm, 1.0)


def likenesses(g: Tensor, representations: Tensor) -> Tensor:
    """(N, N) G_kj / (||P_k||_F ||P_j||_F): how well P_k can be turned into P_j, whatever their lengths. With the
    transformation 1 where a rotation and a factor do it; zeros on the diagonal.
    """
    norms = representations.flatten(1).norm(dim=1)  # (N,)
    product = norms[:, None] * norms
    return g / torch.where(product > 0, product, 1.0)


def target(j: int, representations: Tensor, a: Tensor, maps: dict[tuple[int, int], Tensor]) -> Tensor | None:
    """f*_j (M, r) = sum_{k != j} A_kj B_kj alpha_k / sum_{k != j} A_kj; None where the sum is not positive, as can be
    without the transformation, or for representations that are all zero.
    """
    if a[:, j].sum() <= CANCELLED * a[:, j].norm():
        return None
    sources = [k for k in range(len(representations)) if k != j]
    total = torch.stack([a[k, j] * representations[k] @ maps[k, j].mT for k in sources]).sum(0)
    return total / a[:, j].sum()


class Client(TaskClient[Config]):
    @property
    def weight_decay(self) -> float:
        """The run's own, plus 2 gamma: the gradient of gamma ||theta||^2 is 2 gamma theta."""
        return super().weight_decay + 2 * self.method.gamma

    def represent(self) -> dict[str, Any]:
        """(1) alpha_j of the public images, (M, r) in eval mode."""
        self.load_own()
        return {"representations": self.represented(self.network, self.public_pixels()).cpu().numpy()}

    def follow(self, target: np.ndarray | None, utility: float) -> dict[str, Any]:
        """(4) distil f*_j (M, r), where there is one, into the trunk, times ``utility``; (5) fine-tune the head on the
        frozen trunk.
        """
        self.load_own()
        if target is not None:
            self.distil(torch.tensor(target, device=self.context.device), utility)
        self.fine_tune(self.method.fine_tune_epochs)
        self.keep_own()
        return {}

    def distil(self, target: Tensor, utility: float) -> None:
        """Epochs of utility * mean_x ||f(x) - f*(x)||^2 / r (3.6); the head gets no gradient, so it does not move."""
        network, public = self.network, self.public_pixels()
        network.train()
        parameters: list[Tensor] = list(network.encoder.parameters())
        optimizer = self.optimizer(parameters)
        total, steps = torch.zeros((), device=self.context.device), 0
        for rows in self.batches(len(public), self.method.distillation_epochs):
            with self.autocast():
                features = network.represent(self.context.clean(public[rows]))
            loss = utility * F.mse_loss(features.float(), target[rows])
            descend(optimizer, loss, self.config.train.optimizer.clip_norm)
            total, steps = total + loss.detach(), steps + 1
        self.metrics["distillation"] = float(total) / steps

    def train(self) -> dict[str, Any]:
        """(6) supervised epochs on everything with early stopping; (7) keep the best on `rb`."""
        self.load_own()
        self.learn(None)
        self.keep_own_and_best()
        return {}


class UtilityService(EncoderClient[Config]):
    """The server's mathematics, which runs where clients run."""

    def link(self, sent: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
        """(2) All G first, because the norm in A_kj needs them, then A and every f*_j.

        Takes N clients' representations, (M, r) each; returns A and the likenesses (N, N), the targets (N, M, r) and
        which of them exist (N,).
        """
        representations = np.stack([fields["representations"] for fields in sent])
        alpha = torch.tensor(representations, dtype=torch.float64, device=self.context.device)
        g, maps = gains(alpha, self.method.transformation)
        a = utilities(g, self.method.scale)
        targets = [target(j, alpha, a, maps) for j in range(len(alpha))]
        found = torch.stack([torch.zeros_like(alpha[0]) if f is None else f for f in targets])
        return {
            "utility": a.cpu().numpy(),
            "likeness": likenesses(g, alpha).cpu().numpy(),
            "targets": found.float().cpu().numpy(),
            "exists": np.array([f is not None for f in targets]),
        }


class Server(TaskServer[Config]):
    def start(self, cohort: Cohort) -> None:
        super().start(cohort)
        clients = self.config.clients.count
        self.state["utility"] = np.full((clients, clients), np.nan)  # A[k, j] as it was last, for the record only

    def round(self, t: int, cohort: Cohort) -> None:
        pretrain(self, cohort)
        several = len(cohort.clients) > 1  # nobody follows itself
        replies = list(cohort.ask("represent")) if several else []  # (1)
        if len(replies) > 1:
            clients = [reply.client for reply in replies]
            linked = cohort.serve("link", sent=[reply.fields for reply in replies])  # (2)
            self.note(clients, linked["utility"], linked["likeness"])
            row = {client: i for i, client in enumerate(clients)}
            self.metrics["fedlinked/targets"] = float(linked["exists"].sum())

            def own(client: int) -> dict[str, Any]:  # (3)
                j = row[client]
                factor = float(linked["utility"][:, j].sum()) if self.method.weighted_distillation else 1.0
                return {"target": linked["targets"][j] if linked["exists"][j] else None, "utility": factor}

            cohort.tell("follow", each=own, clients=clients)  # (4), (5)
        cohort.tell("train")  # (6), (7)

    def note(self, clients: list[int], utility: np.ndarray, likeness: np.ndarray) -> None:
        """Remember and record the utilities, and record the likenesses, of this round's pairs."""
        whole = np.array(self.state["utility"])
        for k, source in enumerate(clients):
            for j, to in enumerate(clients):
                if k != j:
                    whole[source, to] = utility[k, j]
                    if len(whole) <= PAIRS_SHOWN:
                        self.metrics[f"fedlinked/A_{source}_{to}"] = float(utility[k, j])
                if k < j and len(whole) <= PAIRS_SHOWN:
                    self.metrics[f"fedlinked/likeness_{source}_{to}"] = float(likeness[k, j])
        self.state["utility"] = whole

    def client_matrices(self) -> dict[str, ClientMatrix]:
        whole = self.state["utility"]
        return {"utility": ClientMatrix(whole.T, "target", "source")} if np.isfinite(whole).any() else {}

    # -- costs ---------------------------------------------------------------------------------------------------------

    def server_images(self, t: int, clients: Sequence[int]) -> int | None:
        """0: utilities and targets are computed from representations, not from images."""
        return 0


def check(config: RunSettings) -> None:
    """Refuse a run without tasks, or with representations of different sizes. Raises ValueError."""
    check_tasks(config)
    encoders = sorted(config.clients.architectures)
    try:
        sizes = {
            name: encoder_dim(name, config.model, config.data.image_size, config.data.channels) for name in encoders
        }
    except UserError as error:
        raise ValueError(str(error)) from None
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name} {size}" for name, size in sizes.items())
        others = {size for name, size in sizes.items() if name != SIZED}
        remedy = f": model.representation={others.pop()} gives it to {SIZED}" if len(others) == 1 else ""
        raise ValueError(
            f"clients.encoders: found representations of different sizes ({found}); fedlinked needs one for all "
            f"clients{remedy}"
        )


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse a share of public images that rounds to none: nothing could be exchanged. Raises UserError."""
    share = config.data.public.share
    require_public(
        federation, 1, "fedlinked", f"a data.public.share of a class that is not rounded to none, as {share} is"
    )


FEDLINKED = Method(
    Config,
    Client,
    Server,
    Info(
        "FedLinked",
        "representations of public images",
        stateful=True,
        heterogeneous=True,
        public_data=True,
        independent=True,
    ),
    objective="supervised",
    accepts=only("supervised"),
    sends_weights=lambda config: (),
    service=UtilityService,
    check=check,
    check_federation=check_federation,
    footprint=footprint,
    planned=planned,
    uploads={"representations": PublicOutputs()},
)
