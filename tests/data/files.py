"""Small image files in each source's exact format, and what the library makes of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig


def pictures(count: int, size: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def file_of(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def png(pixels: np.ndarray) -> bytes:
    return file_of(pixels, "PNG")


def fetch(tmp_path: Path, name: str, **settings):
    settings = {"image_size": 16, "path": tmp_path} | settings
    return load(SourceConfig(name=name, **settings), tmp_path / "cache")


def refused(match: str, tmp_path: Path, name: str, **settings) -> None:
    with pytest.raises(UserError, match=match) as error:
        fetch(tmp_path, name, **settings)
    assert "\n" not in str(error.value)


def write_parquet(
    path: Path, pixels, labels, column="img", label="label", metadata=None, plain=False, **beside
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = [p if isinstance(p, bytes | None) else png(p) for p in pixels]
    images = (
        pa.array(encoded, pa.binary())
        if plain
        else pa.array(
            [{"bytes": e, "path": None} for e in encoded], pa.struct({"bytes": pa.binary(), "path": pa.string()})
        )
    )
    columns = {column: images} | {name: pa.array(values) for name, values in beside.items()}
    if label:
        columns[label] = pa.array(labels)
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path, row_group_size=7)


HUGGING_FACE = json.dumps(
    {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
)


TEXT_TYPES = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]


def write_columns(path: Path, count: int, seed: int = 0, **columns) -> np.ndarray:
    pixels = pictures(count, seed=seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"scan": [png(image) for image in pixels], **columns}), path)
    return pixels


def put(root: Path, files: dict[str, np.ndarray]) -> None:
    for name, pixels in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def training_images(tmp_path: Path, name: str, **settings):
    config = SourceConfig(**{"name": name, "image_size": 16, "path": tmp_path} | settings)
    return load(config, tmp_path / "cache", splits=("train",))


def tree_of(names: dict[str, int], suffix: str = "png") -> dict[str, np.ndarray]:
    """So many different images in each folder."""
    images = iter(pictures(sum(names.values())))
    return {f"{folder}/{n}.{suffix}": next(images) for folder, count in names.items() for n in range(count)}
