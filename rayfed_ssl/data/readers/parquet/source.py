"""Images in Parquet, as the Hugging Face ``datasets`` library writes them.

A row holds an encoded image, as a struct of ``bytes`` and ``path`` (or plain binary) named ``img`` or ``image``, and a
label named ``label``, ``labels`` or ``fine_label``; a file without such a column, or with nulls in it, holds images
that nobody labelled (label -1). Labels are integers from 0, or text, whose sorted values are the classes. Text that is
empty or blank, in the label or the client column, counts as null, with a note. As pandas writes them, integers may be
floats with NaN for null, and labels booleans. Several labels per image and targets of a regression are not measured:
with ``data.columns.label: false`` no label is read. Where no training image has one, no test split is needed.
``data.columns`` names other columns, one that says which client holds the image (text or integers; the partition
``natural``), and one that says whom or what it shows (``group``), by which images are held out together. ``path`` is a
single file, or a folder with the files of ``train`` and ``test`` (or ``validation``, ``val``; ``split_names`` says
which they are), in one or several parts, there or in its ``data/`` folder or in its only folder that has them; folders
``train/`` and ``test/`` with Parquet files in them do as well. Of a single file, and of the parts of ``train`` where
there are none of a test split, a fixed fifth per class of all rows (always the same one) becomes the test split, while
all images without a label train. Other Parquet files, such as those of ``validation`` beside ``test``, are not used,
with a note;
``data.test_split: validation`` takes them for the test. Where there are no files of a test split, a column may say
which rows train and which test (``data.columns.split``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.images import Payload, Source
from rayfed_ssl.data.readers import one_hot, split_column
from rayfed_ssl.data.readers.column_values import (
    Empty,
    Unnamed,
    Values,
    encoded_images,
    is_text,
    label_texts,
    label_values,
    names_in,
    no_images,
    numbered,
    of_text_or_numbers,
    plain,
    text_values,
    whose_values,
)
from rayfed_ssl.data.readers.columns import LABEL_COLUMNS, Columns, column_named, unread_columns
from rayfed_ssl.data.readers.ownership import bare
from rayfed_ssl.data.readers.parquet.files import few_rows, other_tests, parts_of, readable, unused
from rayfed_ssl.data.readers.split_names import to_test_on
from rayfed_ssl.data.readers.split_rows import NAMED, NO_LABEL, Beside, Rows, RowSplits
from rayfed_ssl.data.readers.walking import FROM_TABLE

IMAGE_COLUMNS = ("img", "image")
# columns of files, as ``bare`` writes them
PATHS = {"path", "imagepath", "file", "filename", "filepath", "imagefile", "imagename"}


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a file, by their sorted numbers; None: all of them."""

    file: Path
    rows: NDArray[np.int64] | None = None

    def of(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """These rows of a column of the file."""
        return column if self.rows is None else column.take(pa.array(self.rows))

    def count(self, all_rows: int) -> int:
        """How many rows these are, in a file of ``all_rows``."""
        return all_rows if self.rows is None else len(self.rows)


def parquet_source(
    path: Path,
    limits: dict[str, int | None],
    key: str,
    columns: Columns | None = None,
    shown: str | None = None,
    test_split: str | None = None,
) -> Source:
    """The source at ``path``, which messages call ``shown``. Its check raises UserError where no test image can be held
    out, and for labels of the test split that no training image has.

    Args:
        test_split: the name of the split that is the test; None: ``test``, else ``validation`` or ``val``.
    Raises:
        UserError: no training images, missing columns, unreadable files, no files of ``test_split``.
    """
    columns, shown, single = columns or Columns(), shown or printable(path), path.is_file()
    files = parts_of(path, key, shown, None if columns.split is not None else test_split)
    others: list[Note | str] = (
        [] if single else [*unused(path, files, key, _other_tests(path, files, columns, key, shown))]
    )
    parts = {split: [Part(file) for file in found] for split, found in files.items()}
    if columns.split is not None:
        parts, told = _split(files, columns.split, test_split, key)
        others += told
    if undivided := not parts["test"]:
        parts["test"] = parts["train"]
    number = "one Parquet file" if len(files["train"]) == 1 else f"{len(files['train'])} Parquet files"
    splits = RowSplits(
        lambda: _read_beside(parts, columns, key),
        lambda split, chosen: _rows(parts[split], chosen, columns, key),
        number if undivided else None,
        limits,
        key,
    )
    if key == "data" and files["train"][0].is_file():
        others += _unread(files["train"][0], columns, undivided, key)
    return Source(
        tuple(dict.fromkeys(files["train"] + files["test"])),
        splits.listing,
        notes=others,
        check=lambda: splits.check(shown, printable(parts["test"][0].file)),
        alone=splits.alone if undivided and not single else None,
    )


def _split(
    files: Mapping[str, list[Path]], wanted: str, test_split: str | None, key: str
) -> tuple[dict[str, list[Part]], list[str]]:
    """The rows of each split that a column of the training files says, and lines on rows that are not used. Raises
    UserError.
    """
    if files["test"]:
        raise UserError(
            f"{key}.columns.split: found {printable(repr(wanted))}; {printable(files['test'][0])} has the test images, "
            "allowed: null"
        )
    cells, ends = list[str](), [0]
    for file in files["train"]:
        cells += read_split_cells(file, wanted, key)
        ends.append(len(cells))
    more = f" and {len(files['train']) - 1} more" if len(files["train"]) > 1 else ""
    shown = f"{printable(files['train'][0])}{more}"
    rows, notes = split_column.rows_of_splits(cells, wanted, shown, test_split, key)
    parts = dict[str, list[Part]]()
    for split in ("train", "test"):
        mine = np.array(rows.get(split, ()), np.int64)
        own = [mine[(mine >= low) & (mine < high)] - low for low, high in pairwise(ends)]
        parts[split] = [Part(file, part) for file, part in zip(files["train"], own, strict=True) if len(part)]
    return parts, notes


def read_split_cells(file: Path, wanted: str, key: str) -> list[str]:
    """The cells of the column of splits, "" where one is null or blank. Raises UserError."""
    with readable(file, key) as opened:
        name = column_named(opened.schema_arrow, wanted, (), "split", file, key)
        column = plain(opened.read(columns=[name]).column(name))
    if not is_text(column.type):
        raise UserError(
            f"{key}.columns.split: column {printable(name)} of {printable(file)} is of type {printable(column.type)}; "
            "splits are text: train, test or val"
        )
    return [cell or "" for cell in text_values(column)[0].to_pylist()]


def _unread(file: Path, columns: Columns, single: bool, key: str) -> list[Note | str]:
    """:func:`unread_columns` of a file."""
    with readable(file, key) as opened:
        names = list(dict.fromkeys(opened.schema_arrow.names))
        small = {field.name for field in opened.schema_arrow if of_text_or_numbers(field.type)}  # none of images

        def values(name: str) -> Iterator[pa.Array]:
            if name in small:
                yield from (b.column(0) for b in opened.iter_batches(columns=[name]) if b.num_columns == 1)

        return unread_columns(names, columns, single, key, IMAGE_COLUMNS, LABEL_COLUMNS, values)


def _other_tests(path: Path, parts: dict[str, list[Path]], columns: Columns, key: str, shown: str) -> str:
    """Which other splits with labels could be the test, and by which key; "" where there are none, and of public
    images, of which those that train are read.
    """
    if key != "data":
        return ""
    if not parts["test"]:
        return f"; {key}.test_split=NAME tests on the images of NAME-*.parquet"
    said = ""
    for name, files in other_tests(path, parts, key, shown).items():
        try:
            found = [read_labels(file, columns, key) for file in files]
            known = sum(int((numbered(labels, label_texts(found), key) >= 0).sum()) for labels in found)
        except UserError:
            continue  # nobody asked for it
        if known:
            said += to_test_on(name, f"its {known} labelled images", key)
    return said


# -- which columns -----------------------------------------------------------------------------------------------------


def image_column(schema: pa.Schema, columns: Columns, file: Path, key: str) -> str:
    name = column_named(schema, columns.image, IMAGE_COLUMNS, "image", file, key)
    if not name:
        wanted, has = ", ".join(IMAGE_COLUMNS), printable(", ".join(schema.names)) or "no columns"
        some = next((field.name for field in schema if not no_images(field.type)), "")
        paths = next((field.name for field in schema if bare(field.name) in PATHS and is_text(field.type)), "")
        hint = f"; where {printable(paths)} names files: {FROM_TABLE}" if paths and not some else ""
        problem = f"{key}.path: {printable(file)} has no image column ({wanted}); it has {has}{hint}: "
        raise Unnamed.of(problem, "name one", f"name one in {key}.columns.image", {"image": some or "COLUMN"})
    if problem := no_images(schema.field(name).type):
        raise UserError(f"{key}.path: column {printable(name)} of {printable(file)} is {problem}")
    return name


def _read_beside(parts: Mapping[str, list[Part]], columns: Columns, key: str) -> Beside:
    """What lies beside the images of both splits; sorted text of both together are the classes."""
    found = {
        name: [
            (*_read_labels(part, columns, key), _read_names(part, columns, key, part in parts["train"]))
            for part in mine
        ]
        for name, mine in parts.items()
    }
    texts = label_texts([labels for rows in found.values() for labels, *_ in rows])
    splits, empty = {}, dict[tuple[Part, str], Empty]()
    for name, rows in found.items():
        labels = [np.empty(0, np.int64), *(numbered(labels, texts, key) for labels, *_ in rows)]
        beside = {what: [value for *_, named in rows for value in named[what][0]] for what in NAMED}
        for part, (_, no_labels, named) in zip(parts[name], rows, strict=True):
            empty[part, NO_LABEL] = no_labels
            empty |= {(part, f"{what}: {meaning}"): named[what][1] for what, meaning in NAMED.items()}
        given = {what: values for what, values in beside.items() if getattr(columns, what) is not None}
        splits[name] = Rows(np.concatenate(labels), given.get("client"), given.get("group"))
    meant: dict[str, Empty] = {}
    for (_, meaning), cells in empty.items():
        meant[meaning] = meant.get(meaning, Empty()) + cells
    names = None if texts else _class_names(parts["train"][0].file, splits, columns, key)
    once = {part: labels for name, rows in found.items() for part, (labels, *_) in zip(parts[name], rows, strict=True)}
    several = one_hot.count_several(once.values(), columns.label) if isinstance(columns.label, tuple) else 0
    return Beside(splits, texts, names, meant, several)


def read_labels(file: Path, columns: Columns, key: str) -> pa.Array:
    """A file's labels: int64, -1 where unknown, or text, null where unknown.

    Raises:
        UserError: a file that cannot be read, a column that is missing or of a type that cannot be used.
    """
    return _read_labels(Part(file), columns, key)[0]


def _read_labels(part: Part, columns: Columns, key: str) -> tuple[pa.Array, Empty]:
    """The labels of a file's rows, and the cells without one."""
    file = part.file
    with readable(file, key) as opened:
        schema = opened.schema_arrow
        image_column(schema, columns, file, key)
        if isinstance(columns.label, tuple):
            names = [column_named(schema, name, (), "label", file, key) for name in columns.label]
            read = opened.read(columns=names)
            labels = one_hot.labels_of(
                {name: plain(part.of(read.column(name))) for name in names}, printable(file), key
            )
            return labels, Empty(labels.null_count, labels.null_count)
        name = column_named(schema, columns.label, LABEL_COLUMNS, "label", file, key)
        if not name or pa.types.is_null(schema.field(name).type):
            rows = part.count(opened.metadata.num_rows)
            return pa.array(np.full(rows, -1, np.int64)), Empty(all=rows if name else 0)
        column = plain(part.of(opened.read(columns=[name]).column(name)))
    return label_values(column, f"column {printable(name)} of {printable(file)}", key)


def _read_names(part: Part, columns: Columns, key: str, trains: bool) -> dict[str, tuple[Values, Empty]]:
    """The values of the client and the group column, and their cells without one; nothing of a column that is not
    named. Who test images show may be unknown: nobody is held out of them.
    """
    return {
        what: _read_named(part, getattr(columns, what), what, key, what == "group" and not trains) for what in NAMED
    }


def _read_named(part: Part, wanted: str | None, what: str, key: str, optional: bool) -> tuple[Values, Empty]:
    if wanted is None:
        return [], Empty()
    file = part.file
    with readable(file, key) as opened:
        if optional and wanted not in opened.schema_arrow.names:
            return [None] * part.count(opened.metadata.num_rows), Empty()
        name = column_named(opened.schema_arrow, wanted, (), what, file, key)
        column = plain(part.of(opened.read(columns=[name]).column(name)))
    return whose_values(column, what, f"column {printable(name)} of {printable(file)}", key)


def _class_names(file: Path, splits: dict[str, Rows], columns: Columns, key: str) -> tuple[str, ...] | None:
    """The names that the file gives its classes, or None. Raises UserError where it names too few."""
    count = 1 + max(int(split.labels.max(initial=-1)) for split in splits.values())
    names = class_names(file, columns, key)
    if names is not None and count > len(names):
        raise UserError(f"{key}.path: {printable(file)} names {len(names)} classes but holds the label {count - 1}")
    return names


def class_names(file: Path, columns: Columns, key: str) -> tuple[str, ...] | None:
    """The names in the schema's metadata (``class_names`` or Hugging Face's ClassLabel), or None. Raises UserError."""
    if columns.label is False or isinstance(columns.label, tuple):
        return None
    with readable(file, key) as opened:
        schema = opened.schema_arrow
    label = column_named(schema, columns.label, LABEL_COLUMNS, "label", file, key)
    try:
        names = names_in(schema.metadata or {}, label)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = printable(error)
        raise UserError(
            f"{key}.path: the class names in the metadata of {printable(file)} cannot be read ({reason})"
        ) from error
    return None if names is None else tuple(printable(name) for name in names)


# -- the images --------------------------------------------------------------------------------------------------------


def _rows(parts: list[Part], chosen: NDArray[np.int64], columns: Columns, key: str) -> Iterator[tuple[str, Payload]]:
    """The images at the row numbers ``chosen`` (sorted, counted through all parts), read a few at a time."""
    first = 0
    for part in parts:
        file = part.file
        with readable(file, key) as opened:
            name = image_column(opened.schema_arrow, columns, file, key)
            encoded = encoded_images(opened.metadata, name, f"column {printable(name)} of {printable(file)}", key)
            count = part.count(opened.metadata.num_rows)
            mine = chosen[slice(*np.searchsorted(chosen, (first, first + count)))] - first
            wanted = mine if part.rows is None else part.rows[mine]
            start = 0
            for batch in few_rows(opened, [name]) if len(wanted) else ():
                rows = wanted[slice(*np.searchsorted(wanted, (start, start + len(batch))))]
                images = encoded(batch.column(name)).take(pa.array(rows - start)) if len(rows) else pa.nulls(0)
                for row, payload in zip(rows, images.to_pylist(), strict=True):
                    yield f"{file} row {row}", payload
                start += len(batch)
                if start > wanted[-1]:
                    break
        first += count
