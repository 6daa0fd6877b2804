"""Membership inference on the messages of one client: which of two sets of images did it train on?

The adversary is a server that follows the protocol and is curious: it has every message and the model it sent. Members
and non-members (see ``members``) both have the client's corruption, where clients have one, so that it is no evidence
of membership.

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

VIEWS = 10  # of the agreement score (Liu et al. 2021)
RIDGE = 1e-3  # of the surrogate, relative
BATCH = 256
BESIDE = 15  # images in a batch with the one whose loss is asked for
AGREEMENT, LOSS, FALL = "agreement of views", "loss of the objective", "fall of the loss"
AUDITED = "audited"  # the role of the network that scores are computed with
Scored = Callable[[np.ndarray], Tensor]  # rows (n,) -> scores (n,)


def known_weights(*values: object) -> Weights | None:
    """The first of them that is weights."""
    return next((value for value in values if isinstance(value, Weights)), None)


def once(scored: Scored) -> Scored:
    """The same scores, which are computed once for the same rows."""
    known: dict[bytes, Tensor] = {}

    def remembered(rows: np.ndarray) -> Tensor:
        if (key := rows.tobytes()) not in known:
            known[key] = scored(rows)
        return known[key]

    return remembered


def gained(before: Scored, after: Scored) -> Scored:
    """By how much a score rose from the weights that the server sent to those it got back: an image that is easy for
    both has no high one (a score calibrated by difficulty, Watson et al. 2022, the model sent being the reference).
    """
    return lambda rows: after(rows) - before(rows)


class Audit:
    """The scores of one client's messages of one round."""

    def __init__(self, worker: RecordingWorker, client: int, round: int, sets: Sets) -> None:
        self.worker, self.client, self.round, self.sets = worker, client, round, sets
        self.config = worker.config
        rows = [*(METHODS[plugin.name] for plugin in self.config.active_plugins), worker.method]
        self.uploads: dict[str, Upload] = {field: upload for row in rows for field, upload in row.uploads.items()}

    def findings(self, recorded: Sequence[RecordedExchange]) -> Iterator[Finding]:
        """A finding per field that is weights or whose method says what it is; see :meth:`scores`."""
        for field, score, scored in self.scores(recorded):
            members, others = (scored(rows).cpu().double().numpy() for rows in (self.sets.members, self.sets.others))
            result = estimate_auc(members, others)
            yield Finding(self.client, self.round, field, score, len(members), result)

    def scores(self, recorded: Sequence[RecordedExchange]) -> Iterator[tuple[str, str, Scored]]:
        """(field, the score in words, the score) of every attack on what was recorded, after what can know nothing."""
        uploaded = [one.reply["weights"] for one in recorded if isinstance(one.reply.get("weights"), Weights)]
        begun = self.worker.initial(self.encoder, self.classes, self.client)
        yield UNTRAINED, AGREEMENT, self.agreeing(begun)
        if any(map(self.has_loss, uploaded)):
            yield UNTRAINED, LOSS, self.losing(begun)
        for exchange in recorded:
            reply = exchange.reply
            sent, got = exchange.message.get("weights"), reply.get("weights")
            if isinstance(got, Weights):
                yield "weights", AGREEMENT, self.agreeing(got)
                if self.has_loss(got):
                    after = once(self.losing(got))
                    yield "weights", LOSS, after
                    if isinstance(sent, Weights) and self.has_loss(sent):
                        yield "weights", FALL, gained(self.losing(sent), after)
            if isinstance(target := reply.get("target"), Weights) and self.is_target(target):
                yield "target", AGREEMENT, self.agreeing(target)
            known = known_weights(got, sent)
            for field in (field for field, value in reply.items() if value is not None):
                match self.uploads.get(field):
                    case Correlation() as upload if known is not None:
                        yield field, "in the correlation matrix", self.correlated(known, reply[field], upload)
                    case Entries(network=by) if (
                        seen := known_weights(reply.get(by), exchange.message.get(by))
                    ) is not None:
                        yield field, "nearest entry", self.lookup(seen, reply[field])
                    case PublicOutputs() as upload:
                        yield field, f"{AGREEMENT}, by a surrogate", self.public(reply, field, upload)

    # -- attacks -------------------------------------------------------------------------------------------------------

    def agreeing(self, weights: Weights) -> Scored:
        """How alike the model finds views of an image."""
        return lambda rows: agreement(self.features(weights, rows))

    def is_target(self, weights: Weights) -> bool:
        """Whether these are what a momentum target of this client's has: encoder and the objective's target heads."""
        network = self.worker.network(self.encoder, AUDITED, self.classes)
        parts = target_modules(network, self._as_client.objective.target_heads)
        return weights.layout == layout_of(*parts)

    def has_loss(self, weights: Weights) -> bool:
        """Whether the run's objective has a loss on these: they have its heads, and labels are the data set's."""
        network = self.worker.network(self.encoder, AUDITED, self.classes)
        numbered = self.worker.federation.tasks is None or not self._as_client.objective.labelled
        return numbered and weights.layout == layout_of(network)

    def losing(self, weights: Weights) -> Scored:
        """How low the objective's loss is on an image among some of the reference: minus that loss. Where features are
        enough, heads and loss are computed in float64.
        """
        client, beside = self._as_client, self._beside()
        objective, labels = client.objective, self.worker.federation.dataset.train.labels
        views, by_features = max(VIEWS, client.objective.views), client.objective.by_features

        def known(rows: np.ndarray) -> Tensor:
            return torch.from_numpy(labels[rows]).to(self.worker.device)

        def scored(rows: np.ndarray) -> Tensor:
            network = self._network(weights)
            draws = generator(self.config.seed, "leak", "loss", device=self.worker.device)
            look = network.represent if by_features else Tensor.contiguous
            others = next(self._looked(look, self._clients_pixels(beside), views))
            judge, kind = (heads_in_float64(network), torch.float64) if by_features else (network, others.dtype)
            found, done = [], 0
            for seen in self._looked(look, self._clients_pixels(rows), views):
                given = (known(rows[done : done + seen.shape[1]]), known(beside)) if objective.labelled else None
                found.append(losses(objective, judge, seen.to(kind), others.to(kind), given, draws))
                done += seen.shape[1]
            return -torch.cat(found)

        return scored

    def _beside(self) -> np.ndarray:
        """Rows of the reference that stand in a batch with the image whose loss is asked for."""
        draws = numpy_generator(self.config.seed, "leak", self.client, "beside")
        return draws.permutation(self.sets.reference)[:BESIDE]

    def correlated(self, weights: Weights, uploaded: np.ndarray, upload: Correlation) -> Scored:
        """The uploaded matrix against that of the reference images, as the client's model sees them."""
        client, views = self._as_client, upload.views(self.config)

        def z(rows: np.ndarray) -> Tensor:
            return upload.summed(client, self.features(weights, rows, views, projected=True)).cpu()

        matrix, reference = upload.matrix(client, uploaded).double(), z(self.sets.reference).double()
        expected = torch.einsum("vnd,vne->de", reference, reference) / (reference.shape[0] * reference.shape[1])
        images = len(self.worker.federation.shards[self.client]["train"])
        return lambda rows: in_correlation(matrix - expected, z(rows), images)

    def lookup(self, weights: Weights, entries: np.ndarray) -> Scored:
        """The nearest row that the client uploaded, as the client's model sees the image."""
        rows_of = torch.from_numpy(np.array(entries, np.float64))
        return lambda rows: nearest(rows_of, self.features(weights, rows, 0, projected=True)[0].cpu())

    def public(self, reply: Mapping[str, Any], field: str, upload: PublicOutputs) -> Scored:
        """Outputs for public images: a linear map onto them from the untrained encoder's features of those."""
        public = self.worker.federation.public
        assert public is not None
        rows_sent = reply[field] if upload.rows is None else upload.rows(reply)
        # the server's own: it never sees what a client began with
        begun = self.worker.initial(self.encoder, self.classes)
        pixels = self.worker.images(public.pixels, upload.positions(self.config, self.round, len(public)))
        reference = self._through(self._network(begun), pixels, 0, projected=False)[0].cpu()
        w = surrogate(reference, torch.from_numpy(np.array(rows_sent, np.float64)), RIDGE)
        return lambda rows: agreement(self.features(begun, rows).double().cpu() @ w)

    # -- what a model makes of images ----------------------------------------------------------------------------------

    @property
    def encoder(self) -> str:
        return self.config.clients.encoder(self.client)

    def features(self, weights: Weights, rows: np.ndarray, views: int = VIEWS, *, projected: bool = False) -> Tensor:
        """(V, n, D) features, or projections, in eval mode, of views drawn for the audit; ``views`` 0: (1, n, D) of the
        clean images."""
        return self._through(self._network(weights), self._clients_pixels(rows), views, projected)

    def _clients_pixels(self, rows: np.ndarray) -> Tensor:
        """(n, C, S, S) uint8 on the device."""
        return self.worker.images(self._as_the_clients(rows))

    def _as_the_clients(self, rows: np.ndarray) -> np.ndarray:
        """(n, S, S, C) training images; those that no client holds with the corruption that the client's have."""
        train, split = self.worker.federation.dataset.train, self.config.data.partition
        found = np.asarray(train.pixels[rows])
        if (change := split.corruption(self.client)) is not None:
            found = found.copy()
            for at in np.flatnonzero(~np.isin(rows, self.worker.federation.shards[self.client]["train"])):
                found[at] = corrupted(found[at], int(rows[at]), change, split.split_seed(self.config.seed))
        return found

    def _network(self, weights: Weights) -> Network:
        """With these weights: a client's, or its momentum target's, which has no other heads than ``target_heads``."""
        network = self.worker.network(self.encoder, AUDITED, self.classes)
        parts = target_modules(network, self._as_client.objective.target_heads)
        unpack(weights, *(parts if layout_of(*parts) == weights.layout else [network]))
        network.eval()
        return network

    @property
    def classes(self) -> int | None:
        return self._as_client.classes

    @property
    def _as_client(self) -> EncoderClient[Any]:
        return self.worker.client(self.worker.method.client, self.client, self.round, "audit", {})

    def _through(self, network: Network, pixels: Tensor, views: int, projected: bool) -> Tensor:
        look = network.project if projected else network.represent
        return torch.cat(list(self._looked(look, pixels, views)), dim=1).float()

    @torch.no_grad()
    def _looked(self, look: Callable[[Tensor], Tensor], pixels: Tensor, views: int) -> Iterator[Tensor]:
        """(V, B, ..) what ``look`` makes of the views of some images at a time; ``views`` 0: of the clean images."""
        draws = generator(self.config.seed, "leak", "views", device=self.worker.device)
        for part in torch.split(pixels, BATCH):
            made = augment(part, self.worker.recipe, draws, views).chunk(views) if views else (self.worker.clean(part),)
            yield torch.stack([look(v.contiguous(memory_format=self.worker.memory_format)) for v in made])


def unaudited(recorded: Sequence[RecordedExchange], findings: Sequence[Finding]) -> list[str]:
    """Fields that crossed and that no attack here reads."""
    fields = {field for one in recorded for field in one.reply}
    return sorted(fields - {one.field for one in findings})
