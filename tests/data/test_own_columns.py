"""Label and client columns as people's tables have them, against what pyarrow reads of the same files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.partition import Natural, partition
from rayfed_ssl.data.sources import SourceConfig, load

SIZE = 8


def write(path: Path, **columns: object) -> None:
    """A Parquet file of different images with these columns."""
    count = len(next(iter(columns.values())))  # type: ignore[arg-type]
    images = []
    for pixels in np.random.default_rng(0).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        images.append(file.getvalue())
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": images, **columns}), path)


def config(path: Path, **columns: str) -> SourceConfig:
    return SourceConfig.model_validate({"name": "parquet", "path": path, "image_size": SIZE, "columns": columns})


def read(path: Path, **columns: str) -> Dataset:
    return load(config(path, **columns), path.parent / "cache")


TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_empty_and_blank_text_is_no_class_and_no_client(tmp_path: Path, kind: pa.DataType) -> None:
    root = tmp_path / "d"
    labels, clients = ["sick", "", " \t", None, "well"], ["a", "b", "", None, " "]
    write(root / "train.parquet", label=pa.array(labels).cast(kind), hospital=pa.array(clients).cast(kind))
    write(root / "test.parquet", label=pa.array(["", "sick"]).cast(kind), hospital=pa.array(["a", "a"]).cast(kind))
    for _ in range(2):  # the second time from the cache
        data = read(root, client="hospital")
        assert data.train.class_names == ("sick", "well")
        assert data.train.labels.tolist() == [0, -1, -1, -1, 1]
        assert data.test.labels.tolist() == [-1, 0]
        assert data.train.group_names == ("a", "b")
        assert data.train.groups.tolist() == [0, 1, -1, -1, -1]
        assert data.notes == ("3 images have an empty label: unlabelled", "2 images have an empty client: nobody's")
    with pytest.raises(UserError, match="3 images lie in no client's folder or have no client"):  # as of null
        partition(Natural(), data.train.labels, 2, 0, data.train.groups)
    assert catalogued(config(root)).class_names == ("sick", "well")


def test_blank_labels_of_one_file_are_counted_once_and_null_is_no_blank(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", label=["x"] * 8 + ["", None])
    data = read(tmp_path / "all.parquet")
    assert data.notes[1:] == ("1 images have an empty label: unlabelled",)
    write(tmp_path / "numbers.parquet", label=[0] * 8 + [-1, None])
    assert len(read(tmp_path / "numbers.parquet").notes) == 1
