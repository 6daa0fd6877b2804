"""FedCA: contrast against everybody's dictionary, align to a shared model (Zhang et al. 2020, Algorithm 1, eq. 4-14).

Once, the server trains an alignment model on public images and sends both. A round is one exchange: weights and K
dictionary entries go down; a client trains E local epochs of ``L = L_con + beta (L_h + L_z)``; its weights and the
projections of its images go up. L_con is InfoNCE from view 1 to view 2 with the dictionary as further negatives (eq.
4-8). L_h and L_z hold features and projections of public images near those of the frozen alignment model (eq. 11-13).
An image's entry is its temporal ensemble ``Z^t = a Z^{t-1} + (1 - a) z^t``, normalised (eq. 9-10). The ensemble is the
client's state.

``dictionary_size: 0``, ``ensembling: 0`` and ``alignment: false`` switch the modules off one by one.

Differs: the paper does not say how K entries are drawn from many more. Here they are drawn uniformly, anew each round,
for each client from those of the others (``exclude_own``); the server keeps what each client uploaded last. L_h and L_z
are means over a batch, where eq. 11 and 12 have sums. z^t is of the clean image in eval mode. The alignment model
trains on the run's objective.

Shape legend: B batch, D projection, H features, n_u images of a client, K dictionary, U union of uploads, M public
images.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, require_public
from rayfed_ssl.federated.ledger import array_size
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, only
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.uploads import Entries
from rayfed_ssl.federated.workload import Workload, local_batches
from rayfed_ssl.objectives.base import Step, encoded_together, full_precision
from rayfed_ssl.objectives.simclr import SimCLRConfig, info_nce
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.run import RunSettings

LARGEST = 1024  # entries of a dictionary whose size is not given
IMAGES = "public_images"  # the name under which the public images are published


class Config(MethodConfig):
    name: Literal["fedca"] = "fedca"
    dictionary_size: Annotated[int, Field(ge=0)] | None = None
    """K, how many entries a client downloads, or all that there are while few clients have been asked; null: 1024, or
    as many as all others have, where these are fewer; 0: no dictionary, so only weights go up.
    """
    ensembling: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """a, the share that an entry keeps of its last value; 0: entries are this round's projections."""
    exclude_own: bool = True
    """Whether a client's own entries are left out of its draw."""
    alignment: bool = True
    """Whether features and projections of public images are held near the alignment model's."""
    beta: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the alignment."""
    alignment_epochs: Annotated[int, Field(ge=1)] = 100
    """Epochs of the alignment model on the public images."""
    alignment_batch: Annotated[int, Field(ge=2)] = 128
    """Public images per local step; all of them where they are fewer."""

    @property
    def needs_public(self) -> bool:
        return self.alignment

    @property
    def has_dictionary(self) -> bool:
        return self.dictionary_size != 0


def ensemble(previous: np.ndarray | None, z: np.ndarray, a: float) -> np.ndarray:
    """Z^t = a Z^{t-1} + (1 - a) z^t with Z^0 = 0 (eq. 9): (n_u, D) float32."""
    new = np.float32(1 - a) * z
    return new if previous is None else np.float32(a) * previous + new


def unit_rows(z: np.ndarray) -> np.ndarray:
    """Z / ||Z|| per row (eq. 10): (n_u, D). The bias correction 1 / (1 - a^t) would cancel here."""
    return np.asarray(z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12), np.float32)


def draw_rows(union: int, size: int, draws: np.random.Generator, own: tuple[int, int] = (0, 0)) -> np.ndarray:
    """``size`` of the rows 0 .. U-1, uniformly without replacement, none of them in [own[0], own[1]).

    Where fewer than ``size`` are known yet, all there are.
    """
    start, stop = own
    others = union - (stop - start)
    rows = draws.choice(others, min(size, others), replace=False)
    return np.where(rows >= start, rows + (stop - start), rows)


def alignment_loss(h: Tensor, z: Tensor, h_al: Tensor, z_al: Tensor) -> Tensor:
    """L_h + L_z (eq. 11-13): squared distances of h (B, H), z (B, D) to the alignment model's, mean over the batch."""
    l_h = (full_precision(h) - h_al).square().sum(1).mean()
    l_z = (full_precision(z) - z_al).square().sum(1).mean()
    return l_h + l_z


class Client(EncoderClient[Config]):
    def train(self, weights: Weights, dictionary: np.ndarray | None) -> dict[str, Any]:
        """E local epochs from ``weights``; the ``dictionary`` (K, D) has further negatives, where there is one yet."""
        self.load(weights)
        bank = None if dictionary is None else torch.tensor(dictionary, device=self.context.device)  # (K, D)
        temperature = self.config.objective_as(SimCLRConfig).temperature
        alignment = self.alignment() if self.method.alignment else None

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            features, (z_a, z_b) = encoded_together(self.network, views)
            value = info_nce(z_a, z_b, temperature, bank)
            if alignment is not None:
                value = value + self.method.beta * alignment()
            return Step(value, (z_a, z_b), features)

        self.fit(loss)
        reply: dict[str, Any] = {"weights": self.weights}
        if self.method.has_dictionary:
            reply["dictionary"] = self.entries()
        return reply

    def entries(self) -> np.ndarray:
        """This client's dictionary (n_u, D), a row per image of its shard, by the model it has just trained."""
        z = torch.cat(list(self.projections(self.pixels()))).cpu().numpy()
        z = ensemble(self.state.get("ensemble"), z, self.method.ensembling)
        if self.method.ensembling:
            self.state["ensemble"] = z
        return unit_rows(z)

    def alignment(self) -> Callable[[], Tensor]:
        """A function that gives L_h + L_z of the model in training, on a new mini-batch of public images each time."""
        pixels = self.published_pixels(IMAGES)
        h_al, z_al = self.targets(pixels)
        draws, size = self.generator("public"), self.method.alignment_batch

        def next_term() -> Tensor:
            rows = torch.randperm(len(pixels), generator=draws, device=self.context.device)[:size]
            self.network.eval()
            h = self.network.represent(self.context.clean(pixels[rows]))
            z = self.network.project_features(h)
            self.network.train()
            return alignment_loss(h, z, h_al[rows], z_al[rows])

        return next_term

    @torch.no_grad()
    def targets(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """h_al (M, H) and z_al (M, D) of the frozen alignment model: eval mode, clean images, not normalised."""
        network = self.context.network(self.encoder, "alignment")
        unpack(self.context.published["alignment_model"], network)
        h = self.context.outputs(network, pixels, network.represent)
        return h, network.project_features(h)


class Service(EncoderClient[Config]):
    """The server's own training: the alignment model, once, at the full learning rate."""

    @property
    def learning_rate(self) -> float:
        return self.config.train.optimizer.lr

    def align(self, weights: Weights) -> dict[str, Any]:
        """The alignment model: what ``weights`` become on the public images."""
        self.load(weights)
        self.fit(pixels=self.public_pixels(), epochs=self.method.alignment_epochs)
        return {"weights": self.weights}


class Server(MethodServer[Config]):
    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()
        self.state["dictionaries"] = {}  # client -> (n_u, D), what it uploaded last
        if self.method.alignment:
            cohort.publish(IMAGES, np.asarray(self.setup.federation.public_images.pixels))
            cohort.publish("alignment_model", cohort.serve("align", weights=self.weights)["weights"])

    def round(self, t: int, cohort: Cohort) -> None:
        dictionary = self.dictionary(t)
        result = cohort.mean("train", weights=self.weights, each=lambda client: {"dictionary": dictionary(client)})
        self.weights = result["weights"]
        if self.method.has_dictionary:
            self.state["dictionaries"] |= {r.client: r["dictionary"] for r in result.replies}

    def dictionary(self, t: int) -> Callable[[int], np.ndarray | None]:
        """client -> the (K, D) entries it gets in round t: the same for all, or each one's draw from the others'."""
        uploads: Mapping[int, np.ndarray] = self.state["dictionaries"]
        if not uploads:  # the first round, or no dictionary
            return lambda client: None
        owners = sorted(uploads)
        union = np.concatenate([uploads[client] for client in owners])  # (U, D)
        ends = np.cumsum([len(uploads[client]) for client in owners])
        spans = {c: (int(end) - len(uploads[c]), int(end)) for c, end in zip(owners, ends, strict=True)}
        seed, size = self.config.seed, self.dictionary_size
        self.metrics["fedca/union"] = float(len(union))
        if not self.method.exclude_own:
            common = union[draw_rows(len(union), size, numpy_generator(seed, t, "dictionary"))]
            return lambda client: common

        def others(client: int) -> np.ndarray:
            draws = numpy_generator(seed, t, client, "dictionary")
            drawn: np.ndarray = union[draw_rows(len(union), size, draws, spans.get(client, (0, 0)))]
            return drawn

        return others

    @property
    def dictionary_size(self) -> int:
        """K of this run."""
        given = self.method.dictionary_size
        return min(LARGEST, most_entries(self.config, self.setup.federation)) if given is None else given

    def notes(self) -> list[str]:
        if self.method.dictionary_size is not None or self.dictionary_size == LARGEST:
            return []
        return [
            f"method.dictionary_size: {self.dictionary_size} entries, not {LARGEST}: {sources(self.method)} have no "
            "more images"
        ]

    # -- costs ---------------------------------------------------------------------------------------------------------

    def publishes(self) -> Mapping[str, object]:
        """The public images, and the alignment model."""
        if not self.method.alignment:
            return {}
        model = self.setup.network_size(self.common_encoder, "down")
        return {IMAGES: self.setup.federation.public_images.pixels, "alignment_model": model}

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """Weights; K entries, or all that others, or all clients, have uploaded while these are fewer."""
        owners = set(met) - {client} if self.method.exclude_own else met
        entries = min(self.dictionary_size, int(self.setup.federation.sizes[sorted(owners)].sum()))
        weights = self.setup.network_sizes(self.common_encoder, "down")
        return {**weights, "dictionary": array_size(entries, self.config.projection_dim)}

    def workload(self, operation: str, client: int) -> Workload | None:
        """Local epochs with public images at every step; a pass over the public images for the targets, one over the
        shard for its dictionary.
        """
        work = self.fitting(client, **self.setup.network_sizes(self.common_encoder))
        if self.method.alignment:
            public = len(self.setup.federation.public_images)
            at_steps = self.fit_batches(client).steps * min(self.method.alignment_batch, public)
            work += Workload.inferred(public) + Workload.trained(at_steps)
        if self.method.has_dictionary:
            count = int(self.setup.federation.sizes[client])
            work += Workload.inferred(count, dictionary=array_size(count, self.config.projection_dim))
        return work

    def server_images(self, t: int, clients: Sequence[int]) -> int | None:
        """The alignment model's epochs, before the first round."""
        if t or not self.method.alignment:
            return 0
        return local_batches(self.config, len(self.setup.federation.public_images), self.method.alignment_epochs).images


def unused(config: RunSettings) -> dict[str, str]:
    """What one module alone reads, where it is off."""
    method = config.method_as(Config)
    keys: dict[str, str] = {}
    if not method.alignment:
        own = "method.beta", "method.alignment_epochs", "method.alignment_batch", "objective.directional"
        keys |= dict.fromkeys(own, "method.alignment=true")
    elif not method.beta:  # the model is trained and asked all the same, which takes time
        keys["objective.directional"] = "method.beta above 0"
    if not method.has_dictionary:
        none = () if method.ensembling == 0 else ("method.ensembling",)  # 0 says the same
        keys |= dict.fromkeys(("method.exclude_own", *none), "method.dictionary_size=1 or more")
    return keys


def most_entries(config: RunSettings, federation: Federation) -> int:
    """How many entries every client can draw from once all have been asked: those of all, or of all but the largest,
    which draws from the fewest. The server keeps what each uploaded last.
    """
    sizes = federation.sizes[list(federation.clients)]
    return int(sizes.sum() - (sizes.max() if config.method_as(Config).exclude_own else 0))


def sources(method: Config) -> str:
    """Whose entries a client draws from."""
    return "all clients but the largest" if method.exclude_own else "all clients"


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse K above the number of entries that there can be, one by default that would be 0, and too few public images
    to contrast. Raises UserError.
    """
    method, most = config.method_as(Config), most_entries(config, federation)
    least = 1 if method.dictionary_size is None else method.dictionary_size
    if least > most:
        found = "null" if method.dictionary_size is None else str(method.dictionary_size)
        raise UserError(
            f"method.dictionary_size: found {found}, but {sources(method)} have {most} entries, one per image; "
            f"allowed: 0 (no dictionary){f' to {most}' if most else ''}"
        )
    if method.alignment:
        require_public(federation, 2, "method.alignment=true", "method.alignment=false")


def footprint(config: RunSettings, images: int) -> ClientFootprint:
    """The ensemble on the client, the dictionary at the server: a row per image."""
    method = config.method_as(Config)
    rows = 4 * images * config.projection_dim if method.has_dictionary else 0
    return ClientFootprint(state=rows if method.ensembling else 0, bank=rows)


FEDCA = Method(
    Config,
    Client,
    Server,
    Info(
        "FedCA (Zhang 2020)",
        "weights, dictionary of projections; once public images and alignment model",
        stateful=True,
        public_data=True,
    ),
    objective="simclr",
    accepts=only("simclr"),
    service=Service,
    step="mean",
    unused=unused,
    check_federation=check_federation,
    footprint=footprint,
    uploads={"dictionary": Entries()},
)
