"""Clients whose images look different: the training images, each changed by its client's corruption.

The changed images are a separate split in the cache, so processes share them like any other split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.data.corruptions import CORRUPTIONS, Pixels
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.images import Dataset, Listing, Payload
from rayfed_ssl.data.partition_base import Partition
from rayfed_ssl.data.pixels.store import FORMAT, cached, default_cache

SEVERITIES = range(1, 6)


def corrupted(pixels: Pixels, row: int, change: tuple[str, int], seed: int) -> Pixels:
    """The image ``pixels`` (S, S, C) uint8 of this row, with the corruption and severity ``change``; ``seed`` is the
    partition's.
    """
    name, severity = change
    return CORRUPTIONS[name](pixels, severity, numpy_generator(seed, "corruption", row))


def skew_features(
    dataset: Dataset, config: Partition, shards: list[NDArray[np.int64]], seed: int, cache: Path | None = None
) -> Dataset:
    """``dataset`` with client j's training images (rows ``shards[j]``) changed by client j's corruption.

    Images that no client holds, and test images, stay as they are. Noise is addressed by ``seed`` (or the partition's
    own) and the image's row. Raises UserError for an unknown corruption or severity.
    """
    train, seed = dataset.train, config.split_seed(seed)
    changes = [config.corruption(client) for client in range(len(shards))]
    distinct = dict.fromkeys(change for change in changes if change is not None)
    if unknown := [change for change in distinct if change[0] not in CORRUPTIONS or change[1] not in SEVERITIES]:
        raise UserError(
            f"data.partition: {config.name} changes images by {unknown[0]}; must be one of {', '.join(CORRUPTIONS)} "
            f"and a severity of {SEVERITIES[0]} to {SEVERITIES[-1]}"
        )
    holder = np.full(len(train), -1)  # of each image; -1: nobody
    for client, shard in enumerate(shards):
        holder[shard] = client

    def rows() -> Iterator[tuple[str, Payload]]:
        for row, client in enumerate(holder):
            change = None if client < 0 else changes[client]
            pixels = train.pixels[row] if change is None else corrupted(train.pixels[row], row, change, seed)
            yield f"{dataset.name} row {row}", pixels

    def listing() -> Listing:
        return Listing(train.labels, train.class_names, rows, train.clients, train.client_names, groups=train.groups)

    settings = [FORMAT, dataset.digest, seed, changes, holder.tolist()]
    key = hashlib.blake2b(json.dumps(settings).encode(), digest_size=12).hexdigest()
    size, _, channels = train.pixels.shape[1:]
    path = (cache or default_cache()) / f"feature_skew-{size}-{key}-train.arrow"
    stored = cached(path, listing, ImageForm(size, channels=channels), skip_bad=False)
    digest = hashlib.blake2b(f"{dataset.digest} {stored.digest}".encode(), digest_size=16).hexdigest()
    names = ", ".join(f"{name} at severity {severity}" for name, severity in distinct)
    note = Note(f"clients' training images were changed by {names}")
    return replace(dataset, train=stored.images, digest=digest, notes=(*dataset.notes, note))
