"""Membership inference on the messages of one client: which of two sets of images did it train on?

The adversary is an honest but curious server, which has every message and the model that it sent. If clients corrupt
their images, members and non-members (see ``members``) both have the client's corruption, so that it is no evidence of
membership.

Shapes: n images, V views, D projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.base.seeding import generator, numpy_generator
from rayfed_ssl.base.weights import Weights, layout_of, unpack
from rayfed_ssl.data.augment import augment
from rayfed_ssl.data.feature_skew import corrupted
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.uploads import Correlation, Entries, PublicOutputs, Upload
from rayfed_ssl.leak.auc import estimate_auc
from rayfed_ssl.leak.findings import Finding
from rayfed_ssl.leak.loss import heads_in_float64, losses
from rayfed_ssl.leak.members import Sets
from rayfed_ssl.leak.replay import RecordedExchange, RecordingWorker
from rayfed_ssl.leak.scores import agreement, in_correlation, nearest, surrogate
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import target_modules
from rayfed_ssl.records.leaked import UNTRAINED

VIEWS = 10  # views of an image in the agreement score (Liu et al. 2021)
RIDGE = 1e-3  # ridge of the surrogate, relative
BATCH = 256
BESIDE = 15  # reference images in a batch with the image whose loss is computed
AGREEMENT, LOSS, FALL = "agreement of views", "loss of the objective", "fall of the loss"
AUDITED = "audited"  # the role of the network that scores are computed with
Scored = Callable[[np.ndarray], Tensor]  # a score: rows of the training images (n,) -> scores (n,)


def known_weights(*values: object) -> Weights | None:
    """The first of the values that is :class:`Weights`; None if none is."""
    return next((value for value in values if isinstance(value, Weights)), None)


def once(scored: Scored) -> Scored:
    """The same score with a cache, so that it is computed once for the same rows."""
    known: dict[bytes, Tensor] = {}

    def remembered(rows: np.ndarray) -> Tensor:
        if (key := rows.tobytes()) not in known:
            known[key] = scored(rows)
        return known[key]

    return remembered


def gained(before: Scored, after: Scored) -> Scored:
    """The increase of a score from the weights that the server sent to those that it got back. It is not high for an
    image that is easy for both (difficulty calibration, Watson et al. 2022, with the sent model as the reference).
    """
    return lambda rows: after(rows) - before(rows)


class Audit:
    """Scores the messages of one client in one round."""

    def __init__(self, worker: RecordingWorker, client: int, round: int, sets: Sets) -> None:
        self.worker, self.client, self.round, self.sets = worker, client, round, sets
        self.config = worker.config
        rows = [*(METHODS[plugin.name] for plugin in self.config.active_plugins), worker.method]
        self.uploads: dict[str, Upload] = {field: upload for row in rows for field, upload in row.uploads.items()}

    def findings(self, recorded: Sequence[RecordedExchange]) -> Iterator[Finding]:
        """A finding for each score of each field; see :meth:`scores`."""
        for field, score, scored in self.scores(recorded):
            members, others = (scored(rows).cpu().double().numpy() for rows in (self.sets.members, self.sets.others))
            estimate = estimate_auc(members, others)
            yield Finding(self.client, self.round, field, score, len(members), estimate)

    def scores(self, recorded: Sequence[RecordedExchange]) -> Iterator[tuple[str, str, Scored]]:
        """(field, name of the score, score) of every attack on the recorded exchanges. The scores of the untrained
        encoder, which cannot know about membership, come first. Fields are attacked if they are weights, or if their
        method declares their kind in ``uploads``.
        """
        uploaded = [one.reply["weights"] for one in recorded if isinstance(one.reply.get("weights"), Weights)]
        begun = self.worker.initial(self.encoder, self.classes, self.client)
        yield UNTRAINED, AGREEMENT, self.agreeing(begun)
        if any(map(self.has_loss, uploaded)):
            yield UNTRAINED, LOSS, self.losing(begun)
        for exchange in recorded:
            yield from self._scores_of_weights(exchange)
            yield from self._scores_of_uploads(exchange)

    def _scores_of_weights(self, exchange: RecordedExchange) -> Iterator[tuple[str, str, Scored]]:
        """:meth:`scores` of the weights, and of the momentum target, in a reply."""
        sent, got = exchange.message.get("weights"), exchange.reply.get("weights")
        if isinstance(got, Weights):
            yield "weights", AGREEMENT, self.agreeing(got)
            if self.has_loss(got):
                after = once(self.losing(got))
                yield "weights", LOSS, after
                if isinstance(sent, Weights) and self.has_loss(sent):
                    yield "weights", FALL, gained(self.losing(sent), after)
        if isinstance(target := exchange.reply.get("target"), Weights) and self.is_target(target):
            yield "target", AGREEMENT, self.agreeing(target)

    def _scores_of_uploads(self, exchange: RecordedExchange) -> Iterator[tuple[str, str, Scored]]:
        """:meth:`scores` of the fields of a reply whose kind a method declares in ``uploads``."""
        message, reply = exchange.message, exchange.reply
        known = known_weights(reply.get("weights"), message.get("weights"))
        for field in (field for field, value in reply.items() if value is not None):
            match self.uploads.get(field):
                case Correlation() as upload if known is not None:
                    yield field, "in the correlation matrix", self.correlated(known, reply[field], upload)
                case Entries(network=by) if (seen := known_weights(reply.get(by), message.get(by))) is not None:
                    yield field, "nearest entry", self.lookup(seen, reply[field])
                case PublicOutputs() as upload:
                    yield field, f"{AGREEMENT}, by a surrogate", self.public(reply, field, upload)

    # -- attacks -------------------------------------------------------------------------------------------------------

    def agreeing(self, weights: Weights) -> Scored:
        """How similar the model's features of an image's views are (:func:`agreement`)."""
        return lambda rows: agreement(self.features(weights, rows))

    def is_target(self, weights: Weights) -> bool:
        """Whether the weights are a momentum target's: those of the encoder and the objective's target heads."""
        network = self.worker.network(self.encoder, AUDITED, self.classes)
        parts = target_modules(network, self._as_client.objective.target_heads)
        return weights.layout == layout_of(*parts)

    def has_loss(self, weights: Weights) -> bool:
        """Whether the objective's loss can be computed with the weights: they have all of its heads, and a loss that
        reads labels has the data set's own, not those of a task.
        """
        network = self.worker.network(self.encoder, AUDITED, self.classes)
        numbered = self.worker.federation.tasks is None or not self._as_client.objective.labelled
        return numbered and weights.layout == layout_of(network)

    def losing(self, weights: Weights) -> Scored:
        """Minus the objective's loss on an image in a batch with some reference images. If the objective needs only
        features, heads and loss are computed in float64.
        """
        client, beside = self._as_client, self.beside()
        objective, labels = client.objective, self.worker.federation.dataset.train.labels
        views, by_features = max(VIEWS, client.objective.views), client.objective.by_features

        def known(rows: np.ndarray) -> Tensor:
            return torch.from_numpy(labels[rows]).to(self.worker.device)

        def scored(rows: np.ndarray) -> Tensor:
            network = self._network(weights)
            draws = generator(self.config.seed, "leak", "loss", device=self.worker.device)
            look = network.represent if by_features else Tensor.contiguous
            others = next(self.looked(look, self.clients_pixels(beside), views))
            judge, kind = (heads_in_float64(network), torch.float64) if by_features else (network, others.dtype)
            parts, done = [], 0
            for seen in self.looked(look, self.clients_pixels(rows), views):
                given = (known(rows[done : done + seen.shape[1]]), known(beside)) if objective.labelled else None
                parts.append(losses(objective, judge, seen.to(kind), others.to(kind), given, draws))
                done += seen.shape[1]
            return -torch.cat(parts)

        return scored

    def beside(self) -> np.ndarray:
        """Rows of the reference images that are in a batch with the image whose loss is computed."""
        draws = numpy_generator(self.config.seed, "leak", self.client, "beside")
        return draws.permutation(self.sets.reference)[:BESIDE]

    def correlated(self, weights: Weights, uploaded: np.ndarray, upload: Correlation) -> Scored:
        """How much of an image is in the uploaded matrix beyond that of the reference images (:func:`in_correlation`),
        by the projections of the client's model.
        """
        client, views = self._as_client, upload.views(self.config)

        def z(rows: np.ndarray) -> Tensor:
            return upload.summed(client, self.features(weights, rows, views, projected=True)).cpu()

        matrix, reference = upload.matrix(client, uploaded).double(), z(self.sets.reference).double()
        expected = torch.einsum("vnd,vne->de", reference, reference) / (reference.shape[0] * reference.shape[1])
        images = len(self.worker.federation.shards[self.client]["train"])
        return lambda rows: in_correlation(matrix - expected, z(rows), images)

    def lookup(self, weights: Weights, entries: np.ndarray) -> Scored:
        """The largest cosine of an image's projection, by the client's model, with any uploaded entry."""
        uploaded = torch.from_numpy(np.array(entries, np.float64))
        return lambda rows: nearest(uploaded, self.features(weights, rows, 0, projected=True)[0].cpu())

    def public(self, reply: Mapping[str, Any], field: str, upload: PublicOutputs) -> Scored:
        """The agreement of views by a surrogate of the client's model: a linear map from the untrained encoder's
        features of the public images to the outputs that the client uploaded for them.
        """
        public = self.worker.federation.public
        assert public is not None
        rows_sent = reply[field] if upload.rows is None else upload.rows(reply)
        # The server's own initial encoder: it never sees that of a client.
        begun = self.worker.initial(self.encoder, self.classes)
        pixels = self.worker.images(public.pixels, upload.positions(self.config, self.round, len(public)))
        reference = self._through(self._network(begun), pixels, 0, projected=False)[0].cpu()
        w = surrogate(reference, torch.from_numpy(np.array(rows_sent, np.float64)), RIDGE)
        return lambda rows: agreement(self.features(begun, rows).double().cpu() @ w)

    # -- what a model makes of images ----------------------------------------------------------------------------------

    @property
    def encoder(self) -> str:
        """The name of the client's encoder."""
        return self.config.clients.encoder(self.client)

    def features(self, weights: Weights, rows: np.ndarray, views: int = VIEWS, *, projected: bool = False) -> Tensor:
        """(V, n, D) features, or projections, in eval mode, of views drawn for the audit. With ``views`` 0 they are
        (1, n, D), of the clean images.
        """
        return self._through(self._network(weights), self.clients_pixels(rows), views, projected)

    def clients_pixels(self, rows: np.ndarray) -> Tensor:
        """(n, C, S, S) uint8: :meth:`as_the_clients` on the device."""
        return self.worker.images(self.as_the_clients(rows))

    def as_the_clients(self, rows: np.ndarray) -> np.ndarray:
        """(n, S, S, C) uint8 training images. Images outside the client's shard get the client's corruption, which its
        own images have already.
        """
        train, split = self.worker.federation.dataset.train, self.config.data.partition
        pixels = np.asarray(train.pixels[rows])
        if (change := split.corruption(self.client)) is not None:
            pixels = pixels.copy()
            for at in np.flatnonzero(~np.isin(rows, self.worker.federation.shards[self.client]["train"])):
                pixels[at] = corrupted(pixels[at], int(rows[at]), change, split.split_seed(self.config.seed))
        return pixels

    def _network(self, weights: Weights) -> Network:
        """The client's network with these weights, in eval mode. They may be a momentum target's, which has only the
        encoder and the ``target_heads``.
        """
        network = self.worker.network(self.encoder, AUDITED, self.classes)
        parts = target_modules(network, self._as_client.objective.target_heads)
        unpack(weights, *(parts if layout_of(*parts) == weights.layout else [network]))
        network.eval()
        return network

    @property
    def classes(self) -> int | None:
        """The number of outputs of the client's classifier; None if it needs none."""
        return self._as_client.classes

    @property
    def _as_client(self) -> EncoderClient[Any]:
        """The client side of the method for this client, with an empty state."""
        return self.worker.client(self.worker.method.client, self.client, self.round, "audit", {})

    def _through(self, network: Network, pixels: Tensor, views: int, projected: bool) -> Tensor:
        """(V, n, D) float32: the network's features, or projections, of all images."""
        look = network.project if projected else network.represent
        return torch.cat(list(self.looked(look, pixels, views)), dim=1).float()

    @torch.no_grad()
    def looked(self, look: Callable[[Tensor], Tensor], pixels: Tensor, views: int) -> Iterator[Tensor]:
        """The outputs of ``look`` for views of the images, (V, B, ..) for up to ``BATCH`` images at a time. With
        ``views`` 0 they are (1, B, ..), of the clean images.
        """
        draws = generator(self.config.seed, "leak", "views", device=self.worker.device)
        for part in torch.split(pixels, BATCH):
            made = augment(part, self.worker.recipe, draws, views).chunk(views) if views else (self.worker.clean(part),)
            yield torch.stack([look(v.contiguous(memory_format=self.worker.memory_format)) for v in made])


def unaudited(recorded: Sequence[RecordedExchange], findings: Sequence[Finding]) -> list[str]:
    """The fields of replies that no attack reads."""
    fields = {field for one in recorded for field in one.reply}
    return sorted(fields - {one.field for one in findings})
