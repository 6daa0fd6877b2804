"""Parquet files with columns of the test's own beside different images, and what the library makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from tests.data.files import pictures, png

SIZE = 8


def write(path: Path, **columns: Sequence[object] | pa.Array) -> None:
    """A Parquet file of different images with these columns."""
    count = len(next(iter(columns.values())))
    images = [png(pixels) for pixels in pictures(count, SIZE)]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": images, **columns}), path)


def config(path: Path, **columns: str | bool) -> SourceConfig:
    return SourceConfig.model_validate({"name": "parquet", "path": path, "image_size": SIZE, "columns": columns})


def read(path: Path, **columns: str | bool) -> Dataset:
    return load(config(path, **columns), path.parent / "cache")
