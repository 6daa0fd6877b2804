"""FedU2: uniform projections on every client (FUR), and a server step under which no client's distance to the global
model grows (EUA) (Liao et al. 2024, "Rethinking the representation in federated unsupervised learning with non-IID
data").

One exchange a round, of the whole network. Clients add to their objective ``uniformity`` times FUR of the projections,
summed over views, and ``rotation`` times the cross-entropy of which quarter turn a third view was given, read off its
projection. Local epochs are such that all clients take about as many steps (``equalise``). The server holds the
parameters of all clients of a round at once, finds the shortest convex combination g of the unit vectors along
theta - theta_k, and goes ``2 lr g`` from theta. Running statistics are means with weights n_k. Each part can be
switched off: ``uniformity: 0``, ``rotation: 0``, ``eua: false`` (FedAvg's mean).

FUR alone is a plug-in of any method with projections: ``plugins: [{name: fur}]``.

Differs: by default the server's step is not the authors' ``lr: 8``, which is as long whatever clients moved: with ``lr:
null`` lr is half the mean distance that they moved. The code sums FUR over as many tangent spaces as a batch has rows,
over 6; its 0.01 at 128 rows is the 0.2133 here. It counts batches where weights here count images. BYOL's target stays
with the client, where the code sends it and takes it into EUA. The solver is exact; see
:mod:`rayfed_ssl.methods.parts.unified`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.messages import Reply
from rayfed_ssl.federated.method import Info, Method, projecting
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.federated.workload import Batches, Workload, local_batches
from rayfed_ssl.methods import fedavg
from rayfed_ssl.methods.parts.third_view import turns_loss, with_third_view
from rayfed_ssl.methods.parts.unified import MOST_EPOCHS, equalised_epochs, sharpened, unified_step
from rayfed_ssl.objectives.base import Step
from rayfed_ssl.objectives.fur import sphere_uniformity
from rayfed_ssl.settings.blocks import refuse_unused
from rayfed_ssl.settings.run import PluginConfig, RunSettings

FUR_WEIGHT = 0.2133  # 0.01 B / 6 at B = 128
AUTHORS_LR = 8.0

Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Config(fedavg.Config):
    name: Literal["fedu2"] = "fedu2"
    uniformity: Weight = FUR_WEIGHT
    """Weight of FUR in the loss."""
    tangent_spaces: Count = 6
    """Tangent spaces of the sphere in which FUR compares distributions."""
    directions: Count = 6
    """Directions in each tangent space along which FUR compares them."""
    rotation: Weight = 1.0
    """Weight of the quarter turns' cross-entropy."""
    eua: bool = True
    """Whether the server's step is EUA; false: FedAvg's mean."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate of the server's step (the authors' code: 8, for a ResNet-18); null: see ``relative``."""
    relative: bool | None = None
    """Whether that rate follows from how far clients moved, in place of ``lr``; null: if ``lr`` is not given."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """T, which sharpens shares to q^(1/T) in running statistics, and in the mean without ``eua``; towards 0 only the
    largest counts.
    """
    equalise: bool | None = None
    """Whether small clients train more local epochs, so that all take about as many steps, as they do anyway with
    ``train.local_steps``; no client trains more than 10; null: as ``eua``.
    """

    @property
    def fixed_lr(self) -> float | None:
        """The server's learning rate; None where it follows from how far clients moved."""
        relative = self.lr is None if self.relative is None else self.relative
        return None if relative else self.lr or AUTHORS_LR

    @property
    def equalises(self) -> bool:
        """Whether local epochs are equalised, where steps are not set instead."""
        return self.eua if self.equalise is None else self.equalise

    @property
    def heads(self) -> frozenset[str]:
        return frozenset({"projected_rotation"} if self.rotation else ())


class PluginBlock(PluginConfig):
    """FUR alone, FedU2's uniform regulariser, as a plug-in."""

    name: Literal["fur"] = "fur"
    weight: Weight = FUR_WEIGHT
    """Weight of FUR in the loss."""
    tangent_spaces: Count = 6
    """Tangent spaces of the sphere in which FUR compares distributions."""
    directions: Count = 6
    """Directions in each tangent space along which FUR compares them."""
    weights: Literal["size", "uniform"] = "size"
    """Where it is the method: how clients count in the mean, by their number of images or all the same."""

    def unused(self, path: str) -> Mapping[str, str]:
        keys = {} if path == "method" else {f"{path}.weights": f"method.name={self.name}"}
        if not self.weight:
            keys |= {f"{path}.{key}": f"{path}.weight above 0" for key in ("tangent_spaces", "directions")}
        return keys


def uniformity(projections: tuple[Tensor, ...], config: Config | PluginBlock, draws: torch.Generator) -> Tensor:
    """FUR of V projections (B, D), summed over views: ()."""
    terms = [sphere_uniformity(z, config.tangent_spaces, config.directions, draws) for z in projections]
    return torch.stack(terms).sum()


class Client(EncoderClient[Config]):
    def train(self, weights: Weights, epochs: int | None = None) -> dict[str, Any]:
        """Local epochs of the objective, FUR and the turns' cross-entropy; ``epochs`` None: as many as the run says."""
        self.load(weights)
        local, pixels = self.objective_loss(), self.pixels()
        uniform, third, turning = (self.generator(purpose) for purpose in ("fur", "third view", "turns"))

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            step = local(views, rows)
            value = step.loss
            if self.method.uniformity:
                value = value + self.method.uniformity * uniformity(step.projections, self.method, uniform)
            if self.method.rotation:
                value = value + self.method.rotation * turns_loss(self, pixels[rows], turning, third)
            return step._replace(loss=value)

        self.fit(loss, epochs=epochs)
        return {"weights": self.weights}


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


class Server(fedavg.Server[Config]):
    def round(self, t: int, cohort: Cohort) -> None:
        by = self.counts(cohort.clients)
        if not self.method.eua:
            self.weights = cohort.mean("train", by=by, each=self.epochs, weights=self.weights)["weights"]
            return
        models = dict(_vectors(cohort.ask("train", each=self.epochs, weights=self.weights)))  # all of the round's
        if models:  # without a reply the round fails at its end
            counts = np.array([by[client] for client in models])
            self.weights = self.unified(self.weights, list(models.values()), counts / counts.sum())

    def unified(self, old: Weights, models: Sequence[np.ndarray], q: np.ndarray) -> Weights:
        """EUA's step from ``old`` (P + b,) over the parameters of the clients' ``models`` (P + b,); running statistics
        are their mean with shares ``q`` (n,). Records the step.
        """
        count, lr = old.parameters, self.method.fixed_lr
        start, ends = old.vector[:count], [model[:count] for model in models]
        new, alpha = unified_step(start, ends, lr or AUTHORS_LR, relative=q if lr is None else None)
        statistics = sum(share * model[count:].astype(np.float64) for share, model in zip(q, models, strict=True))
        step = new.astype(np.float64) - start
        self.metrics |= {
            "fedu2/step": float(np.linalg.norm(step)),
            "fedu2/active": float((alpha > 0).sum()),
            "fedu2/agreement": min(_cosine(end.astype(np.float64) - start, step) for end in ends),
        }
        return old.with_vector(np.concatenate([new, np.asarray(statistics, np.float32)]))

    def counts(self, clients: Sequence[int]) -> dict[int, float]:
        """Each client's share of the round's images, sharpened; or all the same."""
        uniform = self.method.weights == "uniform"
        counts = np.array([1.0 if uniform else float(self.setup.shares[c]) for c in clients])
        return dict(zip(clients, sharpened(counts / counts.sum(), self.method.temperature).tolist(), strict=True))

    def local_epochs(self, client: int) -> int:
        """The local epochs of one client; the run's, unless they are equalised."""
        epochs, sizes = self.config.train.local_epochs, self.setup.federation.sizes
        if not self.method.equalises:
            return epochs
        own, largest = (local_batches(self.config, int(n), epochs).per_epoch for n in (sizes[client], sizes.max()))
        return equalised_epochs(own, largest, epochs)

    def epochs(self, client: int) -> dict[str, int]:
        """A field of one client's message, a single number; none where steps are set instead of epochs."""
        return {} if self.config.train.local_steps else {"epochs": self.local_epochs(client)}

    def notes(self) -> list[Note | str]:
        return [*self.cut_epochs(), *self.without_effect()]

    def cut_epochs(self) -> list[Note]:
        """A line if every client trains fewer local epochs than the run says."""
        train = self.config.train
        if train.local_steps or not self.method.equalises or train.local_epochs <= MOST_EPOCHS:
            return []
        said = f"clients train {MOST_EPOCHS} local epochs a round at most, of train.local_epochs={train.local_epochs}"
        return [Note.shareable(said, " (method.equalise=false: as many as train.local_epochs says)")]

    def without_effect(self) -> list[str]:
        """A step of a fixed rate asks nobody's share, which running statistics alone do then."""
        initial = self.initial_weights()
        if not self.method.eua or self.method.fixed_lr is None or len(initial.vector) > initial.parameters:
            return []
        changed = {"weights": self.method.weights != "size", "temperature": self.method.temperature != 1}
        why = "has no effect beside method.lr: the network has no running statistics"
        return [f"method.{key} {why}" for key, given in changed.items() if given]

    # -- costs ---------------------------------------------------------------------------------------------------------

    def fit_batches(self, client: int) -> Batches:
        """The batches of one `fit`, by the client's own number of local epochs."""
        return local_batches(self.config, int(self.setup.federation.sizes[client]), self.epochs(client).get("epochs"))

    def workload(self, operation: str, client: int) -> Workload:
        """As FedAvg's, and a third view of every image, where turns are predicted."""
        epochs = super().workload(operation, client)
        return with_third_view(epochs) if self.method.rotation else epochs


def _vectors(replies: Iterator[Reply]) -> Iterator[tuple[int, np.ndarray]]:
    """Each client's values, copied as they come: all of a round's models may be more than Ray's object store takes."""
    for reply in replies:
        yield reply.client, np.array(reply["weights"].vector)


class ClientHalf(ClientPlugin[PluginBlock]):
    def __init__(self, config: PluginBlock, client: EncoderClient[Any]) -> None:
        super().__init__(config, client)
        beside = isinstance(client.method, Config) and client.method.uniformity > 0  # which draws from "fur" itself
        self.draws = client.generator("fur beside FedU2's" if beside else "fur")

    def penalty(self, projections: tuple[Tensor, ...], features: tuple[Tensor, ...] = ()) -> Tensor | None:
        if self.config.weight == 0 or not projections:
            return None
        return self.config.weight * uniformity(projections, self.config, self.draws)


def check(config: RunSettings) -> None:
    """Refuse keys of a step that the server does not take. Raises ValueError."""
    if not config.method_as(Config).eua:
        refuse_unused(config.method, "method", "lr", "relative", needs="method.eua=true")


def unused(config: RunSettings) -> dict[str, str]:
    """The learning rate of a step that follows from how far clients moved; what FUR alone reads, without it; what
    sharpens shares that are all the same, and equalises steps that are.
    """
    method, keys = config.method_as(Config), dict[str, str]()
    if method.relative:
        keys["method.lr"] = "method.relative=false"
    if not method.uniformity:
        keys |= dict.fromkeys(("method.tangent_spaces", "method.directions"), "method.uniformity above 0")
    if method.weights == "uniform":
        keys["method.temperature"] = "method.weights=size"
    if config.train.local_steps is not None and method.equalise:
        keys["method.equalise"] = "train.local_steps=null"
    return keys


FEDU2 = Method(
    Config,
    Client,
    Server,
    Info("FedU2 (Liao 2024)", "weights"),
    objective="simclr",
    accepts=projecting,
    unused=unused,
    check=check,
)
FUR = Method(
    PluginBlock,
    fedavg.Client,
    fedavg.Server,
    Info("FedU2's uniform regulariser alone (Liao 2024)", "weights"),
    objective="simclr",
    accepts=projecting,
    plugin=(ClientHalf, ServerPlugin),
    step="exchange",
    averages_targets=True,
)
