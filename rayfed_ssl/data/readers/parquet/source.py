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
``data.test_split: validation`` takes them for the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import model_validator

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.images import Payload, Source
from rayfed_ssl.data.readers import one_hot, split_column
from rayfed_ssl.data.readers.column_values import (
    Empty,
    Unnamed,
    Values,
    count_likely_labels,
    encoded_images,
    is_text,
    label_texts,
    label_values,
    names_in,
    no_images,
    numbered,
    of_text_or_numbers,
    plain,
    whose_values,
)
from rayfed_ssl.data.readers.ownership import bare, is_group, ungrouped
from rayfed_ssl.data.readers.parquet.files import few_rows, other_tests, parts_of, readable, unused
from rayfed_ssl.data.readers.split_rows import NAMED, NO_LABEL, Beside, Rows, RowSplits
from rayfed_ssl.data.readers.walking import FROM_TABLE

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label")
OF_IMAGES = {  # columns that say nothing but what an image is, as ``bare`` writes them
    *("id", "imageid", "index", "path", "imagepath", "file", "filename", "filepath", "url", "bytes", "format", "mode"),
    *("width", "height", "size", "split"),
}
PATHS = {"path", "imagepath", "file", "filename", "filepath", "imagefile", "imagename"}  # likewise, of files
MOST_UNREAD = 10  # columns that are named


class Columns(Block):
    """Which columns of Parquet or of a table hold what, or which arrays. Of ``arrays`` a name is an array's own, or
    what stands beside its split, as ``scans`` of ``train_scans`` and ``test_scans``.
    """

    image: str | None = None
    """The images; null: ``img`` or ``image``, of ``arrays`` ``images``, ``x`` or ``data``, of a ``table`` also
    ``file``, ``filename``, ``path``, ``image_id``, .. or ``id``.
    """
    label: str | tuple[str, ...] | Literal[False] | None = None
    """The labels, as integers from 0 or as text, whose sorted values are the classes; null: ``label``, ``labels`` or
    ``fine_label``, of ``arrays`` ``labels`` or ``y``, where there is one; false: none is read, and all images are
    unlabelled. Whole floats (NaN: unknown) and booleans count as integers, and empty text is no label. A list names
    columns that are a class each, with a 1 for its images, as ``[MEL,NV,BCC]``; not of ``arrays``. Several labels per
    image and targets of a regression are not measured.
    """
    client: str | None = None
    """Who holds an image, as text or integers; null: nobody does. Nor where the text is empty."""
    group: str | None = None
    """Whom or what an image shows, such as the patient, as text or integers: images of one are held out together, for
    tests and by ``evaluation.select``; null: each image alone. Files of test images need no such column.
    """
    split: str | None = None
    """Of one ``table``: which images train and which test, as ``train``, ``test`` or ``val``; null: a fifth of each
    class tests.
    """

    @model_validator(mode="after")
    def _several_classes(self) -> Columns:
        """A list of labels names columns, each once."""
        if isinstance(self.label, tuple) and (len(self.label) < 2 or len({*self.label}) < len(self.label)):
            raise ValueError(
                f"label: found {printable(list(self.label), 120)}; a list names two columns or more, each once"
            )
        return self


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
    if columns.split is not None:
        raise UserError(f"{key}.columns.split: found a value; Parquet has a file for each split, allowed: null")
    parts = parts_of(path, key, shown, test_split)
    others: list[Note | str] = (
        [] if single else [*unused(path, parts, key, _other_tests(path, parts, columns, key, shown))]
    )
    if undivided := not parts["test"]:
        parts["test"] = parts["train"]
    number = "one Parquet file" if len(parts["train"]) == 1 else f"{len(parts['train'])} Parquet files"
    splits = RowSplits(
        lambda: _read_beside(parts, columns, key),
        lambda split, chosen: _rows(parts[split], chosen, columns, key),
        number if undivided else None,
        limits,
        key,
    )
    if key == "data" and parts["train"][0].is_file():
        others += _unread(parts["train"][0], columns, undivided, key)
    return Source(
        tuple(dict.fromkeys(parts["train"] + parts["test"])),
        splits.listing,
        notes=others,
        check=lambda: splits.check(shown, printable(parts["test"][0])),
        alone=splits.alone if undivided and not single else None,
    )


def _unread(file: Path, columns: Columns, single: bool, key: str) -> list[Note | str]:
    """:func:`unread_columns` of a file."""
    with readable(file, key) as opened:
        names = list(dict.fromkeys(opened.schema_arrow.names))
        small = {field.name for field in opened.schema_arrow if of_text_or_numbers(field.type)}  # none of images

        def values(name: str) -> Iterator[pa.Array]:
            if name in small:
                yield from (b.column(0) for b in opened.iter_batches(columns=[name]) if b.num_columns == 1)

        return unread_columns(names, columns, single, key, IMAGE_COLUMNS, LABEL_COLUMNS, values)


def unread_columns(
    names: Sequence[str],
    columns: Columns,
    single: bool,
    key: str,
    images: Sequence[str],
    labels: Sequence[str],
    values: Callable[[str], Iterable[pa.Array]],
    split_key: str = "",
) -> list[Note | str]:
    """Lines on columns that are not read: one that seems to be a group, and those that may be what a key without a
    value names; where no labels are read, also which of them look like labels.

    Args:
        images, labels: the columns that are taken for these where no key names one, the first that is there.
        values: the values of a column, in parts.
        split_key: the key that names a column of splits; "" where none does.
    """
    others = [name for name in names if name != columns.image]
    group = next(iter(ungrouped(others, single, key)), None) if columns.group is None else None
    asked = [what for what in ("label", *NAMED) if getattr(columns, what) is None]
    named = columns.label if isinstance(columns.label, tuple) else (columns.label,)
    read = {columns.image, *named, columns.client, columns.group, columns.split}
    for wanted, usual in ((columns.image, images), (columns.label, labels)):
        if wanted is None:
            read.add(next((name for name in usual if name in names), None))
        elif wanted is False:
            read.update(usual)
    if group is not None:
        read.add(next(name for name in others if is_group(name)))
    left = [
        name
        for name in names
        if name not in read and bare(name) not in OF_IMAGES and not name.startswith("__index_level_")
    ]
    shown = [printable(name, 40) for name in left]
    notes: list[Note | str] = []
    if single and columns.split is None:
        notes += split_column.advice([name for name in names if name not in read], values, split_key)
    notes += [] if group is None else [group]
    if shown and asked:
        more = f" and {len(shown) - MOST_UNREAD} more" if len(shown) > MOST_UNREAD else ""
        are = f"column {shown[0]} is" if len(shown) == 1 else f"columns {', '.join(shown[:MOST_UNREAD])}{more} are"
        say = "says which is" if len(asked) == 1 else "say which are"
        unlabelled = columns.label is None and not any(name in names for name in labels)
        likely = _likely_labels(left, values, key) if unlabelled else ""
        notes.append(f"{are} not read; {key}.columns.{', .'.join(asked)} {say}{likely}")
    return notes


def _likely_labels(names: Sequence[str], values: Callable[[str], Iterable[pa.Array]], key: str) -> str:
    """Which of these columns look like a class each, or which of the first of them like labels, and the key that reads
    them; "" where none does.
    """
    classes = one_hot.likely_classes(names, values, key)
    counts = {name: count for name in names[:MOST_UNREAD] if (count := count_likely_labels(values(name)))}
    if classes and (classes.certain or not counts.keys() - {*classes.names}):
        return f"; {classes.advice}"
    if classes and len(classes.names) > 2:
        counts = {name: count for name, count in counts.items() if name not in classes.names}
    if not counts:
        return ""
    told = [f"{printable(name, 40)} ({count} values)" for name, count in list(counts.items())[:3]]
    asked = quote(f"{key}.columns.label={printable(next(iter(counts)))}")
    return f"; {' or '.join(told)} may be the labels: {asked}"


def _other_tests(path: Path, parts: dict[str, list[Path]], columns: Columns, key: str, shown: str) -> str:
    """Which other splits with labels could be the test, and by which key; "" where there are none."""
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
            said += f"; {key}.test_split={name} tests on its {known} labelled images"
    return said


# -- which columns -----------------------------------------------------------------------------------------------------


def column_named(
    schema: pa.Schema, wanted: str | Literal[False] | None, usual: tuple[str, ...], what: str, file: Path, key: str
) -> str:
    """The column ``wanted``, or the first of the usual names; "" where none of these is there, and for false. Raises
    UserError."""
    if wanted is False:
        return ""
    has = printable(", ".join(schema.names)) or "none"
    if wanted is not None and wanted not in schema.names:
        raise UserError(
            f"{key}.columns.{what}: found {printable(repr(wanted))}; {printable(file)} has the columns {has}"
        )
    name = wanted if wanted is not None else next((name for name in usual if name in schema.names), "")
    if name and schema.names.count(name) > 1:
        raise UserError(f"{key}.path: {printable(file)} has the column {printable(name)} twice; it has {has}")
    return name


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


def _read_beside(parts: dict[str, list[Path]], columns: Columns, key: str) -> Beside:
    """What lies beside the images of both splits; sorted text of both together are the classes."""
    found = {
        name: [
            (*_read_labels(file, columns, key), _read_names(file, columns, key, file in parts["train"]))
            for file in files
        ]
        for name, files in parts.items()
    }
    texts = label_texts([labels for rows in found.values() for labels, *_ in rows])
    splits, empty = {}, dict[tuple[Path, str], Empty]()
    for name, rows in found.items():
        labels = [np.empty(0, np.int64), *(numbered(labels, texts, key) for labels, *_ in rows)]
        beside = {what: [value for *_, named in rows for value in named[what][0]] for what in NAMED}
        for file, (_, no_labels, named) in zip(parts[name], rows, strict=True):
            empty[file, NO_LABEL] = no_labels
            empty |= {(file, f"{what}: {meaning}"): named[what][1] for what, meaning in NAMED.items()}
        given = {what: values for what, values in beside.items() if getattr(columns, what) is not None}
        splits[name] = Rows(np.concatenate(labels), given.get("client"), given.get("group"))
    meant: dict[str, Empty] = {}
    for (_, meaning), cells in empty.items():
        meant[meaning] = meant.get(meaning, Empty()) + cells
    names = None if texts else _class_names(parts["train"][0], splits, columns, key)
    files = {file: labels for name, rows in found.items() for file, (labels, *_) in zip(parts[name], rows, strict=True)}
    several = one_hot.count_several(files.values(), columns.label) if isinstance(columns.label, tuple) else 0
    return Beside(splits, texts, names, meant, several)


def read_labels(file: Path, columns: Columns, key: str) -> pa.Array:
    """A file's labels: int64, -1 where unknown, or text, null where unknown.

    Raises:
        UserError: a file that cannot be read, a column that is missing or of a type that cannot be used.
    """
    return _read_labels(file, columns, key)[0]


def _read_labels(file: Path, columns: Columns, key: str) -> tuple[pa.Array, Empty]:
    """A file's labels, and the cells without one."""
    with readable(file, key) as opened:
        schema = opened.schema_arrow
        image_column(schema, columns, file, key)
        if isinstance(columns.label, tuple):
            names = [column_named(schema, name, (), "label", file, key) for name in columns.label]
            read = opened.read(columns=names)
            labels = one_hot.labels_of({name: plain(read.column(name)) for name in names}, printable(file), key)
            return labels, Empty(labels.null_count, labels.null_count)
        name = column_named(schema, columns.label, LABEL_COLUMNS, "label", file, key)
        if not name or pa.types.is_null(schema.field(name).type):
            rows = opened.metadata.num_rows
            return pa.array(np.full(rows, -1, np.int64)), Empty(all=rows if name else 0)
        column = plain(opened.read(columns=[name]).column(name))
    return label_values(column, f"column {printable(name)} of {printable(file)}", key)


def _read_names(file: Path, columns: Columns, key: str, trains: bool) -> dict[str, tuple[Values, Empty]]:
    """Of the client and the group column the values, and the cells without one; nothing of one that is not named. Who
    test images show may be unknown: nobody is held out of them.
    """
    return {
        what: _read_named(file, getattr(columns, what), what, key, what == "group" and not trains) for what in NAMED
    }


def _read_named(file: Path, wanted: str | None, what: str, key: str, optional: bool) -> tuple[Values, Empty]:
    if wanted is None:
        return [], Empty()
    with readable(file, key) as opened:
        if optional and wanted not in opened.schema_arrow.names:
            return [None] * opened.metadata.num_rows, Empty()
        name = column_named(opened.schema_arrow, wanted, (), what, file, key)
        column = plain(opened.read(columns=[name]).column(name))
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


def _rows(files: list[Path], chosen: NDArray[np.int64], columns: Columns, key: str) -> Iterator[tuple[str, Payload]]:
    """The images at the row numbers ``chosen`` (sorted, counted through all files), read a few at a time."""
    start = 0
    for file in files:
        with readable(file, key) as opened:
            name = image_column(opened.schema_arrow, columns, file, key)
            encoded = encoded_images(opened.metadata, name, f"column {printable(name)} of {printable(file)}", key)
            first = start
            for batch in few_rows(opened, [name]):
                low, high = np.searchsorted(chosen, (start, start + len(batch)))
                rows = chosen[low:high]
                images = encoded(batch.column(name)).take(pa.array(rows - start)) if len(rows) else pa.nulls(0)
                for row, payload in zip(rows, images.to_pylist(), strict=True):
                    yield f"{file} row {row - first}", payload
                start += len(batch)
                if start > chosen.max(initial=-1):
                    return
