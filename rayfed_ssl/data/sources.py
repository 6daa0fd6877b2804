"""From a configuration block to images: pick the source, find its cache file, decode once.

A cache file's name holds a digest of the source's files (their content up to 256 MiB in all, beyond that their relative
paths, sizes and modification times) and of every setting that changes the pixels. Images become RGB squares of
``image_size``: the central square, resized with an antialiased bilinear filter (see ``store.decode``).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.data.images import Dataset, Listing, Source
from rayfed_ssl.data.source_folder import Layout, folder_source
from rayfed_ssl.data.source_parquet import TEST_SHARE, parquet_source, stratified_halves
from rayfed_ssl.data.source_torchvision import torchvision_source
from rayfed_ssl.data.store import FORMAT, cached, default_cache

SourceName = Literal["digits", "parquet", "imagefolder", "cifar10", "cifar100", "svhn", "stl10", "fashion_mnist"]
CONTENT_DIGEST_BYTES = 256 * 2**20


class SourceConfig(Block):
    """Which images.

    ``digits`` comes with scikit-learn and reads no path; ``parquet`` and ``imagefolder`` need one; for the others it is
    torchvision's root folder. ``limit`` and ``test_limit`` keep the first rows of a split (``imagefolder``, whose rows
    are sorted by class: evenly spaced ones).
    """

    name: SourceName = "parquet"
    path: Path | None = None
    layout: Layout = "classes"
    download: bool = False
    image_size: int = Field(32, ge=8, le=1024)
    on_bad_image: Literal["fail", "skip"] = "fail"
    max_pixels: int = Field(50_000_000, ge=64, le=178_956_970)
    limit: int | None = Field(None, ge=1)
    test_limit: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _nothing_ignored(self) -> SourceConfig:
        """A key that the source does not read would be a mistake nobody notices."""
        if self.name == "digits" and self.path is not None:
            raise ValueError("path: found a value; digits come with scikit-learn and read none (another name?)")
        if self.download and self.name in ("digits", "parquet", "imagefolder"):
            raise ValueError(f"download: found true; {self.name} downloads nothing; allowed: torchvision's data sets")
        if self.layout != "classes" and self.name != "imagefolder":
            raise ValueError(f"layout: found '{self.layout}'; only imagefolder has a layout")
        return self


def load(config: SourceConfig, cache: Path | None = None, key: str = "data") -> Dataset:
    """The data set, decoded at the first call and memory-mapped from ``cache`` ever after.

    ``key`` is the configuration block that error messages name. Raises UserError for whatever is wrong with the
    configuration or the files.
    """
    cache = cache or default_cache()
    source = _source(config, cache, key)
    try:
        stem = cache / f"{config.name}-{config.image_size}-{_cache_key(config, source.files)}"
    except OSError as error:
        raise UserError(f"{key}.path: {error.filename} cannot be read ({error.strerror})") from error
    train, test = (
        cached(
            stem.with_name(f"{stem.name}-{split}.arrow"),
            lambda split=split: source.listing(split),  # type: ignore[misc]
            config.image_size,
            config.max_pixels,
            config.on_bad_image == "skip",
            key,
        )
        for split in ("train", "test")
    )
    for split, stored in (("training", train), ("test", test)):
        if not len(stored.images) and (split == "training" or (train.images.labels >= 0).any()):
            raise UserError(f"{key}.path: no {split} images in {config.path} ({len(stored.skipped)} cannot be decoded)")
    digest = hashlib.blake2b(f"{train.digest} {test.digest}".encode(), digest_size=16).hexdigest()
    return Dataset(config.name, train.images, test.images, digest, train.skipped + test.skipped)


def _source(config: SourceConfig, cache: Path, key: str) -> Source:
    limits = {"train": config.limit, "test": config.test_limit}
    if config.name == "digits":
        return Source((), lambda split: _digits(split, limits[split]))
    if config.name in ("parquet", "imagefolder"):
        path = _existing(config, key)
        if config.name == "parquet":
            return parquet_source(path, limits, key)
        return folder_source(path, config.layout, limits, key)
    root = config.path.expanduser() if config.path else cache / "downloads"
    return torchvision_source(config.name, root, config.download, limits, key)


def _existing(config: SourceConfig, key: str) -> Path:
    if config.path is None:
        raise UserError(f"{key}.path: not set; {key}.name={config.name} needs a file or folder of images")
    path = config.path.expanduser()
    if not path.exists():
        raise UserError(f"{key}.path: {path} does not exist (seen from {Path.cwd()})")
    if config.name == "imagefolder" and not path.is_dir():
        raise UserError(f"{key}.path: {path} is a file; {key}.name=imagefolder needs a folder with train/ in it")
    return path


def _digits(split: str, limit: int | None) -> Listing:
    """scikit-learn's 1,797 digits: 8x8 grey, 17 levels scaled to 0..255; a fixed fifth of each class is test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = np.asarray(bunch.target, dtype=np.int64)
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    rows = stratified_halves(labels, TEST_SHARE)[split == "test"][:limit]
    names = tuple(str(name) for name in bunch.target_names)
    return Listing(labels[rows], names, lambda: ((f"digits {row}", pixels[row]) for row in rows))


def _cache_key(config: SourceConfig, files: tuple[Path, ...]) -> str:
    settings = config.model_dump(include=set(SourceConfig.model_fields) - {"path", "download"})
    digest = hashlib.blake2b(json.dumps([FORMAT, settings], sort_keys=True).encode(), digest_size=12)
    stats = [file.stat() for file in files]
    root = Path(os.path.commonpath([file.parent for file in files])) if files else Path()
    whole = sum(stat.st_size for stat in stats) <= CONTENT_DIGEST_BYTES
    for file, stat in zip(files, stats, strict=True):
        digest.update(f"\0{file.relative_to(root)}\0{stat.st_size}\0".encode())
        digest.update(file.read_bytes() if whole else str(stat.st_mtime_ns).encode())
    return digest.hexdigest()
