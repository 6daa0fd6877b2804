"""The base of partitions: a block of configuration with a rule, and the checks on its shards.

Shape legend: n images to share out of M training images, N clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.data.images import Images

Indices = NDArray[np.int64]
MOST_NAMED = 5  # clients that are left out


@dataclass(frozen=True, eq=False)
class NaturalClients:
    """The clients that the data set itself assigns to the M training images."""

    of_images: NDArray[np.int64] | None = None  # (M,) each image's client, -1: none; None: data without clients
    names: Sequence[str] = ()  # of the clients


@dataclass(frozen=True)
class Deal:
    """The input of a partition: n of the M training images, to be shared out to N clients."""

    chosen: Indices  # (n,) the images to share out, ascending
    labels: NDArray[np.int64]  # (M,) of all training images, negative where unknown
    natural: NDArray[np.int64] | None  # (M,) each image's client in the data, -1: none; None: data without clients
    clients: int  # N
    seed: int  # of the split
    natural_names: Sequence[str] = ()  # of the clients in the data

    @cached_property
    def draw(self) -> np.random.Generator:
        """The split's generator, from which everything random in it is drawn."""
        return numpy_generator(self.seed, "partition")


class Partition(Block):
    """Base of every ``data.partition`` block: its keys, its rule, and what the rest of a run needs to know of it. A
    subclass gives ``name`` its one value as the default.
    """

    by_label: ClassVar[bool] = False
    """Whether the rule reads labels: images without one are then refused."""

    by_client: ClassVar[bool] = False
    """Whether it keeps the clients of the data (client folders, values of the client column). If it does not, a run
    notes that images are dealt anew.
    """

    natural: ClassVar[bool] = False
    """Whether client j is the j-th client of the data: that client's test images are its own, and none of its images
    become public.
    """

    listed: ClassVar[bool] = False
    """Whether it names the images of every client, so that none can be held out before (``evaluation.select``)."""

    draws: ClassVar[bool] = True
    """Whether the rule draws anything: else ``seed`` is refused, unless a share of the images becomes public."""

    seed: int | None = Field(None, ge=0)
    """Draws the split; with one of their own, runs of several seeds share a split; null: the run's seed."""
    name: str
    """The rule."""

    def split_seed(self, run_seed: int) -> int:
        return run_seed if self.seed is None else self.seed

    @property
    def files(self) -> dict[str, Path]:
        """The files that the partition reads, by key: every value that is a path. A run records their digests, and a
        resumed run must have the same files.
        """
        return {key: value for key in type(self).model_fields if isinstance(value := getattr(self, key), Path)}

    def shards(self, deal: Deal) -> Sequence[Indices]:
        """The indices that each of the N clients holds, in any order, of ``deal.chosen`` and each at most once. Images
        may be left out, but every client holds at least one. Raises UserError for keys that do not fit the images.
        """
        raise NotImplementedError

    def names(self, images: Images) -> Sequence[str] | None:
        """The names of the N clients; None: ``client 0`` and so on."""
        return None

    def notes(self, images: Images, chosen: Indices, shards: Sequence[Indices]) -> Sequence[Note | str]:
        """Lines on the images and clients that the partition left out; see ``rayfed_ssl.base.notes``."""
        return ()

    @property
    def leaves_out(self) -> bool:
        """Whether a client without images simply takes no part; otherwise it is an error."""
        return False

    def public(self, labels: NDArray[np.int64]) -> Indices | None:
        """The images that the partition says are public, asked for if a share of the images is to be public; None: they
        are drawn.
        """
        return None

    def corruption(self, client: int) -> tuple[str, int] | None:
        """What is done to the training images of a client: one of ``CORRUPTIONS``, and its severity; None: nothing."""
        return None


class GivenClients(Partition):
    """Base of the partitions whose clients come with their images, few or many."""

    min_size: int | None = Field(None, ge=1)
    """Images to train on that a client must have to take part: smaller ones are left out, with a note, and
    ``clients.count`` counts them still; null: all take part, and one without images is refused.
    """

    @property
    def leaves_out(self) -> bool:
        return self.min_size is not None

    def left_out(self, shards: Sequence[Indices], names: Sequence[str], images: int) -> tuple[Note, ...]:
        """A line on the clients that are too small, with the number of images they would have held; none if no client
        is.
        """
        small = [client for client, shard in enumerate(shards) if not len(shard)]
        if not small:
            return ()
        called = ", ".join(names[client] if names else f"client {client}" for client in small[:MOST_NAMED])
        more = f" and {len(small) - MOST_NAMED} more" if len(small) > MOST_NAMED else ""
        images_text = f", and their images, {images} in all, are nobody's" if images else "; they have no images"
        text = (
            f"below data.partition.min_size={self.min_size} images to train on: {len(small)} of {len(shards)} clients "
            "take no part"
        )
        return (Note.shareable(text, f"{images_text} ({called}{more})"),)


def checked(shards: Sequence[Indices], deal: Deal, where: str, leaves_out: bool = False) -> list[Indices]:
    """The shards, each sorted; a shard may be empty if clients may be left out. Raises UserError if the shards are not
    a partition of the images to share out.
    """
    if not isinstance(shards, list | tuple) or len(shards) != deal.clients:
        given = f"{len(shards)} shards" if isinstance(shards, list | tuple) else type(shards).__name__
        raise UserError(f"{where} gives {given}; must be a list with one array of indices for each of the "
                        f"{deal.clients} clients")  # fmt: skip
    held = [_flat(np.asarray(shard), client, where) for client, shard in enumerate(shards)]
    sizes = [len(indices) for indices in held]
    if not leaves_out and (empty := [client for client, size in enumerate(sizes) if not size]):
        raise UserError(f"{where} leaves {len(empty)} of {deal.clients} clients (first: {empty[0]}) empty")
    together, holder = np.concatenate(held), np.repeat(np.arange(deal.clients), sizes)
    if len(foreign := np.flatnonzero(~np.isin(together, deal.chosen))):
        raise UserError(
            f"{where} gives client {holder[foreign[0]]} the image {together[foreign[0]]}, which is not among the "
            f"{len(deal.chosen)} to share out"
        )
    order = np.argsort(together, kind="stable")
    if len(repeated := np.flatnonzero(np.diff(together[order]) == 0)):
        first, second = order[repeated[0]], order[repeated[0] + 1]
        raise UserError(
            f"{where} gives the image {together[first]} twice, to client {holder[first]} and to client "
            f"{holder[second]}; an image has one client at most"
        )
    return [np.sort(indices) for indices in held]


def _flat(mine: NDArray[np.generic], client: int, where: str) -> Indices:
    """The indices of a client. Raises UserError if they are not whole numbers."""
    if mine.ndim != 1 or (len(mine) and mine.dtype.kind not in "iu"):
        raise UserError(
            f"{where} gives client {client} values of shape {mine.shape} and type {mine.dtype}; must be whole numbers, "
            "the indices of training images, in a flat array"
        )
    return mine.astype(np.int64)
