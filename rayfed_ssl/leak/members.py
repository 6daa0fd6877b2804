"""Draws the images that an audit tells apart: members, on which a client trained, and non-members.

Members are images of the client's shard. Non-members are images from the same pool that no client trains on: those
that ``evaluation.select`` held out, or, with tasks, the client's own test images. Copies of images that some client
trains on are excluded. Both sets have the same number of images of each class and, if they are known, of each natural
client (a folder, or a value of a client column), so that neither is evidence of membership.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.data.images import Images
from rayfed_ssl.federated.federation import Federation

LEAST = 20  # with fewer members, an area says nothing


class TooFew(UserError):
    """A client has too few pairs of a member and a non-member; ``pairs`` is their number."""

    pairs: int = 0

    def having(self, pairs: int) -> Self:
        """This error, with ``pairs``."""
        self.pairs = pairs
        return self


@dataclass(frozen=True)
class Sets:
    """Rows of the training images: ``members`` (n,) and ``others`` (n,), which are to be told apart, and a
    ``reference`` of the same distribution, which the adversary has.
    """

    members: np.ndarray
    others: np.ndarray
    reference: np.ndarray


def draw_sets(federation: Federation, client: int, wanted: int, seed: int) -> Sets:
    """Members and non-members of a client, with equal numbers of each class and natural client.

    The pool of non-members has only natural clients of which this client has images. A third of it is the reference.

    Args:
        wanted: how many members at most.
        seed: the run's seed.
    Raises:
        UserError: no image was held out.
        TooFew: there are fewer than ``LEAST`` pairs.
    """
    shard = federation.shards[client]
    pool = shard["test"] if federation.tasks is not None else federation.held_out
    if pool is None or not len(pool):
        raise UserError(
            "evaluation.select: found null; membership inference needs images that no client trains on, of the same "
            "pool: run with evaluation.select.share=0.1 or more, and a partition that holds images out (not file)"
        )
    pool = pool[~_seen_in_training(federation)[pool]]
    kinds = _kinds(federation.dataset.train)
    if (clients := federation.dataset.train.clients) is not None:
        pool = pool[np.isin(clients[pool], clients[shard["train"]])]
    draws = numpy_generator(seed, "leak", client)
    pool = draws.permutation(pool)
    reference, pool = np.sort(pool[: len(pool) // 3]), pool[len(pool) // 3 :]
    shuffled = draws.permutation(shard["train"])
    members, others = [], []
    for kind in np.unique(kinds[shuffled]):
        mine, theirs = shuffled[kinds[shuffled] == kind], pool[kinds[pool] == kind]
        count = min(len(mine), len(theirs))
        members.append(mine[:count])
        others.append(theirs[:count])
    pairs = draws.permutation(sum(map(len, members)))[:wanted]
    if len(pairs) < LEAST:
        raise TooFew(_too_few(federation, client, len(pairs))).having(len(pairs))
    return Sets(np.sort(np.concatenate(members)[pairs]), np.sort(np.concatenate(others)[pairs]), reference)


def _too_few(federation: Federation, client: int, pairs: int) -> str:
    """The message for a client with too few pairs, which names the key that decides how many there are. With tasks,
    only each client's own test images are held out.
    """
    needed = f"at least {LEAST} of each are needed"
    if federation.tasks is not None:
        return (
            f"data.task_images: {federation.called(client)} has {pairs} images to train on with a test image of its "
            f"own task and of the same class beside each (a third of the test images is the reference); {needed}: more "
            "images of each class (data.task_images, data.limit)"
        )
    alike = "class" if federation.dataset.train.clients is None else "class and client"
    return (
        f"evaluation.select.share: {federation.called(client)} has {pairs} training "
        f"{'image' if pairs == 1 else 'images'} with a held-out image of the same {alike} beside each; {needed}: "
        "hold out a larger share"
    )


def _kinds(images: Images) -> np.ndarray:
    """(N,) numbers that are equal for images of the same class and natural client."""
    if images.clients is None:
        return images.labels
    pairs = np.stack([images.labels, images.clients])
    kinds: np.ndarray = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    return kinds


def _seen_in_training(federation: Federation) -> np.ndarray:
    """(N,) whether a training image has the same pixels as an image that some client trains on, or as a public one. A
    copy of such an image cannot be a non-member, even if it was held out.
    """
    content = np.arange(len(federation.dataset.train))  # equal for images with equal pixels
    if (copies := federation.dataset.copies) is not None:
        own = copies[copies[:, 0] < len(content)]
        content[own[:, 0]] = own[:, 1]
    public = [] if federation.public_indices is None else [federation.public_indices]
    return np.isin(content, content[np.concatenate([*(shard["train"] for shard in federation.shards), *public])])
