"""Who holds which images: index arrays per client, drawn from an address and disjoint by construction.

Shape legend: n images to share out, N clients, C classes. The rules are in ``partition_rules``, partitions from files
in ``partition_file``; feature skew, where clients' pixels differ, in ``corruptions``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.data import partition_rules as rules
from rayfed_ssl.data.images import Images
from rayfed_ssl.data.partition_file import read_partition

Indices = NDArray[np.int64]


class Split(Block):
    """What all partitions have."""

    seed: int | None = Field(None, ge=0)
    """Draws the split; with one of their own, runs of several seeds share a split; null: the run's seed."""

    def split_seed(self, run_seed: int) -> int:
        return run_seed if self.seed is None else self.seed


class Iid(Split):
    """A random split into equal parts (sizes differ by one at most)."""

    name: Literal["iid"] = "iid"


class Dirichlet(Split):
    """Every class is shared out by its own draw from a Dirichlet distribution over the clients."""

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


class ClassesPerClient(Split):
    """Every client holds parts of some classes, which overlap between clients."""

    name: Literal["classes_per_client"] = "classes_per_client"
    classes: int = Field(2, ge=1)
    """How many each client holds parts of."""


class ClassBlocks(Split):
    """Client j holds all of the classes j*c to (j+1)*c - 1."""

    name: Literal["class_blocks"] = "class_blocks"
    classes: int | None = Field(None, ge=1)
    """c, classes of a client; null: the classes divided evenly among the clients."""


class Quantity(Split):
    """Clients differ in size alone: sizes are shares of a log-normal draw, images are drawn at random."""

    name: Literal["quantity"] = "quantity"
    sigma: float = Field(1.0, ge=0, le=10)
    """Standard deviation of the logarithm of a client's share; 0 is ``iid``."""
    min_size: int = Field(10, ge=1)
    """Redraw until the smallest client has so many images."""


class FeatureSkew(Split):
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

    def corruption(self, client: int) -> str:
        return self.corruptions[client % len(self.corruptions)]


class Natural(Split):
    """Client j holds the j-th natural group of the images: a client folder (sorted by name), or a value of the column
    ``data.columns.client``. ``folders`` and ``natural`` are two names of it.
    """

    name: Literal["folders", "natural"] = "natural"


class FromFile(Split):
    """Client j holds the j-th list of a file: JSON (a list of lists of indices into the training images) or Parquet
    (columns ``client`` and ``index``, such as a run folder's ``partition.parquet``).
    """

    name: Literal["file"] = "file"
    path: Path
    """The file."""
    partial: bool = False
    """Whether the file may leave images out, which nobody then holds."""


Partition = Iid | Dirichlet | ClassesPerClient | ClassBlocks | Quantity | FeatureSkew | Natural | FromFile


def _iid_unless_named(document: object) -> object:
    """``data.partition.seed=3`` alone is the seed of the default partition."""
    return {"name": "iid", **document} if isinstance(document, dict) else document


PartitionConfig = Annotated[Partition, Field(discriminator="name"), BeforeValidator(_iid_unless_named)]


def partition(
    config: Partition,
    labels: NDArray[np.int64],
    clients: int,
    seed: int,
    groups: NDArray[np.int64] | None = None,
    indices: NDArray[np.int64] | None = None,
) -> list[Indices]:
    """Share images out to clients.

    ``labels`` and ``groups`` describe all images; ``indices`` are those to share out (default: all of them), for when
    public images were taken out first. ``seed`` is the run's; the partition's own goes before it. Returns one sorted
    index array per client, none of them empty. Raises UserError where the configuration does not fit the data.
    """
    chosen = np.arange(len(labels)) if indices is None else np.sort(np.asarray(indices, dtype=np.int64))
    if clients > len(chosen):
        raise UserError(f"clients.count: {clients}, but there are only {len(chosen)} images to share out")
    shards = _shards(config, chosen, labels, clients, config.split_seed(seed), groups)
    empty = [client for client, shard in enumerate(shards) if not len(shard)]
    if empty:
        raise UserError(
            f"data.partition: {config.name} leaves {len(empty)} of {clients} clients (first: {empty[0]}) empty"
        )
    return [np.sort(shard).astype(np.int64) for shard in shards]


def _shards(
    config: Partition,
    chosen: Indices,
    labels: NDArray[np.int64],
    clients: int,
    seed: int,
    groups: NDArray[np.int64] | None,
) -> list[Indices]:
    draw = numpy_generator(seed, "partition")
    if isinstance(config, Iid | FeatureSkew):
        return np.array_split(draw.permutation(chosen), clients)
    if isinstance(config, Quantity):
        return rules.quantity(chosen, clients, config.sigma, config.min_size, draw)
    if isinstance(config, Natural):
        return rules.by_group(chosen, groups, clients)
    if isinstance(config, FromFile):
        lists = read_partition(config.path, labels, config.partial).of(clients)
        return [np.intersect1d(held, chosen) for held in lists]
    if len(unlabelled := np.flatnonzero(labels[chosen] < 0)):
        raise UserError(
            f"data.partition.name: {config.name} goes by labels, but {len(unlabelled)} of {len(chosen)} images have"
            " none; allowed here: iid, quantity, feature_skew, natural, folders, file"
        )
    if isinstance(config, Dirichlet) and config.rounding == "largest_remainder":
        return rules.dirichlet_largest_remainder(chosen, labels, clients, config.alpha, seed)
    if isinstance(config, Dirichlet):
        return rules.dirichlet(chosen, labels, clients, config.alpha, config.min_size, draw)
    if isinstance(config, ClassesPerClient):
        return rules.classes_per_client(chosen, labels, clients, config.classes, draw)
    return rules.class_blocks(chosen, labels, clients, config.classes)


def client_names(config: Partition, images: Images, clients: int) -> tuple[str, ...]:
    """The names of the N clients: their folder or value of the client column, their name in a partition file, else
    ``client 0`` and so on."""
    names = None
    if isinstance(config, Natural):
        names = images.group_names
    elif isinstance(config, FromFile):
        names = read_partition(config.path, images.labels, config.partial).names
    return names or tuple(f"client {client}" for client in range(clients))


def take_public(config: Partition, labels: NDArray[np.int64], share: float, seed: int) -> tuple[Indices, Indices]:
    """(public, rest), both sorted: what a partition file calls public (rows without a client), else ``hold_out``."""
    if isinstance(config, FromFile):
        public = np.sort(read_partition(config.path, labels, config.partial).public)
        if len(public):
            return public, np.setdiff1d(np.arange(len(labels)), public)
    return hold_out(len(labels), share, config.split_seed(seed))


def hold_out(count: int, share: float, seed: int) -> tuple[Indices, Indices]:
    """Take a random ``share`` (0 to 1, exclusive) of ``count`` images out as public; (public, rest), both sorted.

    At least one image is taken and at least one left.
    """
    if not 0 < share < 1 or count < 2:
        raise UserError(f"data.public.share: {share} of {count} images; allowed: more than 0, less than 1")
    taken = min(max(round(share * count), 1), count - 1)
    order = numpy_generator(seed, "public").permutation(count)
    return np.sort(order[:taken]), np.sort(order[taken:])


def stratified_share(labels: NDArray[np.int64], share: float, seed: int) -> Indices:
    """Rows, ascending, of a random ``share`` of each class (rounded), that no client is to hold.

    At least one image of a class is taken and at least one left; of a class with one image none is taken. ``labels``
    (n,), negative where unknown. Raises UserError where no image can be taken.
    """
    order = numpy_generator(seed, "select").permutation(np.flatnonzero(labels >= 0))
    taken = []
    for label in np.unique(labels[order]):
        members = order[labels[order] == label]
        taken.append(members[: min(max(1, round(share * len(members))), len(members) - 1)])
    if not sum(len(rows) for rows in taken):
        raise UserError(
            f"evaluation.select: found a share of {share}, but no class has two labelled training images; allowed: null"
        )
    return np.sort(np.concatenate(taken))


def label_histogram(shards: list[Indices], labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """How many images of each class each client holds, (N, C); unlabelled images are not counted."""
    held = [labels[shard] for shard in shards]
    counts = [np.bincount(mine[mine >= 0], minlength=classes) for mine in held]
    return np.array(counts, dtype=np.int64).reshape(len(shards), classes)
