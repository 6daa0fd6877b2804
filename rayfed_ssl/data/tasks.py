"""FedLinked's data: every client has a classification task of its own, over some of the classes (thesis, Table 4.1).

A (client, class) pair is a slot and holds the same number of images; a class used by several clients is split between
them. A share of every slot goes to the unlabelled public pool; what a client keeps is cut one tenth after another.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator

Indices = NDArray[np.int64]


def split_tasks(
    labels: NDArray[np.int64], tasks: list[list[int]], public_share: float, seed: int, per_slot: int | None = None
) -> tuple[list[dict[str, Indices]], Indices]:
    """Split images into one task per client and a public pool.

    ``labels`` (n,); ``tasks[j]`` the class numbers of client j; ``per_slot`` images for each (client, class) slot, None
    for as many as the data allow. Returns, per client, the sorted indices of "train", "es" (early stopping), "rb"
    (rollback) and "test"; and the sorted public indices, ``round(public_share * per_slot)`` from every slot. All are
    disjoint. Raises UserError naming ``data.tasks`` or ``data.public.share``.
    """
    if not 0 < public_share < 1:
        raise UserError(f"data.public.share: {public_share}; allowed: more than 0, less than 1")
    users = _users(tasks)
    sizes = {label: int((labels == label).sum()) for label in users}
    available = min(sizes[label] // clients for label, clients in users.items())
    if available < 1 or (per_slot or 0) > available:
        scarce = min(users, key=lambda label: sizes[label] // users[label])
        raise UserError(
            f"data.tasks: class {scarce} has {sizes[scarce]} images for {users[scarce]} clients;"
            f" {per_slot or 1} for each are too many"
        )
    per_slot = per_slot or available
    taken = round(public_share * per_slot)
    order = {
        label: numpy_generator(seed, "tasks", label).permutation(np.flatnonzero(labels == label)) for label in users
    }
    dealt: Counter[int] = Counter()
    public: list[Indices] = []
    clients: list[dict[str, Indices]] = []
    for client, task in enumerate(tasks):
        kept = []
        for label in task:
            slot = order[label][dealt[label] * per_slot : (dealt[label] + 1) * per_slot]
            dealt[label] += 1
            public.append(slot[:taken])
            kept.append(slot[taken:])
        images = numpy_generator(seed, "tasks", "client", client).permutation(np.concatenate(kept))
        clients.append(_cut(images, client))
    return clients, np.sort(np.concatenate(public))


def _users(tasks: list[list[int]]) -> Counter[int]:
    """How many clients use each class."""
    for client, task in enumerate(tasks):
        if not task or len(set(task)) != len(task) or min(task) < 0:
            raise UserError(f"data.tasks: task {client} is {task}; wanted one or more different class numbers from 0")
    if not tasks:
        raise UserError("data.tasks: empty; wanted a list of classes for every client")
    return Counter(label for task in tasks for label in task)


def private_counts(total: int) -> dict[str, int]:
    """How many of ``total`` images each split gets: a tenth is for early stopping, then a tenth of the rest for test,
    then a tenth of that rest for rollback, rounded up each time; the others are trained on.

    Reproduces every count of Table 4.1, for example 6000 -> 600 / 540 / 486 and 4374 to train on.
    """
    counts = {}
    for split in ("es", "test", "rb"):
        counts[split] = math.ceil(total / 10)
        total -= counts[split]
    return counts | {"train": total}


def _cut(images: Indices, client: int) -> dict[str, Indices]:
    counts = private_counts(len(images))
    if min(counts.values()) < 1:
        raise UserError(f"data.tasks: client {client} keeps {len(images)} images, too few to split in four")
    edges = np.cumsum(list(counts.values()))[:-1]
    return {name: np.sort(part) for name, part in zip(counts, np.split(images, edges), strict=True)}
