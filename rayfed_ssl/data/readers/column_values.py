"""Interprets the values of a Parquet file's label and client columns: numbers, text, or blank."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.images import MOST_CLASSES
from rayfed_ssl.data.readers.walking import FROM_TABLE

MOST_LIKELY = 20  # different values of a column that looks like labels
SMALL = 1000  # integers in a column that looks like labels are below
Values = list[str | int | None]
BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
NUMBERS = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating)


class Unnamed(UserError):
    """The error that a key of ``data.columns`` has to name a column or an array, or to leave it unread. ``problem`` is
    the line without the remedy, ``remedy`` the remedy without the key, ``columns`` the values of keys to set.
    """

    problem: str
    remedy: str
    columns: dict[str, str | bool]

    @classmethod
    def of(cls, problem: str, remedy: str, by_key: str, columns: dict[str, str | bool]) -> Unnamed:
        """The error with its line, which ends in what to set, ``by_key``. (An error whose constructor takes other
        arguments does not survive pickling.)
        """
        error = cls(f"{problem}{by_key}")
        error.problem, error.remedy, error.columns = problem, remedy, columns
        return error


@dataclass(frozen=True)
class Empty:
    """How many cells say nothing: those of ``blank`` text, as in tables that people fill in, and ``all``, which also
    counts cells that are null, or a label of -1.
    """

    blank: int = 0
    all: int = 0

    def __add__(self, other: Empty) -> Empty:
        return Empty(self.blank + other.blank, self.all + other.all)


def no_images(kind: pa.DataType) -> str:
    """What is wrong with a column of images of this type, and what to do instead; "" if it can hold encoded bytes."""
    fields = [(field.name, field.type) for field in kind] if pa.types.is_struct(kind) else [("bytes", kind)]
    encoded = [_value_type(inner) for name, inner in fields if name == "bytes"]
    if len(encoded) == 1 and any(is_kind(encoded[0]) for is_kind in BINARY):
        return ""
    problem = f"of type {printable(kind)}; an image is encoded bytes, alone or in a struct of bytes and path"
    if any(hasattr(inner, "value_type") for inner in encoded):
        return f"{problem}; write arrays of pixels as PNG"
    if any(is_text(_value_type(inner)) for _, inner in fields):
        return f"{problem}; where this names files: {FROM_TABLE}"
    return problem


def count_likely_labels(parts: Iterable[pa.Array], *, called: bool = False) -> int:
    """How many different values a column has, if it looks like labels; else 0. Labels are text or small integers, of 2
    to ``MOST_LIKELY`` different values that occur twice or more on average. In a column that is ``called`` so, whole
    floats, as pandas writes integers with gaps, are integers, and text with ``|`` in it is several labels. A column
    that cannot be read counts as 0, because it is only looked at for a hint. No more parts are read than needed.
    """
    found, cells, rows = set[str | int](), set[str | int](), 0
    try:
        for part in parts:
            kind = _value_type(part.type)
            if not (is_text(kind) or any(is_kind(kind) for is_kind in NUMBERS)):
                return 0
            if pa.types.is_floating(kind):
                if not called:
                    return 0
                part = pc.if_else(pc.is_nan(part), None, part)
            values = [value for value in part.unique().drop_null().to_pylist() if str(value).strip()]
            if any(isinstance(value, float) and not value.is_integer() for value in values):
                return 0
            cells.update(value if isinstance(value, str) else int(value) for value in values)
            for cell in cells:
                found.update(_labels_in(cell) if called and isinstance(cell, str) else [cell])
            if len(found) > MOST_LIKELY or any(isinstance(v, int) and not 0 <= v < SMALL for v in found):
                return 0
            rows += len(part) - part.null_count
    except (UnicodeDecodeError, pa.ArrowException, OSError):
        return 0
    return len(found) if min(len(found), len(cells)) >= 2 and rows >= 2 * len(found) else 0


def _labels_in(cell: str) -> list[str]:
    """The labels in a cell, where a bar separates several."""
    return [label.strip() for label in cell.split("|") if label.strip()]


def _value_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values, also if the column is dictionary-encoded."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def encoded_images(file: pq.FileMetaData, image: str, called: str, key: str) -> Callable[[pa.Array], pa.Array]:
    """A function from a part of a file's column of images, binary or a struct of ``bytes`` and ``path``, to its encoded
    bytes. It raises UserError if no row of the column has bytes and the part names files; the message calls the column
    ``called``.
    """
    hollow = _has_no_bytes(file, image)

    def encoded(column: pa.Array) -> pa.Array:
        if not pa.types.is_struct(column.type):
            if pa.types.is_binary_view(column.type):
                return column.cast(pa.large_binary())  # pyarrow cannot take rows of views
            return column
        named = hollow and "path" in [field.name for field in column.type]
        if named and len(paths := column.field("path")) and paths.null_count == 0:
            raise UserError(
                f"{key}.path: {called} holds paths ({printable(paths[0].as_py(), 80)}, ..) and no bytes; write the "
                "files' bytes beside them, as docs/python.md does with images beside a table"
            )
        return encoded(pc.struct_field(column, "bytes"))

    return encoded


def _has_no_bytes(file: pq.FileMetaData, image: str) -> bool:
    """Whether the field ``bytes`` of the column ``image`` is null in every row, by the file's own statistics."""
    groups = [file.row_group(number) for number in range(file.num_row_groups)]
    leaves = [group.column(number) for group in groups for number in range(group.num_columns)]
    statistics = [leaf.statistics for leaf in leaves if leaf.path_in_schema == f"{image}.bytes"]
    if not statistics or not all(entry is not None and entry.has_null_count for entry in statistics):
        return False
    return bool(sum(entry.null_count for entry in statistics) == file.num_rows)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, with its values themselves if it is dictionary-encoded."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def of_text_or_numbers(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, numbers or booleans, dictionary-encoded or not."""
    kind = _value_type(kind)
    return is_text(kind) or any(is_kind(kind) for is_kind in NUMBERS)


def text_values(column: pa.ChunkedArray) -> tuple[pa.Array, Empty]:
    """The text of a column's cells in normal form C, null for an empty or blank cell, which is no class and no client;
    and how many cells say nothing.
    """
    text = pc.utf8_normalize(column.cast(pa.string()).combine_chunks(), form="NFC")
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(text), ""), False)
    values = pc.if_else(blank, pa.scalar(None, pa.string()), text)
    return values, Empty(int(pc.sum(blank).as_py() or 0), values.null_count)


def whole_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of floats as integers, with null for NaN, if all of them are whole: pandas writes integers with gaps in
    this way. Any other column is returned as it is.
    """
    if not pa.types.is_floating(column.type):
        return column
    values = column.cast(pa.float64())
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    whole = pc.and_(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), float(2**53)))
    return values.cast(pa.int64()) if pc.all(whole).as_py() in (True, None) else column


def label_values(column: pa.ChunkedArray, called: str, key: str) -> tuple[pa.Array, Empty]:
    """The labels of a column, and how many cells have none. Labels are int64, -1 if unknown, or text, null if unknown.
    Raises UserError for values that are no labels; the message calls the column ``called``, such as "column label of
    x.parquet".
    """
    if is_text(column.type):
        return text_values(column)
    labels = _whole_labels(column, called, key)
    return pa.array(labels), Empty(all=int((labels < 0).sum()))


def _whole_labels(column: pa.ChunkedArray, called: str, key: str) -> NDArray[np.int64]:
    """The labels as int64, -1 if null; false and true are 0 and 1. Raises UserError unless they are whole numbers in
    the range of labels.
    """
    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else whole_numbers(column)
    if not pa.types.is_integer(column.type):
        raise no_labels(called, f"type {printable(column.type)}", key)
    for value in (pc.min(column).as_py(), pc.max(column).as_py()):
        if value is not None and not -1 <= value < MOST_CLASSES:
            raise UserError(
                f"{key}.path: {called} holds the label {value}; allowed: 0 to {MOST_CLASSES - 1}, -1 or null where it "
                "is unknown"
            )
    return np.asarray(column.cast(pa.int64()).fill_null(-1).to_numpy(), dtype=np.int64)


def no_labels(called: str, found: str, key: str, advice: str = "") -> UserError:
    """The error of values that are no labels. ``found`` says what they are; ``advice`` precedes what to do instead."""
    noun = called.partition(" ")[0]
    problem = (
        f"{key}.path: {called} is of {found}; labels are integers from 0, or text (several labels per image and "
        f"targets of a regression are not measured): {advice}"
    )
    by_key = f"name another {noun} in {key}.columns.label, or read none, {key}.columns.label=false"
    return Unnamed.of(problem, f"name another {noun}, or read none", by_key, {"label": False})


def label_texts(found: Sequence[pa.Array]) -> tuple[str, ...]:
    """The different labels that are text, sorted; none if labels are integers."""
    return tuple(sorted({text for labels in found for text in pc.unique(labels).to_pylist() if isinstance(text, str)}))


def numbered(labels: pa.Array, texts: Sequence[str], key: str, place: str = "Parquet file") -> NDArray[np.int64]:
    """The number (n,) of each label: its position among ``texts``, or the label itself if it is a number. Raises
    UserError for numbers if there are ``texts``, which another ``place``, such as a file, must have.
    """
    if pa.types.is_string(labels.type):
        labels = pc.fill_null(pc.index_in(labels, pa.array(texts, pa.string())), -1)
    elif texts and (number := pc.max(labels).as_py()) not in (None, -1):
        raise UserError(
            f"{key}.path: found labels that are text in one {place} ('{printable(texts[0], 80)}'), numbers in another "
            f"({number}); allowed: text in all, or numbers in all"
        )
    return np.asarray(labels.to_numpy(zero_copy_only=False), np.int64)


def whose_values(column: pa.ChunkedArray, what: str, called: str, key: str) -> tuple[Values, Empty]:
    """The values of a column of clients or groups, which ``what`` says, and how many cells have none. Raises UserError
    unless they are text or integers.
    """
    if is_text(column.type):
        text, empty = text_values(column)
        return text.to_pylist(), empty
    column = whole_numbers(column)
    if not pa.types.is_integer(column.type):
        raise UserError(
            f"{key}.columns.{what}: {called} is of type {printable(column.type)}; {what}s are text or integers"
        )
    return list(column.to_pylist()), Empty(all=column.null_count)


def gaps(splits: Sequence[NDArray[np.int64]], counted: str = "") -> tuple[Note, ...]:
    """A line if the splits' labels, which have no names, leave out numbers below the largest, because these count as
    classes, too. ``counted`` is added where the line counts images that a limit may leave out.
    """
    numbers = np.unique(np.concatenate([np.empty(0, np.int64), *(np.unique(labels) for labels in splits)]))
    numbers = numbers[numbers >= 0]
    if not len(numbers) or len(numbers) == (classes := int(numbers[-1]) + 1):
        return ()
    shown = ", ".join(map(str, numbers[:3])) + (", .." if len(numbers) > 3 else "")
    more = (
        f" ({shown}){counted}: they count as {classes} classes, {classes - len(numbers)} of them without images; "
        f"written as text, they are {len(numbers)}"
    )
    return (Note.shareable(f"labels are {len(numbers)} of the numbers 0 to {classes - 1}", more),)


def names_in(metadata: dict[bytes, bytes], label: str) -> list[str | int] | None:
    """The list of class names in a schema's metadata, or None. Raises ValueError, TypeError or AttributeError if it is
    no such list.
    """
    names: Any = json.loads(metadata.get(b"class_names", b"null"))
    if names is None:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        names = features.get(label, {}).get("names")
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str | int) for name in names):
        raise TypeError(f"found {type(names).__name__}; wanted a list of names")
    return names
