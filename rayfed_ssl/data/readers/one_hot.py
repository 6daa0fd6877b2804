"""Columns that are a class each, such as ``MEL,NV,BCC`` in ISIC's tables: an image's label is the column that has a 1.

An image with a 1 in several columns has several labels; their names, joined by ``BETWEEN``, are a class of its own,
like labels that are joined in one cell.

Shape legend: n images, C columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import composed, printable
from rayfed_ssl.data.readers.column_values import is_text, of_text_or_numbers, whole_numbers

BETWEEN = "|"
WORDS = {"false": 0, "true": 1}  # in any case
MOST_WRITTEN = 30  # columns that advice writes out in the value of a key
MOST_NAMED = 5  # columns that a note names
PLAIN = re.compile(r"[A-Za-z][\w./()-]*( [\w./()-]+)*")  # a name that YAML reads as text, unless it is one of YAMLS
YAMLS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def labels_of(columns: Mapping[str, pa.ChunkedArray], file: str, key: str) -> pa.Array:
    """The label (n,) of each image as text: the names of the columns with a 1, in their order. It is null if no column
    has a 1, or if one has a -1, which means that the class is not known.

    Args:
        columns: the columns of ``file`` by name: 1 or true for images of the class, 0, false or null for others.
    Raises:
        UserError: a column holds anything else.
    """
    ones = []
    for name, column in columns.items():
        values = _ones(column)
        if isinstance(values, str):
            raise UserError(
                f"{key}.columns.label: column {printable(name)} of {file} holds {printable(values, 40)}; allowed in "
                "columns that are a class each: 1 for its images, 0 or nothing for others, -1 where that is unknown"
            )
        ones.append(values)
    rows, which = np.unique(np.stack(ones, axis=1), axis=0, return_inverse=True)
    names = [_joined(row, [composed(name) for name in columns]) for row in rows]
    return pa.array(names, pa.string()).take(pa.array(which.reshape(-1)))


def count_several(labels: Iterable[pa.Array], columns: Sequence[str]) -> int:
    """How many of the labels, which ``labels_of`` returned, are several of the columns."""
    single = pa.array([composed(name) for name in columns], pa.string())
    return sum(len(part) - part.null_count - int(pc.sum(pc.is_in(part, single)).as_py() or 0) for part in labels)


def _joined(row: NDArray[np.int8], names: Sequence[str]) -> str | None:
    """The label of a row (C,) of 1, 0 and -1; None if it has no 1, or a -1."""
    if (row < 0).any():
        return None
    return BETWEEN.join(name for name, value in zip(names, row, strict=True) if value) or None


def _ones(column: pa.ChunkedArray) -> NDArray[np.int8] | str:
    """The values (n,) of a column, all 1, 0 or -1; or, as text, the first value that is none of these."""
    if is_text(column.type):
        words = [None if text is None else text.strip().lower() or None for text in column.to_pylist()]
        if odd := next((word for word in words if word is not None and word not in WORDS), None):
            return str(odd)
        return np.array([0 if word is None else WORDS[word] for word in words], np.int8)
    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else whole_numbers(column)
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int8)
    if pa.types.is_floating(column.type):
        known = column.drop_null()
        return str(known.filter(pc.not_equal(pc.floor(known), known))[0])
    if not pa.types.is_integer(column.type):
        return f"values of type {column.type}"
    values = np.asarray(column.fill_null(0).to_numpy(), np.int64)
    if len(odd := values[(values < -1) | (values > 1)]):
        return str(odd[0])
    return values.astype(np.int8)


@dataclass(frozen=True)
class LikelyClasses:
    """Columns side by side that look like a class each; a line on them, ``advice``, with the key that reads them; and
    whether they can hardly be anything else, ``certain``: they are three or more.
    """

    names: list[str]
    advice: str
    certain: bool


def likely_classes(names: Sequence[str], values: Callable[[str], Iterable[pa.Array]], key: str) -> LikelyClasses | None:
    """The columns that look like a class each: two or more of 0 and 1 alone with one 1 in every row. None where there
    are none: columns of which rows have none or several are as likely to be flags of their own.

    Args:
        names: columns that are not read, in their order.
        values: a column's values, in parts.
    """
    for run in _runs(names, values):
        if (np.sum([*run.values()], axis=0) == 1).all():
            return LikelyClasses([*run], _advised([*run], key), len(run) > 2)
    return None


def _advised(names: Sequence[str], key: str) -> str:
    """The line on the columns, of which each row has one 1."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    shown = printable(", ".join(names[:MOST_NAMED]), 120) + more
    listed = f"{key}.columns.label=[{','.join(map(_in_yaml, names))}]"
    by_key = quote(listed) if len(names) <= MOST_WRITTEN else f"a list of them in {key}.columns.label"
    return f"{shown} hold one 1 in each row: {by_key} reads them as classes"


def _in_yaml(name: str) -> str:
    """A column's name as YAML writes it in a list."""
    return name if PLAIN.fullmatch(name) and name.lower() not in YAMLS else json.dumps(name, ensure_ascii=False)


def _runs(names: Sequence[str], values: Callable[[str], Iterable[pa.Array]]) -> Iterable[dict[str, NDArray[np.int64]]]:
    """The runs of two or more columns side by side that hold 0 and 1 alone: column -> its values (n,)."""
    run: dict[str, NDArray[np.int64]] = {}
    for name in [*names, None]:
        column = None if name is None else _of_zeros_and_ones(values(name))
        if name is not None and column is not None:
            run[name] = column
            continue
        if len(run) > 1:
            yield run
        run = {}


def _of_zeros_and_ones(parts: Iterable[pa.Array]) -> NDArray[np.int64] | None:
    """The values (n,) of a column that holds 0 and 1 alone, with or without nulls; None for any other column, and for
    one of nulls alone. Reads no more parts than needed.
    """
    values, known = list[NDArray[np.int64]](), 0
    try:
        for part in parts:
            if not of_text_or_numbers(part.type):
                return None
            ones = _ones(pa.chunked_array([part]))
            if isinstance(ones, str) or (ones < 0).any():
                return None
            values.append(ones.astype(np.int64))
            known += len(part) - part.null_count
    except (UnicodeDecodeError, pa.ArrowException, OSError):
        return None  # it is only looked at for a hint
    return np.concatenate(values) if known else None
