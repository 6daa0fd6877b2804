"""Images in Parquet, as the Hugging Face ``datasets`` library writes them.

A row holds an encoded image, as a struct of ``bytes`` and ``path`` (or plain binary) named ``img`` or ``image``, and a
label named ``label``, ``labels`` or ``fine_label``. Without such a column all images are unlabelled (label -1), and so
are those with null in it. Labels are integers from 0, or text, whose sorted values are the classes. Empty or blank text
in the label or the client column counts as null, with a note. Integers may be floats with NaN for null, as pandas
writes them, and labels may be booleans. Several labels per image and targets of a regression are not measured: with
``data.columns.label: false`` no label is read. If no training image has a label, no test split is needed.
``data.columns`` names other columns: one that says which client holds the image (text or integers; the partition
``natural``), and one that says whom or what it shows (``group``), by which images are held out together.

``path`` is a single file, or a folder with the files of ``train`` and ``test`` (or ``validation``, ``val``;
``split_names`` recognises them), in one or several parts. They are in the folder, in its ``data/``, in its only folder
that has such files, or in folders ``train/`` and ``test/``. If there is only one file, or only parts of ``train``, a
fixed fifth per class of all rows (always the same one) becomes the test split, while all images without a label train;
or a column says which rows train and which test (``data.columns.split``). Other Parquet files, such as those of
``validation`` beside ``test``, are not used, with a note; ``data.test_split: validation`` tests on them.
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
    text_values,
    whose_values,
)
from rayfed_ssl.data.readers.columns import LABEL_COLUMNS, Columns, column_named, unread_columns
from rayfed_ssl.data.readers.ownership import bare
from rayfed_ssl.data.readers.parquet.files import few_rows, other_tests, parts_of, readable, sound_column, unused
from rayfed_ssl.data.readers.split_names import to_test_on
from rayfed_ssl.data.readers.split_rows import NAMED, NO_LABEL, Beside, Rows, RowSplits
from rayfed_ssl.data.readers.walking import FROM_TABLE

IMAGE_COLUMNS = ("img", "image")
# names of columns of paths, as ``bare`` writes them
PATHS = {"path", "imagepath", "file", "filename", "filepath", "imagefile", "imagename"}


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of a file, by their numbers, which ascend; None: all of them."""

    file: Path
    rows: NDArray[np.int64] | None = None

    def of(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """These rows of a column of the file."""
        return column if self.rows is None else column.take(pa.array(self.rows))

    def count(self, all_rows: int) -> int:
        """How many rows these are, in a file that has ``all_rows``."""
        return all_rows if self.rows is None else len(self.rows)


def parquet_source(
    path: Path,
    limits: dict[str, int | None],
    key: str,
    columns: Columns | None = None,
    shown: str | None = None,
    test_split: str | None = None,
) -> Source:
    """The source at ``path``, which messages call ``shown``. Its check raises UserError if no test image can be held
    out, and for labels of the test split that no training image has.

    Args:
        test_split: the name of the split that is tested on; None: ``test``, else ``validation`` or ``val``.
    Raises:
        UserError: there are no training images, columns are missing, files cannot be read, or there are none of
            ``test_split``.
    """
    columns, shown, single = columns or Columns(), shown or printable(path), path.is_file()
    files = parts_of(path, key, shown, None if columns.split is not None else test_split)
    notes: list[Note | str] = []
    if not single:
        notes += unused(path, files, key, _other_tests(path, files, columns, key, shown))
    parts = {split: [Part(file) for file in split_files] for split, split_files in files.items()}
    if columns.split is not None:
        parts, split_notes = _split(files, columns.split, test_split, key)
        notes += split_notes
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
        notes += _unread(files["train"][0], columns, undivided, key)
    return Source(
        tuple(dict.fromkeys(files["train"] + files["test"])),
        splits.listing,
        notes=notes,
        check=lambda: splits.check(shown, printable(parts["test"][0].file)),
        alone=splits.alone if undivided and not single else None,
    )


def _split(
    files: Mapping[str, list[Path]], wanted: str, test_split: str | None, key: str
) -> tuple[dict[str, list[Part]], list[str]]:
    """The rows of each split, which the column ``wanted`` of the training files says, and lines on rows that are not
    used. Raises UserError if there are files of a test split, or if the column does not name splits.
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
        numbers = np.array(rows.get(split, ()), np.int64)
        by_file = [numbers[(numbers >= low) & (numbers < high)] - low for low, high in pairwise(ends)]
        parts[split] = [Part(file, own) for file, own in zip(files["train"], by_file, strict=True) if len(own)]
    return parts, notes


def read_split_cells(file: Path, wanted: str, key: str) -> list[str]:
    """The cells of the column of splits, "" for one that is null or blank. Raises UserError unless it is text."""
    with readable(file, key) as opened:
        name = column_named(opened.schema_arrow, wanted, (), "split", file, key)
        column = sound_column(opened, name)
    if not is_text(column.type):
        raise UserError(
            f"{key}.columns.split: column {printable(name)} of {printable(file)} is of type {printable(column.type)}; "
            "splits are text: train, test or val"
        )
    return [cell or "" for cell in text_values(column)[0].to_pylist()]


def _unread(file: Path, columns: Columns, single: bool, key: str) -> list[Note | str]:
    """The lines of :func:`unread_columns` on a file's columns."""
    with readable(file, key) as opened:
        names = list(dict.fromkeys(opened.schema_arrow.names))
        small = {field.name for field in opened.schema_arrow if of_text_or_numbers(field.type)}  # images are never read

        def values(name: str) -> Iterator[pa.Array]:
            if name in small:
                yield from (b.column(0) for b in opened.iter_batches(columns=[name]) if b.num_columns == 1)

        return unread_columns(names, columns, single, key, IMAGE_COLUMNS, LABEL_COLUMNS, values)


def _other_tests(path: Path, parts: dict[str, list[Path]], columns: Columns, key: str, shown: str) -> str:
    """The end of a line: which other splits with labels could be tested on, and by which key; "" if there are none, and
    for public images, none of which are tested on.
    """
    if key != "data":
        return ""
    if not parts["test"]:
        return f"; {key}.test_split=NAME tests on the images of NAME-*.parquet"
    hints = ""
    for name, files in other_tests(path, parts, key, shown).items():
        try:
            file_labels = [read_labels(file, columns, key) for file in files]
            known = sum(int((numbered(labels, label_texts(file_labels), key) >= 0).sum()) for labels in file_labels)
        except UserError:
            continue  # it is only read for a hint
        if known:
            hints += to_test_on(name, f"its {known} labelled images", key)
    return hints


# -- which columns -----------------------------------------------------------------------------------------------------


def image_column(schema: pa.Schema, columns: Columns, file: Path, key: str) -> str:
    """The name of the column of images. Raises UserError if there is none, or if it does not hold encoded images."""
    name = column_named(schema, columns.image, IMAGE_COLUMNS, "image", file, key)
    if not name:
        wanted, has = ", ".join(IMAGE_COLUMNS), printable(", ".join(schema.names)) or "no columns"
        some = next((field.name for field in schema if not no_images(field.type)), "")
        paths = next((field.name for field in schema if bare(field.name) in PATHS and is_text(field.type)), "")
        hint = f"; where {printable(paths)} names files: {FROM_TABLE}" if paths and not some else ""
        problem = f"{key}.path: {printable(file)} has no image column ({wanted}); it has {has}{hint}: "
        say = f", such as {printable(some)}" if some else ""
        raise Unnamed.of(problem, "name one", f"name one in {key}.columns.image{say}", {"image": some or "COLUMN"})
    if problem := no_images(schema.field(name).type):
        raise UserError(f"{key}.path: column {printable(name)} of {printable(file)} is {problem}")
    return name


def _read_beside(parts: Mapping[str, list[Part]], columns: Columns, key: str) -> Beside:
    """The labels, clients and groups of both splits. If labels are text, the sorted labels of both are the classes."""
    read = {
        part: (*_read_labels(part, columns, key), _read_names(part, columns, key, part in parts["train"]))
        for part in dict.fromkeys((*parts["train"], *parts["test"]))  # both are the same parts without a test split
    }
    texts = label_texts([labels for labels, *_ in read.values()])
    splits: dict[str, Rows] = {}
    for split, split_parts in parts.items():
        rows = [read[part] for part in split_parts]
        labels = [np.empty(0, np.int64), *(numbered(labels, texts, key) for labels, *_ in rows)]
        values = {what: [value for *_, named in rows for value in named[what][0]] for what in NAMED}
        given = {what: values[what] for what in NAMED if getattr(columns, what) is not None}
        splits[split] = Rows(np.concatenate(labels), given.get("client"), given.get("group"))
    empty: dict[str, Empty] = {}
    for _, unlabelled, named in read.values():
        cells = {NO_LABEL: unlabelled} | {f"{what}: {meaning}": named[what][1] for what, meaning in NAMED.items()}
        for meaning, count in cells.items():
            empty[meaning] = empty.get(meaning, Empty()) + count
    names = None if texts else _class_names(parts["train"][0].file, splits, columns, key)
    several = 0
    if isinstance(columns.label, tuple):
        several = one_hot.count_several([labels for labels, *_ in read.values()], columns.label)
    return Beside(splits, texts, names, empty, several)


def read_labels(file: Path, columns: Columns, key: str) -> pa.Array:
    """A file's labels: int64, -1 if unknown, or text, null if unknown.

    Raises:
        UserError: the file cannot be read, or a column is missing or has a type that cannot be used.
    """
    return _read_labels(Part(file), columns, key)[0]


def _read_labels(part: Part, columns: Columns, key: str) -> tuple[pa.Array, Empty]:
    """The labels of the rows, and how many cells have none."""
    file = part.file
    with readable(file, key) as opened:
        schema = opened.schema_arrow
        image_column(schema, columns, file, key)
        if isinstance(columns.label, tuple):
            names = [column_named(schema, name, (), "label", file, key) for name in columns.label]
            cells = {name: part.of(sound_column(opened, name)) for name in names}
            labels = one_hot.labels_of(cells, printable(file), key)
            return labels, Empty(labels.null_count, labels.null_count)
        name = column_named(schema, columns.label, LABEL_COLUMNS, "label", file, key)
        if not name or pa.types.is_null(schema.field(name).type):
            rows = part.count(opened.metadata.num_rows)
            return pa.array(np.full(rows, -1, np.int64)), Empty(all=rows if name else 0)
        column = part.of(sound_column(opened, name))
    return label_values(column, f"column {printable(name)} of {printable(file)}", key)


def _read_names(part: Part, columns: Columns, key: str, trains: bool) -> dict[str, tuple[Values, Empty]]:
    """The values of the client and the group column, and how many cells have none; both empty if no key names the
    column. The group column may be missing if the part does not train, as nothing is held out of it.
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
        column = part.of(sound_column(opened, name))
    return whose_values(column, what, f"column {printable(name)} of {printable(file)}", key)


def _class_names(file: Path, splits: dict[str, Rows], columns: Columns, key: str) -> tuple[str, ...] | None:
    """The names that the file gives its classes, or None. Raises UserError if it names too few."""
    count = 1 + max(int(split.labels.max(initial=-1)) for split in splits.values())
    names = class_names(file, columns, key)
    if names is not None and count > len(names):
        raise UserError(f"{key}.path: {printable(file)} names {len(names)} classes but holds the label {count - 1}")
    return names


def class_names(file: Path, columns: Columns, key: str) -> tuple[str, ...] | None:
    """The class names in the schema's metadata (``class_names`` or Hugging Face's ClassLabel), or None. Raises
    UserError if they cannot be read.
    """
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
            in_part = chosen[slice(*np.searchsorted(chosen, (first, first + count)))] - first
            wanted = in_part if part.rows is None else part.rows[in_part]  # row numbers in the file
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
