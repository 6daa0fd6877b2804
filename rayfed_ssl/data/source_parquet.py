"""Images in Parquet, as the Hugging Face ``datasets`` library writes them.

A row holds an encoded image, as a struct of ``bytes`` and ``path`` (or plain binary) named ``img`` or ``image``, and an
integer named ``label``, ``labels`` or ``fine_label``; a file without such a column, or with nulls in it, holds images
that nobody labelled (label -1). ``path`` is a folder with ``train*.parquet`` and
``test*.parquet`` (or ``validation*``, ``val*``), there or in its ``data/`` folder, in one or several parts; or a single
file, of which a fixed fifth per class (always the same one) becomes the test split.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.data.images import Listing, Payload, Source

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label")
TEST_NAMES = ("test", "validation", "val")
TEST_SHARE = 0.2


def parquet_source(path: Path, limits: dict[str, int | None], key: str) -> Source:
    """The source at ``path``. Raises UserError naming the file for missing parts, columns, and unreadable files."""
    single = path.is_file()
    parts = {"train": [path], "test": [path]} if single else _parts(path, key)
    files = tuple(dict.fromkeys(parts["train"] + parts["test"]))

    def listing(split: str) -> Listing:
        labels = {name: np.concatenate([_labels(file, key) for file in parts[name]]) for name in parts}
        class_names = _class_names(parts["train"][0], labels, key)
        chosen = np.arange(len(labels[split]))
        if single:
            chosen = stratified_halves(labels[split], TEST_SHARE)[split == "test"]
        chosen = chosen[: limits[split]]
        return Listing(labels[split][chosen], class_names, lambda: _rows(parts[split], chosen, key))

    return Source(files, listing)


def stratified_halves(labels: NDArray[np.int64], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers (rest, held out), each sorted: a share of every class, rounded, drawn the same way in every run."""
    draw = numpy_generator(0, "source", "test split")
    held_out = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = draw.permutation(np.flatnonzero(labels == label))
        held_out[rows[: round(share * len(rows))]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _parts(path: Path, key: str) -> dict[str, list[Path]]:
    def find(names: tuple[str, ...]) -> list[Path]:
        for folder in (path, path / "data"):
            for name in names:
                if found := sorted(folder.glob(f"{name}*.parquet")):
                    return found
        present = ", ".join(sorted(file.name for file in path.glob("*.parquet"))[:5]) or "no Parquet file"
        wanted = " or ".join(f"{name}*.parquet" for name in names)
        raise UserError(f"{key}.path: {path} lacks its {names[0]} split: wanted {wanted}, found {present}")

    return {"train": find(("train",)), "test": find(TEST_NAMES)}


@contextlib.contextmanager
def _readable(file: Path, key: str) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(file) as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{key}.path: {file} cannot be read as Parquet ({reason})") from error


def _image_column(schema: pa.Schema, file: Path, key: str) -> str:
    name = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    if name is None:
        wanted = ", ".join(IMAGE_COLUMNS)
        raise UserError(f"{key}.path: {file} has no image column ({wanted}); it has {', '.join(schema.names)}")
    kind = schema.field(name).type
    encoded = [field.type for field in kind if field.name == "bytes"] if pa.types.is_struct(kind) else [kind]
    if not any(pa.types.is_binary(one) or pa.types.is_large_binary(one) for one in encoded):
        raise UserError(
            f"{key}.path: column {name} of {file} is of type {kind}; an image is encoded bytes, alone or in a struct "
            "of bytes and path"
        )
    return name


def _label_column(schema: pa.Schema) -> str | None:
    return next((name for name in LABEL_COLUMNS if name in schema.names), None)


def _labels(file: Path, key: str) -> NDArray[np.int64]:
    with _readable(file, key) as opened:
        _image_column(opened.schema_arrow, file, key)
        name = _label_column(opened.schema_arrow)
        if name is None:
            return np.full(opened.metadata.num_rows, -1, np.int64)
        kind = opened.schema_arrow.field(name).type
        if pa.types.is_null(kind):
            return np.full(opened.metadata.num_rows, -1, np.int64)
        if not pa.types.is_integer(kind):
            raise UserError(f"{key}.path: column {name} of {file} is of type {kind}; labels are integers from 0")
        column = opened.read(columns=[name]).column(name).fill_null(-1)
        return np.asarray(column.to_numpy(), dtype=np.int64)


def _class_names(file: Path, labels: dict[str, NDArray[np.int64]], key: str) -> tuple[str, ...]:
    """The names in the schema's metadata (``class_names`` or Hugging Face's ClassLabel), else the numbers."""
    count = 1 + max(int(part.max(initial=-1)) for part in labels.values())
    with _readable(file, key) as opened:
        schema = opened.schema_arrow
    metadata: dict[bytes, bytes] = schema.metadata or {}
    try:
        names: Any = json.loads(metadata.get(b"class_names", b"null"))
        if names is None:
            features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
            names = features.get(_label_column(schema), {}).get("names")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{key}.path: the class names in the metadata of {file} cannot be read ({error})") from error
    if names is None:
        return tuple(str(number) for number in range(count))
    if count > len(names):
        raise UserError(f"{key}.path: {file} names {len(names)} classes but holds the label {count - 1}")
    return tuple(str(name) for name in names)


def _rows(files: list[Path], chosen: NDArray[np.int64], key: str) -> Iterator[tuple[str, Payload]]:
    """The images at the row numbers ``chosen`` (sorted, counted through all files), read a few hundred at a time."""
    start = 0
    for file in files:
        with _readable(file, key) as opened:
            name = _image_column(opened.schema_arrow, file, key)
            first = start
            for batch in opened.iter_batches(batch_size=512, columns=[name]):
                low, high = np.searchsorted(chosen, (start, start + len(batch)))
                rows = chosen[low:high]
                column = batch.column(name).take(pa.array(rows - start))
                if pa.types.is_struct(column.type):
                    column = column.field("bytes")
                for row, payload in zip(rows, column.to_pylist(), strict=True):
                    yield f"{file} row {row - first}", payload
                start += len(batch)
                if start > chosen.max(initial=-1):
                    return
