"""Puts values into the object store: those sent with calls, once, and the images, one copy per node."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from ray import ObjectRef

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.data.images import Images
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.messages import Fields, Unread
from rayfed_ssl.simulation.memory import Room, free_memory

IN_HEAP_BYTES = 100_000  # what an actor returns goes to the driver's own memory up to this size, else into the store
INLINE_BYTES = 32 << 10  # smaller arrays travel within the call
STORE_SHARE = 0.4  # images that take more of a node's object store are mapped from the cache file instead


class Store:
    """Values of this round that are already in the object store, by identity.

    A value that is sent with two calls is put there once. Values for all clients are remembered until the round ends;
    of the values for single clients, the last ``recent``.
    """

    def __init__(self, recent: int) -> None:
        self.recent = recent
        self._shared: dict[int, tuple[Any, ObjectRef]] = {}
        self._own: OrderedDict[int, tuple[Any, ObjectRef]] = OrderedDict()
        self._always: dict[int, tuple[Any, ObjectRef]] = {}

    def remember(self, value: Any, ref: ObjectRef) -> None:
        """Remember a published value's reference for the whole run."""
        self._always[id(value)] = (value, ref)

    def reference(self, value: Any, *, shared: bool) -> ObjectRef | None:
        """A reference to ``value``, or None if it is small enough to be sent within the call.

        Args:
            shared: whether it is sent to all clients of the round.
        """
        if not _large(value):
            return None
        key = id(value)
        for known in (self._always, self._shared, self._own):
            if key in known:
                return known[key][1]
        ref = ray.put(value)
        if shared:
            self._shared[key] = (value, ref)
        else:
            self._own[key] = (value, ref)
            if len(self._own) > self.recent:
                self._own.popitem(last=False)
        return ref

    def clear(self) -> None:
        """Forget the round's values."""
        self._shared.clear()
        self._own.clear()


def _large(value: Any) -> bool:
    """Whether the arrays in it are too large to be sent within a call."""
    return nbytes(value) > INLINE_BYTES


def nbytes(value: Any) -> int:
    """Bytes of the arrays within ``value``."""
    match value:
        case np.ndarray():
            return value.nbytes
        case Weights():
            return value.vector.nbytes
        case Unread():
            return value.nbytes
        case Fields():
            return sum(map(nbytes, value.unread.values()))
        case bytes():
            return len(value)
        case Mapping():
            return sum(map(nbytes, value.values()))
        case list() | tuple():
            return sum(map(nbytes, value))
    return 0


def place_of(state: float, federation: Federation, sharing: int = 1) -> Room:
    """The place for states of this many bytes: the stores of all nodes, each without the images, or the driver's
    memory.
    """
    if state <= IN_HEAP_BYTES:
        return free_memory()
    images = pixel_bytes(federation) if _fits_stores(federation, sharing) else 0
    return Room("the object store", sum(store - images for store in _stores(sharing)))


def _stores(sharing: int) -> list[float]:
    """Bytes of each living node's object store that belong to one of this many cohorts."""
    return [node["Resources"].get("object_store_memory", math.inf) / sharing for node in ray.nodes() if node["Alive"]]


def pixel_bytes(federation: Federation) -> int:
    dataset = federation.dataset
    return sum(part.pixels.nbytes for part in (dataset.train, dataset.test, federation.public) if part is not None)


def _fits_stores(federation: Federation, sharing: int) -> bool:
    return pixel_bytes(federation) <= STORE_SHARE * min(_stores(sharing))


def shared_images(federation: Federation, sharing: int) -> ObjectRef | None:
    """The federation in the object store, with one buffer of pixels per split; None if they are too large for it."""

    def plain(images: Images) -> Images:
        return replace(images, pixels=np.ascontiguousarray(images.pixels).view(np.ndarray))

    dataset, public = federation.dataset, federation.public
    if not _fits_stores(federation, sharing):
        return None
    dataset = replace(dataset, train=plain(dataset.train), test=plain(dataset.test), names={})  # no client reads names
    return ray.put(replace(federation, dataset=dataset, public=None if public is None else plain(public)))
