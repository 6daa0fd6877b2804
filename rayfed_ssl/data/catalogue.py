"""Lists every image of a data set once, in the data set's order and with an id. Tables of images are made from it.

Unlike ``sources``, nothing is decoded, kept in a cache, or refused because a test split or labels are missing. Ids are

- for folders: the file's path below the folder;
- for Parquet rows: the column ``id`` where there is one, else the ``path`` within the image, else ``FILE:ROW``;
- for tables: the file's path below the table's folder, or the column that ``--id`` names;
- for arrays: the file, the array's name where a file holds several, and the row;
- for every other source: the name that the source gives an image, such as ``digits 17``.

Shapes: N images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import as_utf8, composed, nearest, printable
from rayfed_ssl.data.images import Payload
from rayfed_ssl.data.pixels.store import default_cache
from rayfed_ssl.data.readers.arrays.names import WHOLE
from rayfed_ssl.data.readers.arrays.source import open_arrays, read_beside, split_cells
from rayfed_ssl.data.readers.column_values import label_texts, numbered
from rayfed_ssl.data.readers.columns import Columns
from rayfed_ssl.data.readers.folders.images import every_image
from rayfed_ssl.data.readers.parquet.files import few_rows, homes_of, readable
from rayfed_ssl.data.readers.parquet.hub import hub_folder
from rayfed_ssl.data.readers.parquet.source import class_names, image_column, read_labels, read_split_cells
from rayfed_ssl.data.readers.split_column import splits_of
from rayfed_ssl.data.readers.split_names import split_of_file
from rayfed_ssl.data.readers.tables.beside import read_beside as read_cells
from rayfed_ssl.data.readers.tables.columns import named_column
from rayfed_ssl.data.readers.tables.source import open_tables
from rayfed_ssl.data.sources import SOURCES, SourceConfig, existing

ID = "id"


@dataclass(frozen=True)
class Catalogue:
    """``labels`` (N,) int64, -1 where unknown; ``class_names[label]``, None where only numbers are known.

    ``splits`` are (name, number of images) in order, empty if the data set has no splits. If a column names the splits
    (``data.columns.split``), ``said`` holds the split of each image, None for an image that belongs to none. ``read``
    yields N pairs of id and encoded image. ``notes`` are lines on images and files that are not listed.
    """

    labels: NDArray[np.int64]
    class_names: tuple[str, ...] | None
    splits: tuple[tuple[str, int], ...]
    read: Callable[[], Iterator[tuple[str, Payload]]]
    notes: tuple[str, ...] = ()
    said: Sequence[str | None] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> bool:
        return bool((self.labels >= 0).any())

    @property
    def divided(self) -> bool:
        """Whether there are splits."""
        return bool(self.splits or self.said)

    def split_of(self, rows: NDArray[np.int64]) -> pa.DictionaryArray:
        """(n,) the split of each of these images, null for an image that belongs to none."""
        if self.said:
            return pa.array([self.said[row] for row in rows], pa.string()).dictionary_encode()
        ends = np.cumsum([count for _, count in self.splits])
        which = pa.array(np.searchsorted(ends, rows, side="right").astype(np.int32))
        return pa.DictionaryArray.from_arrays(which, [name for name, _ in self.splits])


def catalogued(config: SourceConfig, key: str = "data", id_column: str | None = None) -> Catalogue:
    """The images of a configuration block. Only labels and the names of files are read.

    Args:
        id_column: the Parquet column of ids (text or integers); None: ``id``, where there is one.
    Raises:
        UserError: no images, a limit, an ``id_column`` that the source does not have, whatever is wrong with the files.
    """
    for name, limit in config.limits.items():
        if limit is not None:
            which = "limit" if name == "train" else "test_limit"
            raise UserError(f"{key}.{which}: found {limit}; every image is taken, allowed: null")
    if config.name == "parquet":
        path = existing(config, key)
        return of_parquet(_parquet_files(path, key, printable(path)), config.columns, key, id_column)
    if config.name == "hub" and config.path is not None:
        _, folder = hub_folder(config.path.as_posix(), config.revision, default_cache(), key)
        return of_parquet(_parquet_files(folder, key, printable(config.path)), config.columns, key, id_column)
    if config.name == "table":
        return _of_table(existing(config, key), config, key, id_column)
    if id_column is not None:
        raise UserError(f"--id: found {printable(id_column)!r}; {config.name} has no columns, allowed: nothing")
    if config.name == "arrays":
        return _of_arrays(existing(config, key), config, key)
    if config.name == "imagefolder":
        return _of_folder(existing(config, key), config, key)
    return _of_source(config, key)


def _of_source(config: SourceConfig, key: str) -> Catalogue:
    source = SOURCES[config.name].open(config, default_cache(), key)
    listings = {split: source.listing(split) for split in ("train", "test")}

    def read() -> Iterator[tuple[str, Payload]]:
        for listing in listings.values():
            for name, payload in listing.read():
                yield as_utf8(name), payload

    labels = np.concatenate([listing.labels for listing in listings.values()])
    splits = tuple((split, len(listing.labels)) for split, listing in listings.items() if len(listing.labels))
    return Catalogue(labels, listings["train"].class_names, splits, read)


def _of_folder(path: Path, config: SourceConfig, key: str) -> Catalogue:
    if not path.is_dir():
        raise UserError(f"{key}.path: {printable(path)} is a file; {key}.name=imagefolder needs a folder of images")
    rows, notes = every_image(path, config.layout, key)
    names = tuple(sorted({label for _, _, label in rows if label is not None}))
    number = {name: position for position, name in enumerate(names)}
    labels = np.array([-1 if label is None else number[label] for _, _, label in rows], np.int64)
    row_splits = [split for _, split, _ in rows]
    splits = tuple((split, row_splits.count(split)) for split in dict.fromkeys(row_splits) if split is not None)

    def read() -> Iterator[tuple[str, Payload]]:
        for file, _, _ in rows:
            if os.path.exists(file) and not os.path.isfile(file):
                raise UserError(f"{key}.path: {printable(file)} is no regular file (a FIFO, socket or device)")
            yield as_utf8(file.relative_to(path).as_posix()), file

    return Catalogue(labels, tuple(printable(name) for name in names) or None, splits, read, tuple(notes))


def _of_arrays(path: Path, config: SourceConfig, key: str) -> Catalogue:
    columns = config.columns.model_copy(update={"client": None, "group": None})  # a catalogue has neither
    arrays = open_arrays(path, columns, key, config.channels, config.bands)
    beside = read_beside(arrays, [*arrays.images], columns, key)
    splits = tuple((split, len(images)) for split, images in arrays.images.items() if split != WHOLE)
    said = [] if columns.split is None else splits_of(split_cells(arrays, key))

    def read() -> Iterator[tuple[str, Payload]]:
        for images in arrays.images.values():
            for name, payload in images.images(np.arange(len(images)), key):
                yield as_utf8(name.removeprefix(f"{path.parent if path.is_file() else path}{os.sep}")), payload

    labels = np.concatenate([rows.labels for rows in beside.splits.values()])
    return Catalogue(labels, tuple(map(composed, beside.texts)) or None, splits, read, said=said)


def _of_table(path: Path, config: SourceConfig, key: str, id_column: str | None) -> Catalogue:
    split = config.columns.split
    columns = config.columns.model_copy(update={"client": None, "group": None, "split": None})  # every row is wanted
    tables, notes = open_tables(path, key, columns, config.test_split if split is None else None)
    beside = read_cells({split: named.table for split, named in tables.items()}, columns, key)
    for table in (named.table for named in tables.values()):
        if id_column is not None and table.names.count(id_column) != 1:
            has = printable(", ".join(table.names))
            near = "" if id_column in table.names else nearest(id_column, table.names, 1)
            raise UserError(f"--id: found {printable(id_column)!r}; {table.shown} has the columns {has}{near}")
    folder = path if path.is_dir() else path.parent

    def images() -> Iterator[tuple[str, Payload]]:
        for named in tables.values():
            ids = [""] * len(named.files) if id_column is None else named.table.cells(id_column)
            for image_id, (name, payload) in zip(ids, named.images(np.arange(len(named.files))), strict=True):
                yield as_utf8(image_id or name.removeprefix(f"{folder}{os.sep}")), payload

    labels = np.concatenate([rows.labels for rows in beside.splits.values()])
    splits = tuple((name, len(named.files)) for name, named in tables.items()) if len(tables) > 1 else ()
    row_splits: list[str | None] = []
    if split is not None:
        for table in (named.table for named in tables.values()):
            row_splits += splits_of(table.cells(named_column(table, split, (), "split", key)))
    return Catalogue(labels, tuple(map(composed, beside.texts)) or None, splits, images, texts(notes), row_splits)


# -- Parquet -----------------------------------------------------------------------------------------------------------


def _parquet_files(path: Path, key: str, shown: str) -> list[tuple[str, Path]]:
    """Pairs (name that ids use, file), sorted by path. Raises UserError if there is no file, or if there are several
    data sets.
    """
    if path.is_file():
        return [(path.name, path)]
    homes_of(path, key, shown)
    files = sorted(file for file in path.rglob("*.parquet") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise UserError(f"{key}.path: found no Parquet files below {shown}")
    return [(file.relative_to(path).as_posix(), file) for file in files]


def of_parquet(
    files: Sequence[tuple[str, Path]], columns: Columns, key: str = "data", id_column: str | None = None
) -> Catalogue:
    """The rows of Parquet files, which are given as pairs of the name that ids use and the file's path.

    If every file, or its folder, is named after a split (``train-00000.parquet``, ``test/x.parquet``), the names say
    the splits, and the training images come first. A column of splits takes precedence over such names. Labels are
    integers, or text, whose sorted values become the classes.

    Raises:
        UserError: a file that cannot be read, a column that is missing or of a type that cannot be used.
    """
    file_splits = [split_of_file(PurePath(shown)) for shown, _ in files]
    if all_named := None not in file_splits:
        order = sorted(
            range(len(files)), key=lambda position: (file_splits[position] != "train", file_splits[position], position)
        )
        files = [files[position] for position in order]
    file_labels = [read_labels(file, columns, key) for _, file in files]
    texts = label_texts(file_labels)
    labels = np.concatenate([numbered(labels_of_file, texts, key) for labels_of_file in file_labels])
    names = tuple(printable(text) for text in texts) if texts else class_names(files[0][1], columns, key)
    names = None if names is None else tuple(map(composed, names))
    if names is not None and labels.max(initial=-1) >= len(names):
        raise UserError(f"{key}.path: {printable(files[0][1])} names {len(names)} classes, found label {labels.max()}")
    splits: dict[str, int] = {}
    for (shown, _), labels_of_file in zip(files, file_labels, strict=True):
        split = split_of_file(PurePath(shown))
        if all_named and split is not None:
            splits[split] = splits.get(split, 0) + len(labels_of_file)
    for _, file in files:
        with readable(file, key) as opened:
            _id_column(opened.schema_arrow, file, id_column)
    row_splits: list[str | None] = []
    if columns.split is not None:
        for _, file in files:
            row_splits += splits_of(read_split_cells(file, columns.split, key))
    return Catalogue(
        labels, names, tuple(splits.items()), lambda: _rows(files, columns, key, id_column), said=row_splits
    )


def _id_column(schema: pa.Schema, file: Path, wanted: str | None) -> str:
    """The name of the column of ids, which is ``wanted`` or ``id``; "" if there is none. Raises UserError if ``wanted``
    is not there, or holds neither text nor integers.
    """
    name = wanted or (ID if ID in schema.names else "")
    if wanted is not None and wanted not in schema.names:
        has = printable(", ".join(schema.names))
        near = nearest(wanted, schema.names, 1)
        raise UserError(f"--id: found {printable(wanted)!r}; {printable(file)} has the columns {has}{near}")
    if name:
        kind = schema.field(name).type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not text and not pa.types.is_integer(kind):
            if wanted is None:
                return ""
            raise UserError(
                f"--id: found {printable(wanted)!r} of type {printable(kind)} in {printable(file)}; allowed: text or "
                "integers"
            )
    return name


def _rows(
    files: Sequence[tuple[str, Path]], columns: Columns, key: str, id_column: str | None
) -> Iterator[tuple[str, Payload]]:
    for shown, file in files:
        with readable(file, key) as opened:
            image = image_column(opened.schema_arrow, columns, file, key)
            ids = _id_column(opened.schema_arrow, file, id_column)
            column_names = [image, *([ids] if ids else [])]
            row = 0
            for batch in few_rows(opened, column_names):
                for payload, image_id in zip(*_payloads_and_ids(batch, image, ids), strict=True):
                    yield as_utf8(f"{shown}:{row}" if image_id is None else str(image_id)), payload
                    row += 1


def _payloads_and_ids(
    batch: pa.RecordBatch, image: str, id_name: str
) -> tuple[list[bytes | None], list[str | int | None]]:
    """The encoded image of each row, and its id: from the column ``id_name``, or, if that is "", the path within the
    image; None for a row without.
    """
    column, paths = batch.column(image), pa.nulls(len(batch))
    if pa.types.is_struct(column.type):
        if "path" in [field.name for field in column.type]:
            paths = pc.struct_field(column, "path")
        column = pc.struct_field(column, "bytes")
    ids = batch.column(id_name).to_pylist() if id_name else [path or None for path in paths.to_pylist()]
    return column.to_pylist(), ids
