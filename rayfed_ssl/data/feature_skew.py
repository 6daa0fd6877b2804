"""Clients whose images look different: the training images, each changed by its client's corruption.

The changed images are a split of their own in the cache, so processes share them as they share any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.data.corruptions import CORRUPTIONS, Pixels
from rayfed_ssl.data.decode import Form
from rayfed_ssl.data.images import Dataset, Listing, Payload
from rayfed_ssl.data.partition import FeatureSkew
from rayfed_ssl.data.store import FORMAT, cached, default_cache


def corrupted(pixels: Pixels, row: int, name: str, config: FeatureSkew, seed: int) -> Pixels:
    """The image ``pixels`` (S, S, C) uint8 of a row with the corruption ``name``."""
    return CORRUPTIONS[name](pixels, config.severity, numpy_generator(config.split_seed(seed), "corruption", row))


def skew_features(
    dataset: Dataset, config: FeatureSkew, shards: list[NDArray[np.int64]], seed: int, cache: Path | None = None
) -> Dataset:
    """``dataset`` with client j's training images (rows ``shards[j]``) changed by client j's corruption.

    Images that no client holds, and test images, stay as they are. Noise is addressed by ``seed`` (or the partition's
    own) and the image's row.
    """
    train = dataset.train
    corruption = np.full(len(train), "none", dtype=object)
    for client, shard in enumerate(shards):
        corruption[shard] = config.corruption(client)

    def rows() -> Iterator[tuple[str, Payload]]:
        for row, name in enumerate(corruption):
            yield f"{dataset.name} row {row}", corrupted(train.pixels[row], row, name, config, seed)

    def listing() -> Listing:
        return Listing(train.labels, train.class_names, rows, train.groups, train.group_names)

    settings = [FORMAT, dataset.digest, config.severity, config.split_seed(seed), corruption.tolist()]
    key = hashlib.blake2b(json.dumps(settings).encode(), digest_size=12).hexdigest()
    size, _, channels = train.pixels.shape[1:]
    path = (cache or default_cache()) / f"feature_skew-{size}-{key}-train.arrow"
    stored = cached(path, listing, Form(size, channels=channels), skip_bad=False)
    digest = hashlib.blake2b(f"{dataset.digest} {stored.digest}".encode(), digest_size=16).hexdigest()
    note = f"clients' training images were changed by {', '.join(config.corruptions)} at severity {config.severity}"
    return replace(dataset, train=stored.images, digest=digest, notes=(*dataset.notes, note))
