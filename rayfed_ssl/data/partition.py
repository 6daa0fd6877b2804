"""Deals images to clients: disjoint index arrays per client, drawn from a seeded generator.

``PARTITIONS`` is the table of partitions, which other packages can add to. Their base class is in ``partition_base``.
The rules are in ``partition_rules``, partitions from files in ``partition_file``; feature skew, where clients' pixels
differ, in ``corruptions``.

Shape legend: n images to share out, N clients, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rayfed_ssl.base.annotations import values_of
from rayfed_ssl.base.choice import OneOf
from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.table import Table
from rayfed_ssl.data import partition_rules as rules
from rayfed_ssl.data.images import Images
from rayfed_ssl.data.partition_base import Deal, GivenClients, Indices, NaturalClients, Partition, checked
from rayfed_ssl.data.partition_file import read_partition

NO_IMAGE = "its images, if it has any, are test images, cannot be decoded, or lie beyond data.limit"


class Iid(Partition):
    """A random split into equal parts (sizes differ by one at most)."""

    name: Literal["iid"] = "iid"

    def shards(self, deal: Deal) -> Sequence[Indices]:
        return rules.evenly(deal.chosen, deal.clients, deal.draw)


class Dirichlet(Partition):
    """Every class is shared out by its own draw from a Dirichlet distribution over the clients."""

    by_label = True

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(0.5, gt=0)
    """Concentration; the smaller, the fewer classes a client holds."""
    min_size: int | None = Field(None, ge=1)
    """Redraw until the smallest client has so many images; null: 10, as in FedX, or half the mean client where that is
    less.
    """
    rounding: Literal["cumulative", "largest_remainder"] = "cumulative"
    """``largest_remainder`` is the generator of fedbox: numpy's legacy generator, seeded by ``seed`` itself, no bound
    on the smallest client; published splits made by it come out again.
    """

    @model_validator(mode="after")
    def _one_bound(self) -> Dirichlet:
        if self.rounding == "largest_remainder":
            if self.min_size is not None:
                raise ValueError(
                    f"min_size: found {self.min_size}; rounding 'largest_remainder' knows none; allowed: null"
                )
            if self.seed is not None and self.seed >= 2**32:
                raise ValueError(f"seed: found {self.seed}; allowed with 'largest_remainder': below {2**32}")
        return self

    def shards(self, deal: Deal) -> Sequence[Indices]:
        if self.rounding == "largest_remainder":
            return rules.dirichlet_largest_remainder(deal.chosen, deal.labels, deal.clients, self.alpha, deal.seed)
        return rules.dirichlet(deal.chosen, deal.labels, deal.clients, self.alpha, self.min_size, deal.draw)


class ClassesPerClient(Partition):
    """Every client holds parts of some classes, which overlap between clients."""

    by_label = True

    name: Literal["classes_per_client"] = "classes_per_client"
    classes: int = Field(2, ge=1)
    """How many classes each client holds parts of."""

    def shards(self, deal: Deal) -> Sequence[Indices]:
        return rules.classes_per_client(deal.chosen, deal.labels, deal.clients, self.classes, deal.draw)


class ClassBlocks(Partition):
    """Client j holds all of the classes j*c to (j+1)*c - 1."""

    by_label = True
    draws = False

    name: Literal["class_blocks"] = "class_blocks"
    classes: int | None = Field(None, ge=1)
    """c, classes of a client; null: the classes divided evenly among the clients."""

    def shards(self, deal: Deal) -> Sequence[Indices]:
        return rules.class_blocks(deal.chosen, deal.labels, deal.clients, self.classes)


class Quantity(Partition):
    """Clients differ in size alone: sizes are shares of a log-normal draw, images are drawn at random."""

    name: Literal["quantity"] = "quantity"
    sigma: float = Field(1.0, ge=0, le=10)
    """Standard deviation of the logarithm of a client's share; 0 is ``iid``."""
    min_size: int = Field(10, ge=1)
    """Redraw until the smallest client has so many images."""

    def shards(self, deal: Deal) -> Sequence[Indices]:
        return rules.quantity(deal.chosen, deal.clients, self.sigma, self.min_size, deal.draw)


class FeatureSkew(Partition):
    """Clients differ in what their images look like: a random equal split, and client j's training images are changed
    by the corruption j mod K of the K listed, as strongly as ``severity`` says. Test images stay as they are.

    Clients that are domains of their own (hospitals, cameras) are the partition ``natural``.
    """

    name: Literal["feature_skew"] = "feature_skew"
    corruptions: tuple[Literal["none", "noise", "blur", "brightness", "contrast", "rotation"], ...] = (
        "none", "noise", "blur", "brightness", "contrast", "rotation",
    )  # fmt: skip
    """K corruptions; client j gets the one at j mod K."""
    severity: int = Field(3, ge=1, le=5)
    """How strongly images are changed."""

    @model_validator(mode="after")
    def _not_empty(self) -> FeatureSkew:
        if not self.corruptions:
            raise ValueError("corruptions: found []; allowed: one or more names")
        return self

    def shards(self, deal: Deal) -> Sequence[Indices]:
        return rules.evenly(deal.chosen, deal.clients, deal.draw)

    def corruption(self, client: int) -> tuple[str, int]:
        return self.corruptions[client % len(self.corruptions)], self.severity


class Natural(GivenClients):
    """Client j is the j-th client of the images: a client folder (sorted by name), or a value of the column
    ``data.columns.client``. ``folders`` and ``natural`` are two names of it.
    """

    by_client = natural = True
    draws = False

    name: Literal["folders", "natural"] = "natural"

    def shards(self, deal: Deal) -> Sequence[Indices]:
        natural = rules.natural_clients(deal.natural, deal.clients, deal.natural_names)
        whole = np.bincount(natural[natural >= 0], minlength=deal.clients)
        held = [deal.chosen[natural[deal.chosen] == client] for client in range(deal.clients)]
        return rules.large_enough(held, self.min_size, whole, deal.natural_names, NO_IMAGE)

    def names(self, images: Images) -> Sequence[str]:
        return images.client_names

    def notes(self, images: Images, chosen: Indices, shards: Sequence[Indices]) -> tuple[Note, ...]:
        assert images.clients is not None
        stray = int((images.clients < 0).sum())
        text = f"{stray} of {len(images)} training images have no client (folder or value): nobody trains on them"
        held = np.isin(images.clients[chosen], [client for client, shard in enumerate(shards) if not len(shard)])
        return (
            *((Note.shareable(text),) if stray else ()),
            *self.left_out(shards, images.client_names, int(held.sum())),
        )


class FromFile(GivenClients):
    """Client j holds the j-th list of a file: JSON (a list of lists of indices into the training images, or a mapping
    from clients' names to such lists) or Parquet (columns ``client`` and ``index``, such as a run folder's
    ``partition.parquet``).
    """

    by_client = listed = True
    draws = False

    name: Literal["file"] = "file"
    path: Path
    """The file."""
    partial: bool = False
    """Whether the file may leave images out, which nobody then holds."""

    def shards(self, deal: Deal) -> Sequence[Indices]:
        from_file = read_partition(self.path, deal.labels, self.partial)
        lists = from_file.of(deal.clients)
        held = [np.intersect1d(rows, deal.chosen) for rows in lists]
        sizes = np.array([len(rows) for rows in lists])
        return rules.large_enough(held, self.min_size, sizes, from_file.names or (), "the file lists none")

    def names(self, images: Images) -> Sequence[str] | None:
        return read_partition(self.path, images.labels, self.partial).names

    def notes(self, images: Images, chosen: Indices, shards: Sequence[Indices]) -> tuple[Note, ...]:
        from_file = read_partition(self.path, images.labels, self.partial)
        small = [rows for rows, shard in zip(from_file.lists, shards, strict=True) if not len(shard)]
        notes = self.left_out(shards, from_file.names or (), sum(map(len, small)))
        if from_file.nobodys:
            text = f"data.partition.path: {from_file.nobodys} of {len(images.labels)} training images are nobody's"
            notes += (Note.shareable(text, ": the file gives them no client"),)
        return notes

    def public(self, labels: NDArray[np.int64]) -> Indices | None:
        rows = read_partition(self.path, labels, self.partial).public  # rows without a client
        return rows if len(rows) else None


def _wrong(name: str, row: object) -> str:
    """What is wrong with a third-party partition; empty if nothing is."""
    if not (isinstance(row, type) and issubclass(row, Partition)):
        return "which is no subclass of rayfed_ssl.data.partition_base.Partition"
    if name not in values_of(row, "name"):
        return f'whose block has another name; must have name: Literal["{name}"] = "{name}"'
    return "which has no rule; must define shards" if row.shards is Partition.shards else ""


PARTITIONS: Table[type[Partition]] = Table(
    "partition",
    "rayfed_ssl.partitions",
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "classes_per_client": ClassesPerClient,
        "class_blocks": ClassBlocks,
        "quantity": Quantity,
        "feature_skew": FeatureSkew,
        "folders": Natural,
        "natural": Natural,
        "file": FromFile,
    },
    _wrong,
)

PartitionConfig = Annotated[Partition, OneOf(lambda: PARTITIONS, default="iid")]
"""The ``data.partition:`` block of a run. ``data.partition.seed=3`` alone is the seed of the default partition."""


def partition(
    config: Partition,
    labels: NDArray[np.int64],
    clients: int,
    seed: int,
    natural: NaturalClients | None = None,
    indices: NDArray[np.int64] | None = None,
) -> list[Indices]:
    """Share images out to clients.

    ``labels`` and ``natural`` (None: data without clients) describe all images; ``indices`` are those to share out
    (default: all of them), for when public images were taken out first. ``seed`` is the run's; the partition's own
    seed, if set, replaces it. Returns one sorted index array per client, empty for a client that the partition leaves
    out. Raises UserError if the configuration does not fit the data, or if a rule's result is not a partition.
    """
    chosen = np.arange(len(labels)) if indices is None else np.sort(np.asarray(indices, dtype=np.int64))
    if clients > len(chosen) and not config.by_client:
        raise UserError(f"clients.count: {clients}, but there are only {len(chosen)} images to share out")
    if config.by_label and (unlabelled := int((labels[chosen] < 0).sum())):
        others = ", ".join(name for name, kind in PARTITIONS.items() if not kind.by_label)
        raise UserError(
            f"data.partition.name: {config.name} goes by labels, but {unlabelled} of {len(chosen)} images have"
            f" none; allowed here: {others}"
        )
    natural = natural or NaturalClients()
    deal = Deal(chosen, labels, natural.of_images, clients, config.split_seed(seed), natural.names)
    return checked(config.shards(deal), deal, _called(config), config.leaves_out)


def _called(config: Partition) -> str:
    """The key and the partition's name, with its origin if another package added it."""
    origin = PARTITIONS.origin(config.name)
    return f"data.partition: {config.name}" + ("" if origin is None else f" ({origin})")


def client_names(config: Partition, images: Images, clients: int) -> tuple[str, ...]:
    """The names of the N clients: those that the partition knows, else ``client 0`` and so on. Raises UserError if it
    does not give N names.
    """
    names = config.names(images)
    if names is not None and len(names) != clients:
        raise UserError(f"{_called(config)} names {len(names)} clients; must be clients.count={clients}, or none")
    return tuple(names or (f"client {client}" for client in range(clients)))


def take_public(
    config: Partition, labels: NDArray[np.int64], share: float, seed: int, among: Indices | None = None
) -> tuple[Indices, Indices]:
    """(public, rest) of the images ``among`` (ascending; default: all), both ascending. The public ones are those that
    the partition itself names, else ``hold_out`` draws them. Raises UserError for an invalid index, or for a share that
    cannot be taken.
    """
    among = np.arange(len(labels)) if among is None else among
    own = config.public(labels)
    if own is None:
        taken, kept = hold_out(len(among), share, config.split_seed(seed))
        return among[taken], among[kept]
    if len(beyond := own[(own < 0) | (own >= len(labels))]):
        raise UserError(f"{_called(config)} calls the image {beyond[0]} public; there are {len(labels)}, from 0 on")
    public = np.intersect1d(own, among)
    return public, np.setdiff1d(among, public)


def hold_out(count: int, share: float, seed: int) -> tuple[Indices, Indices]:
    """Take a random ``share`` (0 to 1, exclusive) of ``count`` images out as public; (public, rest), both sorted.

    At least one image is taken and at least one left.
    """
    if not 0 < share < 1 or count < 2:
        raise UserError(f"data.public.share: {share} of {count} images; allowed: more than 0, less than 1")
    taken = min(max(round(share * count), 1), count - 1)
    order = numpy_generator(seed, "public").permutation(count)
    return np.sort(order[:taken]), np.sort(order[taken:])


def label_histogram(shards: list[Indices], labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """How many images of each class each client holds, (N, C); unlabelled images are not counted."""
    client_labels = [labels[shard] for shard in shards]
    counts = [np.bincount(held[held >= 0], minlength=classes) for held in client_labels]
    return np.array(counts, dtype=np.int64).reshape(len(shards), classes)
