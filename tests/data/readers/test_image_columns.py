"""The image column of a Parquet file in each of Arrow's ways to hold bytes, and what is said of columns without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from tests.data.files import pictures, png

PIXELS = pictures(20, 8)
ENCODED = [png(one) for one in PIXELS]
BYTES = {
    "binary": pa.array(ENCODED),
    "large": pa.array(ENCODED, pa.large_binary()),
    "view": pa.array(ENCODED, pa.binary_view()),
    "dictionary": pa.array(ENCODED).dictionary_encode(),
}


def in_struct(images: Any) -> Any:
    return pa.StructArray.from_arrays([images, pa.array(["x.png"] * 20)], ["bytes", "path"])


VIEWS = in_struct(BYTES["view"])


def config(tmp_path: Path, images: Any) -> SourceConfig:
    path = tmp_path / "images.parquet"
    rows = 20 if images is VIEWS else 7  # pyarrow writes no part of a struct with a view in it
    pq.write_table(pa.table({"image": images, "label": [row % 2 for row in range(20)]}), path, row_group_size=rows)
    return SourceConfig(name="parquet", path=path, image_size=8)


@pytest.mark.parametrize("struct", [False, True])
@pytest.mark.parametrize("kind", BYTES)
def test_bytes_are_read_however_arrow_holds_them(tmp_path: Path, kind: str, struct: bool) -> None:
    images = BYTES[kind]
    if struct:
        images = VIEWS if kind == "view" else in_struct(images)
    chosen = config(tmp_path, images)
    found = load(chosen, tmp_path / "cache")
    named = zip(found.names["train"].to_pylist(), found.train.pixels, found.train.labels, strict=True)
    rows = {int(name.rpartition(" row ")[2]): (pixels, int(label)) for name, pixels, label in named}
    assert (len(rows), len(found.test)) == (16, 4)
    for row, (pixels, label) in rows.items():
        assert np.array_equal(pixels, PIXELS[row])
        assert label == row % 2
    assert [payload for _, payload in catalogued(chosen).read()] == ENCODED


NAMES = "where this names files: docs/python.md makes one Parquet file of a table and the images beside it"


@pytest.mark.parametrize(
    ("images", "advice"),
    [
        (["a.png"] * 20, NAMES),
        (pa.array(["a.png"] * 20).dictionary_encode(), NAMES),
        ([{"bytes": None, "path": "a.png"}] * 20, NAMES),
        ([[1, 2, 3]] * 20, "write arrays of pixels as PNG"),
        ([{"bytes": [1, 2, 3], "path": "a.png"}] * 20, "write arrays of pixels as PNG"),
        ([1] * 20, "an image is encoded bytes, alone or in a struct of bytes and path"),
    ],
)
def test_a_column_without_bytes_says_how_to_go_on(tmp_path: Path, images: Any, advice: str) -> None:
    with pytest.raises(UserError) as refused:
        load(config(tmp_path, images), tmp_path / "cache")
    said = str(refused.value)
    assert said.startswith("data.path: column image of ")
    assert said.endswith(advice)
    assert "\n" not in said
