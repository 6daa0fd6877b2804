"""Who holds which images: index arrays per client, drawn from an address and disjoint by construction.

Shape legend: n images to share out, N clients, C classes. Every function returns N sorted int64 index arrays. The rules
are those of the papers: FedSC's disjoint class blocks, FLESD's and FedX's class-wise Dirichlet, EasyFL's classes per
client.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import numpy_generator

Indices = NDArray[np.int64]
REDRAWS = 10_000


class Iid(Block):
    """A random split into equal parts (sizes differ by one at most)."""

    name: Literal["iid"] = "iid"


class Dirichlet(Block):
    """Every class is shared out by its own draw from a Dirichlet distribution over the clients.

    ``min_size``: redraw until the smallest client has so many images. None is 10, as in FedX, or half the mean client
    where that is less.
    """

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(0.5, gt=0)
    min_size: int | None = Field(None, ge=1)


class ClassesPerClient(Block):
    """Every client holds parts of so many classes, which overlap between clients."""

    name: Literal["classes_per_client"] = "classes_per_client"
    classes: int = Field(2, ge=1)


class ClassBlocks(Block):
    """Client j holds all of the classes j*c to (j+1)*c - 1; None: the classes divided evenly among the clients."""

    name: Literal["class_blocks"] = "class_blocks"
    classes: int | None = Field(None, ge=1)


class Folders(Block):
    """Client j holds the j-th natural group (folder, sorted by name) of the images."""

    name: Literal["folders"] = "folders"


PartitionConfig = Annotated[Iid | Dirichlet | ClassesPerClient | ClassBlocks | Folders, Field(discriminator="name")]


def partition(
    config: Iid | Dirichlet | ClassesPerClient | ClassBlocks | Folders,
    labels: NDArray[np.int64],
    clients: int,
    seed: int,
    groups: NDArray[np.int64] | None = None,
    indices: NDArray[np.int64] | None = None,
) -> list[Indices]:
    """Share images out to clients.

    ``labels`` and ``groups`` describe all images; ``indices`` are those to share out (default: all of them), for when
    public images were taken out first. Returns one sorted index array per client, none of them empty. Raises UserError
    where the configuration does not fit the data.
    """
    chosen = np.arange(len(labels)) if indices is None else np.sort(np.asarray(indices, dtype=np.int64))
    if clients > len(chosen):
        raise UserError(f"clients.count: {clients}, but there are only {len(chosen)} images to share out")
    draw = numpy_generator(seed, "partition")
    if isinstance(config, Iid):
        shards = np.array_split(draw.permutation(chosen), clients)
    elif isinstance(config, Folders):
        shards = by_group(chosen, groups, clients)
    elif len(unlabelled := np.flatnonzero(labels[chosen] < 0)):
        raise UserError(
            f"data.partition.name: {config.name} goes by labels, but {len(unlabelled)} of {len(chosen)} images have"
            " none; allowed here: iid, folders"
        )
    elif isinstance(config, Dirichlet):
        shards = dirichlet(chosen, labels, clients, config.alpha, config.min_size, draw)
    elif isinstance(config, ClassesPerClient):
        shards = classes_per_client(chosen, labels, clients, config.classes, draw)
    else:
        shards = class_blocks(chosen, labels, clients, config.classes)
    empty = [client for client, shard in enumerate(shards) if not len(shard)]
    if empty:
        raise UserError(
            f"data.partition: {config.name} leaves {len(empty)} of {clients} clients (first: {empty[0]}) empty"
        )
    return [np.sort(shard).astype(np.int64) for shard in shards]


def dirichlet(
    chosen: Indices,
    labels: NDArray[np.int64],
    clients: int,
    alpha: float,
    min_size: int | None,
    draw: np.random.Generator,
) -> list[Indices]:
    """Class-wise Dirichlet(alpha) over the clients, all classes redrawn until the smallest client is large enough.

    Differs from FLESD's code: it redraws until the smallest client's class shares sum to more than 0.5/N, which for
    balanced classes is 0.5/C of the mean client (5% for ten classes; 417 images of 50,000 for six clients), and drops
    the remainders of floored counts; here the bound is a number of images and nothing is dropped. From FedX's code: no
    cap of n/N images per client.
    """
    total = len(chosen)
    least = min(10, max(1, total // (2 * clients))) if min_size is None else min_size
    if least * clients > total:
        raise UserError(
            f"data.partition.min_size: {least} images for each of {clients} clients are more than the {total} there are"
        )
    classes = [chosen[labels[chosen] == label] for label in np.unique(labels[chosen])]
    sizes = np.array([len(members) for members in classes])
    best = 0
    for _ in range(REDRAWS):
        shares = draw.dirichlet(np.full(clients, alpha), size=len(classes))  # (C, N)
        cuts = np.rint(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
        cuts[:, -1] = sizes  # rounding of the sum must not lose an image
        smallest = int(np.diff(cuts, axis=1, prepend=0).sum(axis=0).min())
        if smallest >= least:
            parts = [np.split(draw.permutation(members), cut[:-1]) for members, cut in zip(classes, cuts, strict=True)]
            return [np.concatenate(mine) for mine in zip(*parts, strict=True)]
        best = max(best, smallest)
    raise UserError(
        f"data.partition.alpha: {alpha} with {clients} clients left one below min_size={least} in {REDRAWS} draws"
        f" (best: {best}); raise alpha, or lower data.partition.min_size or clients.count"
    )


def classes_per_client(
    chosen: Indices, labels: NDArray[np.int64], clients: int, per_client: int, draw: np.random.Generator
) -> list[Indices]:
    """EasyFL's class split: each class is cut into ceil(N * per_client / C) parts, dealt from the least-used classes.

    Ties between classes are broken at random. Where C does not divide N * per_client some parts are not dealt, and
    their images are held by nobody, as there.
    """
    present = np.unique(labels[chosen])
    count = len(present)
    if per_client > count:
        raise UserError(f"data.partition.classes: {per_client} classes per client, but the images have {count}")
    parts = -(-clients * per_client // count)
    pieces = []
    for label in present:
        members = chosen[labels[chosen] == label]
        if len(members) < parts:
            raise UserError(
                f"clients.count: class {label} has {len(members)} images but must be cut into {parts} parts"
            )
        pieces.append(np.array_split(draw.permutation(members), parts))
    used = np.zeros(count, dtype=np.int64)
    shards = []
    for _ in range(clients):
        least_used = np.lexsort((draw.random(count), used))[:per_client]
        shards.append(np.concatenate([pieces[position][used[position]] for position in least_used]))
        used[least_used] += 1
    return shards


def class_blocks(chosen: Indices, labels: NDArray[np.int64], clients: int, per_client: int | None) -> list[Indices]:
    """FedSC's disjoint blocks of consecutive class numbers; classes beyond the last block are held by nobody."""
    count = int(labels.max()) + 1
    if per_client is None:
        if count % clients:
            raise UserError(
                f"clients.count: {count} classes cannot be divided among {clients} clients; set data.partition.classes"
            )
        per_client = count // clients
    if clients * per_client > count:
        raise UserError(
            f"data.partition.classes: {clients} clients with {per_client} classes each need {clients * per_client}"
            f" classes; the images have {count}"
        )
    block = labels[chosen] // per_client
    return [chosen[block == client] for client in range(clients)]


def by_group(chosen: Indices, groups: NDArray[np.int64] | None, clients: int) -> list[Indices]:
    """One client per natural group."""
    if groups is None:
        raise UserError(
            "data.partition.name: folders, but the images have no client folders;"
            " use data.name=imagefolder with data.layout=clients"
        )
    stray = int((groups[chosen] < 0).sum())
    if stray:
        raise UserError(f"data.partition.name: folders, but {stray} images lie in no client's folder")
    count = int(groups.max()) + 1
    if count != clients:
        raise UserError(
            f"clients.count: {clients}, but the images lie in {count} client folders; set clients.count={count}"
        )
    return [chosen[groups[chosen] == client] for client in range(clients)]


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
