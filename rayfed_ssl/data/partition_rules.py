"""The rules by which images are shared out: disjoint index arrays, one per client.

Shape legend: n images to share out, N clients, C classes. ``chosen`` (n,) are the indices to share out, ``labels`` the
labels of all images. The rules are those of the papers: FedSC's disjoint class blocks, FLESD's and FedX's class-wise
Dirichlet, EasyFL's classes per client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable

Indices = NDArray[np.int64]
REDRAWS = 10_000


def evenly(chosen: Indices, clients: int, draw: np.random.Generator) -> list[Indices]:
    """A random split into parts whose sizes differ by one at most."""
    return np.array_split(draw.permutation(chosen), clients)


def dirichlet(
    chosen: Indices,
    labels: NDArray[np.int64],
    clients: int,
    alpha: float,
    min_size: int | None,
    draw: np.random.Generator,
) -> list[Indices]:
    """Class-wise Dirichlet(alpha) over the clients, all classes redrawn until the smallest client is large enough.

    Differs from FLESD's code: that redraws until the smallest client's class shares sum to more than 0.5/N, which for
    balanced classes is 0.5/C of the mean client (5% for ten classes; 417 images of 50,000 for six clients), and drops
    the remainders of floored counts. Here the bound is a number of images, and nothing is dropped. Differs from FedX's
    code: no client is limited to n/N images.
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
        smallest = int(np.diff(cuts, axis=1, prepend=0).sum(axis=0).min())
        if smallest >= least:
            parts = [np.split(draw.permutation(members), cut[:-1]) for members, cut in zip(classes, cuts, strict=True)]
            return [np.concatenate(client_parts) for client_parts in zip(*parts, strict=True)]
        best = max(best, smallest)
    raise UserError(
        f"data.partition.alpha: {alpha} with {clients} clients left one below min_size={least} in {REDRAWS} draws"
        f" (best: {best}); raise alpha, or lower data.partition.min_size or clients.count"
    )


def largest_remainder(total: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Cuts ``total`` by ``shares`` (N,), which sum to 1. Each part is rounded down, and what is left over goes to the
    parts with the largest fractions (to the later one if they are equal).
    """
    exact = total * shares
    counts = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    if missing:
        counts[np.argsort(exact - counts, kind="stable")[len(counts) - missing :]] += 1
    return counts


def dirichlet_largest_remainder(
    chosen: Indices, labels: NDArray[np.int64], clients: int, alpha: float, seed: int
) -> list[Indices]:
    """Class-wise Dirichlet(alpha) as fedbox draws it. Published splits were made with it.

    One draw of all shares (C, N) from numpy's legacy generator seeded with ``seed``; then, class by class, the class's
    images are shuffled and cut by the largest remainder. Every image is held; a client may get none, which
    :func:`~rayfed_ssl.data.partition.partition` refuses.

    Raises:
        UserError: ``alpha`` is so small that this generator rounds all shares of a class to 0.
    """
    draw = np.random.RandomState(seed % 2**32)
    present = np.unique(labels[chosen])
    shares = draw.dirichlet(np.full(clients, alpha), size=len(present))
    if not np.isfinite(shares).all():
        raise UserError(f"data.partition.alpha: found {alpha}, too small for numpy's legacy generator; raise alpha")
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for label, class_shares in zip(present, shares, strict=True):
        members = chosen[labels[chosen] == label]
        draw.shuffle(members)
        ends = np.cumsum(largest_remainder(len(members), class_shares))
        for client_parts, part in zip(held, np.split(members, ends[:-1]), strict=True):
            client_parts.append(part)
    return [np.concatenate(client_parts) for client_parts in held]


def quantity(chosen: Indices, clients: int, sigma: float, min_size: int, draw: np.random.Generator) -> list[Indices]:
    """Random images in shares of N log-normal(0, sigma) draws, redrawn until the smallest client is large enough."""
    total = len(chosen)
    if min_size * clients > total:
        raise UserError(
            f"data.partition.min_size: {min_size} images for each of {clients} clients are more than the {total} "
            "there are"
        )
    best = 0
    for _ in range(REDRAWS):
        sizes = draw.lognormal(0.0, sigma, clients)
        counts = largest_remainder(total, sizes / sizes.sum())
        if counts.min() >= min_size:
            return np.split(draw.permutation(chosen), np.cumsum(counts)[:-1])
        best = max(best, int(counts.min()))
    raise UserError(
        f"data.partition.sigma: {sigma} with {clients} clients left one below min_size={min_size} in {REDRAWS} draws"
        f" (best: {best}); lower sigma, data.partition.min_size or clients.count"
    )


def classes_per_client(
    chosen: Indices, labels: NDArray[np.int64], clients: int, per_client: int, draw: np.random.Generator
) -> list[Indices]:
    """EasyFL's class split: each class is cut into ceil(N * per_client / C) parts, dealt from the least-used classes.

    Ties between classes are broken at random. If C does not divide N * per_client, some parts are not dealt and their
    images are held by nobody, as in EasyFL.
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


def natural_clients(natural: NDArray[np.int64] | None, clients: int, names: Sequence[str]) -> NDArray[np.int64]:
    """The client that the data set assigns to each image, checked against ``clients.count``. Raises UserError."""
    if natural is None:
        raise UserError(
            "data.partition.name: natural, but the images have no clients of their own; use"
            " data.name=imagefolder with data.layout=clients, or data.columns.client"
        )
    if not (natural >= 0).any():
        raise UserError("data.partition.name: natural, but no training image has a client (folder or value)")
    if (count := len(names) or int(natural.max()) + 1) != clients:
        found = f"{count} client folders or values"
        if count == 1:
            name = f", {printable(names[0], 80)}" if names else ""
            found = f"one client folder or value{name}, and belong to one owner"
        raise UserError(f"clients.count: {clients}, but the images are of {found}; set clients.count={count}")
    return natural


def large_enough(
    held: Sequence[Indices], least: int | None, whole: NDArray[np.int64], names: Sequence[str], why_none: str
) -> list[Indices]:
    """The shards of N given clients, emptied if they hold fewer than ``least`` images; None: every client must have an
    image.

    Args:
        whole: (N,) how many training images each client has, including those that are held out.
        names: the clients' names, if they have any.
        why_none: what a message says about a client without training images.
    Raises:
        UserError: no client is large enough, or a client has no image though every client must have one.
    """
    sizes = np.array([len(mine) for mine in held])
    called = [f"client {client}" + (f" ({names[client]})" if names else "") for client in range(len(held))]
    if least is None and (empty := np.flatnonzero(sizes == 0).tolist()):
        first, more = empty[0], f", nor have {len(empty) - 1} more" if len(empty) > 1 else ""
        reason = (
            f"all {whole[first]} of its training images are held out by evaluation.select" if whole[first] else why_none
        )
        raise UserError(
            f"data.partition: {called[first]} has no image to train on{more} ({reason}); data.partition.min_size=1 "
            "leaves such clients out"
        )
    if least is not None and sizes.max() < least:
        raise UserError(
            f"data.partition.min_size: found {least}, but the largest, {called[int(sizes.argmax())]}, has "
            f"{sizes.max()} images to train on; must be at most {sizes.max()}"
        )
    return [mine if least is None or len(mine) >= least else mine[:0] for mine in held]
