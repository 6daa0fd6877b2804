"""FLESD: distil the clients' similarities of public images into one student (Shi et al. 2021, eq. 3-11).

A round is one exchange: weights down, representations up. Each client trains SimCLR from the global weights. It embeds
the clean public images in their fixed order and uploads unit rows R_k (N x d_k), so M_k = R_k R_k^T (eq. 4). The
server averages the sharpened similarities, M = mean_k exp(M_k / tau_T) (eq. 5-6). It trains the student by KL(p || q)
over m anchors, p^i_j = M_ij / sum_u M_iu and q^i_j = softmax_j(<anchor_j, query_i> / tau_S) (eq. 7-9). The anchors are
a FIFO queue of keys of a momentum encoder (eq. 10), with their positions in the public set. The student is the new
global model. No N x N matrix exists anywhere: a batch's rows and columns of M are formed from the R_k.

Differs: clients train with the run's SimCLR objective, NT-Xent by default; eq. 3 is InfoNCE from view 1 to view 2
(``objective.directional``), which ``configs/flesd_cifar10.yaml`` sets. The queue is filled before the first step and
kept over epochs; in the released code steps without gradients fill it in each epoch.

Clients whose architecture is not the student's train their own models on from round to round, and get nothing back.
``flesd_cc`` is FLESD with one round.

Shape legend: N public images, B batch, m anchors, d embedding (d_k of client k).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base import optimizers
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.federated.client import PUBLIC_IMAGES, EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, require_public
from rayfed_ssl.federated.ledger import array_size
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, projecting
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.federated.steps import descend
from rayfed_ssl.federated.uploads import PublicOutputs
from rayfed_ssl.federated.workload import Workload, local_batches
from rayfed_ssl.models.encoders import EncoderName, encoder_dim
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import kl_divergence
from rayfed_ssl.objectives.byol import ema_
from rayfed_ssl.settings.blocks import MethodConfig, check_student
from rayfed_ssl.settings.run import RunSettings
from rayfed_ssl.settings.transport import Direction

ANCHORS = 2048  # the paper's m
MASKED = -1e9  # a logit whose probability is exactly 0, and whose difference to another such logit is finite
WIDTH = {"float32": 4, "float16": 2, "int8": 1}  # bytes per uploaded value
INT8 = 127

Positive = Annotated[float, Field(gt=0)]
Rows = Mapping[str, np.ndarray]  # as uploaded: "representations" (N, d), unit rows or, of int8, rows of another length


class Options(MethodConfig):
    """Both methods' options."""

    tau_teacher: Positive = 0.1
    """tau_T, the temperature that sharpens the clients' similarities."""
    tau_student: Positive = 0.1
    """tau_S, the temperature of the student's similarities."""
    anchors: Annotated[int, Field(ge=2)] | None = None
    """m, the number of anchors; null: 2048, or all public images where they are fewer."""
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.999
    """zeta, what the momentum encoder of the anchors' keys keeps of itself at each step."""
    epochs: Annotated[int, Field(ge=1)] = 20
    """Epochs of the server's distillation (the paper: 200), not of the clients' training."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Public images per step of the distillation."""
    lr: Positive = 1e-3
    """Learning rate of the distillation's Adam."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-6
    """Weight decay of the distillation."""
    self_anchor: Literal["keep", "mask"] = "keep"
    """Whether a query's own key stays among its anchors."""
    upload: Literal["float32", "float16", "int8"] = "float32"
    """Type of the representations sent; ``int8``: each row is scaled to a largest magnitude of 127, and rounded."""
    representation: Literal["head", "backbone"] = "head"
    """What is sent: ``head``, z = g(f(x)), as in the code; ``backbone``, h = f(x), as in the paper's cost example."""
    student: EncoderName | None = None
    """The student's encoder; null: the clients' common one."""

    @property
    def needs_public(self) -> bool:
        return True

    @property
    def server_encoders(self) -> tuple[EncoderName, ...]:
        return () if self.student is None else (self.student,)


class Config(Options):
    name: Literal["flesd"] = "flesd"


class ConfigCC(Options):
    """FLESD with one round."""

    name: Literal["flesd_cc"] = "flesd_cc"


# -- similarities ------------------------------------------------------------------------------------------------------


def log_ensemble(teachers: Sequence[Tensor], rows: Tensor, columns: Tensor, tau: float) -> Tensor:
    """log M[rows, columns] (B, m), M = mean_k exp(R_k R_k^T / tau) (eq. 5-6), from unit rows R_k (N, d_k).

    In the log domain nothing overflows, and nothing is subtracted that could differ between clients.
    """
    total: Tensor | None = None
    for r in teachers:
        logits = r[rows] @ r[columns].T / tau
        total = logits if total is None else torch.logaddexp(total, logits)
    assert total is not None
    return total - math.log(len(teachers))


def over_anchors(logits: Tensor, masked: Tensor | None = None) -> Tensor:
    """log softmax over the anchors (eq. 7, 8): (B, m) -> (B, m); where ``masked`` (B, m) the probability is 0."""
    return F.log_softmax(logits if masked is None else logits.masked_fill(masked, MASKED), dim=1)


class AnchorQueue:
    """m keys (m, d) and their positions in the public set (m,), first in, first out."""

    def __init__(self, keys: Tensor, positions: Tensor) -> None:
        self.keys, self.positions, self.oldest = keys, positions, 0

    def push(self, keys: Tensor, positions: Tensor) -> None:
        """Replace the oldest entries by keys (B, d), B <= m, of the images at positions (B,)."""
        size = len(self.positions)
        slots = (torch.arange(len(positions), device=positions.device) + self.oldest) % size
        self.keys[slots], self.positions[slots] = keys, positions
        self.oldest = (self.oldest + len(positions)) % size


# -- what is uploaded --------------------------------------------------------------------------------------------------


def encode_rows(rows: Tensor, upload: str) -> dict[str, np.ndarray]:
    """Unit rows (N, d) as they are sent: float32, float16, or int8. What a row of int8 was divided by is not sent: it
    drops out as the row is normalised.
    """
    values: np.ndarray = rows.cpu().numpy()
    if upload != "int8":
        return {"representations": values.astype(upload)}
    scales = np.maximum(np.abs(values).max(axis=1), np.finfo(np.float32).tiny) / INT8
    return {"representations": np.rint(values / scales[:, None]).astype(np.int8)}


def decode_rows(sent: Rows, device: torch.device | str = "cpu") -> Tensor:
    """What :func:`encode_rows` sent, as unit rows (N, d) float32."""
    return F.normalize(torch.tensor(sent["representations"], device=device).float(), dim=1)


def row_bytes(dimension: int, upload: str) -> int:
    """Bytes one public image costs a client."""
    return dimension * WIDTH[upload]


def break_even_images(weight_bytes: int, dimension: int, upload: str) -> int:
    """The largest public set whose representations cost no more than the weights, N d_k <= P (eq. 11)."""
    return weight_bytes // row_bytes(dimension, upload)


# -- both sides --------------------------------------------------------------------------------------------------------


def student_encoder(config: RunSettings) -> str:
    """The architecture of the student."""
    return config.method_as(Options).student or config.clients.encoder(0)


def shares_weights(config: RunSettings) -> bool:
    """Whether every client has the student's architecture, and so starts each round from its weights."""
    return config.clients.architectures == {student_encoder(config)}


def dimension(config: RunSettings, encoder: str) -> int:
    """d of what an architecture uploads."""
    if config.method_as(Options).representation == "head":
        return config.projection_dim
    return encoder_dim(encoder, config.model, config.data.image_size, config.data.channels)


def anchors_of(options: Options, images: int) -> int:
    """m for a public set of so many images."""
    return options.anchors or min(ANCHORS, images)


class Embedding(EncoderClient[Options]):
    """The part that client and server have in common: unit representations of public images."""

    def units(self, network: Network, images: Tensor) -> Tensor:
        """Unit rows (B, d) float32 of augmented or clean images (B, C, H, W)."""
        with self.autocast():
            head = self.method.representation == "head"
            z = network.project(images) if head else network.represent(images)
        return F.normalize(z.float(), dim=1)


class Client(Embedding):
    def train(self, weights: Weights | None = None) -> dict[str, Any]:
        """Local epochs from the global weights (None: from this client's own), then R_k (N, d_k)."""
        if weights is None:
            self.load_own()
        else:
            self.load(weights)
        self.fit()
        if weights is None:
            self.keep_own()
        network, public = self.network, self.published_pixels()
        rows = self.context.outputs(network, public, lambda images: self.units(network, images))
        return encode_rows(rows, self.method.upload)


class Service(Embedding):
    """The server's heavy work: ensemble similarity distillation."""

    @property
    def encoder(self) -> str:
        return student_encoder(self.config)

    def distil(self, weights: Weights, teachers: Sequence[Rows]) -> dict[str, Any]:
        """E epochs of ESD from ``weights``; the student's weights."""
        options, pixels = self.method, self.published_pixels()
        rows_of = [decode_rows(sent, self.context.device) for sent in teachers]
        student, key = self.network, self.context.network(self.encoder, "momentum")
        for network in (student, key):
            unpack(weights, network)
            network.train()
        optimizer = optimizers.Adam(student.parameters(), options.lr, weight_decay=options.weight_decay)
        draws, size = self.generator("views"), anchors_of(options, len(pixels))
        batch = min(options.batch_size, size)
        queue = self.filled_queue(key, pixels, size, batch, draws)
        losses: list[Tensor] = []
        for positions in self.batches(len(pixels), options.epochs, batch):
            query_view, key_view = self.views(pixels[positions], draws, 2)
            with torch.no_grad():
                queue.push(self.units(key, key_view), positions)
            own = positions[:, None] == queue.positions if options.self_anchor == "mask" else None  # (B, m)
            log_p = over_anchors(log_ensemble(rows_of, positions, queue.positions, options.tau_teacher), own)
            logits = self.units(student, query_view) @ queue.keys.T / options.tau_student
            loss = kl_divergence(log_p, over_anchors(logits, own))  # L_g (eq. 9)
            descend(optimizer, loss)
            ema_(key, student, options.momentum)  # mu <- zeta mu + (1 - zeta) theta (eq. 10)
            losses.append(loss.detach())
        per_epoch = len(losses) // options.epochs
        kl = [float(torch.stack(part).mean()) for part in (losses[:per_epoch], losses[-per_epoch:])]
        self.metrics |= {"kl_first_epoch": kl[0], "kl_last_epoch": kl[1]}
        return {"weights": self.weights}

    @torch.no_grad()
    def filled_queue(self, key: Network, pixels: Tensor, size: int, batch: int, draws: torch.Generator) -> AnchorQueue:
        """The queue before the first step: keys of ``size`` different images."""
        order = numpy_generator(self.config.seed, self.round, self.id, self.operation, "warm up")
        positions = torch.from_numpy(order.permutation(len(pixels))[:size]).to(self.context.device)
        parts = torch.tensor_split(positions, min(math.ceil(size / batch), size // 2))  # BatchNorm needs two images
        keys = [self.units(key, self.views(pixels[part], draws, 1)[0]) for part in parts]
        return AnchorQueue(torch.cat(keys), positions)


class Server(MethodServer[Options]):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        encoders = sorted({self.config.clients.encoder(c) for c in setup.clients})
        self.weight_bytes = {name: setup.network_size(name).total for name in encoders}  # as they would go up
        self.dimensions = {name: dimension(self.config, name) for name in encoders}
        self.images = len(setup.federation.public_images)

    def start(self, cohort: Cohort) -> None:
        self.weights = self.setup.initial(student_encoder(self.config))
        cohort.publish(PUBLIC_IMAGES, self.setup.federation.public_images.pixels)

    def round(self, t: int, cohort: Cohort) -> None:
        down: dict[str, Any] = {"weights": self.weights} if shares_weights(self.config) else {}
        replies = cohort.gather("train", **down)
        self.weights = cohort.serve("distil", weights=self.weights, teachers=[r.fields for r in replies])["weights"]
        ratios = [self.ratio(self.config.clients.encoder(r.client)) for r in replies]
        self.metrics["flesd/break_even_ratio"] = float(np.mean(ratios))

    def ratio(self, encoder: str) -> float:
        """Bytes of a client's representations over those of its weights; below 1 they are the cheaper (eq. 11)."""
        return self.images * row_bytes(self.dimensions[encoder], self.method.upload) / self.weight_bytes[encoder]

    def notes(self) -> list[str]:
        upload, lines = self.method.upload, []
        for encoder, width in self.dimensions.items():
            weights = self.weight_bytes[encoder]
            lines.append(
                f"{encoder} uploads {self.images} x {width} {upload}: {self.ratio(encoder):.3g} of its weights' "
                f"{weights} bytes; break-even at {break_even_images(weights, width, upload)} public images"
            )
        return lines

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        student = EvaluatedEncoder(None, student_encoder(self.config), self.weights)
        return [student] if shares_weights(self.config) else [student, *self.own_encoders()]

    # -- costs ---------------------------------------------------------------------------------------------------------

    def publishes(self) -> Mapping[str, object]:
        return {PUBLIC_IMAGES: self.setup.federation.public_images.pixels}

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """Weights, where every client has the student's architecture."""
        return self.setup.network_sizes(self.common_encoder, "down") if shares_weights(self.config) else {}

    def workload(self, operation: str, client: int) -> Workload | None:
        """Local epochs, then one pass over the public images for their representations."""
        width = self.dimensions[self.config.clients.encoder(client)]
        rows = array_size(self.images, width, dtype=self.method.upload)
        return self.fitting(client) + Workload.inferred(self.images, representations=rows)

    def server_images(self, t: int, clients: Sequence[int]) -> int | None:
        """The first anchors, then the epochs of the distillation."""
        anchors = anchors_of(self.method, self.images)
        batch = min(self.method.batch_size, anchors)
        return anchors + local_batches(self.config, self.images, self.method.epochs, batch).images if t else 0


def check(config: RunSettings) -> None:
    """Refuse several rounds of ``flesd_cc``, a student without a name where clients differ, own initial values that
    would never be used, and fewer anchors than a batch has keys. Raises ValueError.
    """
    options = config.method_as(Options)
    rounds = config.train.rounds
    if options.name == "flesd_cc" and rounds != 1:
        raise ValueError(f"train.rounds: found {rounds}; flesd_cc communicates once, allowed: 1 (or method.name=flesd)")
    check_student(options.student, config.clients)
    if config.model.initial == "own" and shares_weights(config):
        raise ValueError(
            "model.initial: found 'own'; clients with the student's encoder begin each round with its weights; "
            "allowed: common"
        )
    if options.anchors is not None and options.anchors < options.batch_size:
        raise ValueError(
            f"method.anchors: found {options.anchors}; must be at least method.batch_size={options.batch_size}, "
            "because all keys of a batch join the queue"
        )


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse fewer public images than anchors, or than two. Raises UserError."""
    options = config.method_as(Options)
    if options.anchors is None:
        require_public(federation, 2, options.name)
    else:
        require_public(federation, options.anchors, f"method.anchors={options.anchors}", "fewer anchors")


def rows_read(reply: Rows) -> np.ndarray:
    """Unit rows (N, d) of a reply: as they are, or, sent as integers, decoded."""
    rows = reply["representations"]
    return decode_rows(reply).numpy() if rows.dtype == np.int8 else rows


DOWN_ONLY: tuple[Direction, ...] = ("down",)
FLESD, FLESD_CC = (
    Method(
        kind,
        Client,
        Server,
        Info(paper, "weights down, representations of public images up", heterogeneous=True, public_data=True),
        objective="simclr",
        accepts=projecting,
        service=Service,
        sends_weights=lambda config: DOWN_ONLY if shares_weights(config) else (),
        second_view=True,
        check=check,
        check_federation=check_federation,
        footprint=lambda config, images: ClientFootprint(models=0 if shares_weights(config) else 1),
        uploads={"representations": PublicOutputs(rows_read)},
    )
    for kind, paper in ((Config, "FLESD (Shi et al. 2021)"), (ConfigCC, "FLESD-cc (Shi et al. 2021)"))
)
