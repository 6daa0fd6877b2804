"""The labels, clients and groups in the rows of tables, beside the images that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import composed, printable
from rayfed_ssl.data.readers import one_hot
from rayfed_ssl.data.readers.column_values import Empty, Values, label_texts, label_values, no_labels, numbered
from rayfed_ssl.data.readers.columns import Columns
from rayfed_ssl.data.readers.split_rows import NAMED, NO_LABEL, Beside, Rows
from rayfed_ssl.data.readers.tables.cells import CellTable, typed
from rayfed_ssl.data.readers.tables.columns import label_columns, listed_columns, named_column


def read_beside(splits: Mapping[str, CellTable], columns: Columns, key: str) -> Beside:
    """The labels, clients and groups of the splits' tables; both splits may have the same table. If labels are text,
    the sorted labels of all splits are the classes.

    Raises:
        UserError: a column is not there, or values cannot be labels, clients or groups.
    """
    tables = {split: table for split, table in splits.items() if split == "train" or table is not splits["train"]}
    _refuse_unlabelled([*tables.values()], columns, key)
    read = _one_hot if isinstance(columns.label, tuple) else _labels
    labels, empty = read([*tables.values()], columns, key)
    whose: dict[str, list[Values] | None] = {}
    for what, meaning in NAMED.items():
        whose[what], cells = _whose([*tables.values()], getattr(columns, what), what, key)
        empty |= {f"{what}: {meaning}": cells}
    texts = label_texts(labels)
    rows: dict[str, Rows] = {}
    for number, split in enumerate(tables):
        clients, groups = (None if values is None else values[number] for values in whose.values())
        rows[split] = Rows(numbered(labels[number], texts, key, "table"), clients, groups)
    classes = label_columns(tables["train"], columns, key)
    several = one_hot.count_several(labels, classes) if isinstance(columns.label, tuple) else 0
    return Beside({split: rows.get(split, rows["train"]) for split in splits}, texts, None, empty, several)


def _refuse_unlabelled(tables: Sequence[CellTable], columns: Columns, key: str) -> None:
    """Raise UserError if the table of the test images lacks a column of labels, as some published tables do."""
    wanted = columns.label if isinstance(columns.label, tuple) else [columns.label] if columns.label else []
    names = [composed(name.strip()) for name in wanted]
    if any(name not in tables[0].names for name in names):
        return  # reading the first table reports that
    for table in tables[1:]:
        if missing := next((name for name in names if name not in table.names), ""):
            raise UserError(
                f"{key}.columns.label: found {printable(repr(missing))}, which {table.shown} does not have; it has "
                f"{listed_columns(table)}; {key}.path={tables[0].shown} reads that table alone, and holds a fifth of "
                "each class out"
            )


def _one_hot(tables: Sequence[CellTable], columns: Columns, key: str) -> tuple[list[pa.Array], dict[str, Empty]]:
    """As ``_labels``, for columns that are a class each."""
    labels = []
    for table in tables:
        names = label_columns(table, columns, key)
        cells = {name: typed(table.cells(name), fractions=True)[0] for name in names}
        labels.append(one_hot.labels_of(cells, table.shown, key))
    empty = sum(part.null_count for part in labels)
    return labels, {NO_LABEL: Empty(empty, empty)}


def _labels(tables: Sequence[CellTable], columns: Columns, key: str) -> tuple[list[pa.Array], dict[str, Empty]]:
    """The labels of each table as ``label_values`` returns them, and how many cells have none. The rows of a table
    without a column of labels are unlabelled.
    """
    names = [next(iter(label_columns(table, columns, key)), "") for table in tables]
    cells = [table.cells(name) if name else [""] * len(table.rows) for table, name in zip(tables, names, strict=True)]
    column, empty = typed([*chain.from_iterable(cells)], fractions=True)
    called = " and ".join(
        f"column {printable(name)} of {table.shown}" for table, name in zip(tables, names, strict=True) if name
    )
    if pa.types.is_floating(column.type):
        raise no_labels(called, "numbers with fractions", key)
    if any(name in table.nested for table, name in zip(tables, names, strict=True)):
        raise no_labels(called, "lists or objects", key)
    if empty == len(column):
        column = pa.chunked_array([pa.nulls(len(column), pa.int64())])
    labels, unlabelled = label_values(column, called, key)
    no_cells = sum(len(table.rows) for table, name in zip(tables, names, strict=True) if not name)
    return _parted(labels, tables), {NO_LABEL: Empty(empty - no_cells, unlabelled.all - no_cells)}


def _whose(tables: Sequence[CellTable], wanted: str | None, what: str, key: str) -> tuple[list[Values] | None, Empty]:
    """The client or the group (``what``) of each table's images; None if no key names the column ``wanted``. Test
    images need no groups.
    """
    if wanted is None:
        return None, Empty()
    cells = []
    for number, table in enumerate(tables):
        not_needed = what == "group" and number and composed(wanted.strip()) not in table.names
        cells.append([""] * len(table.rows) if not_needed else table.cells(named_column(table, wanted, (), what, key)))
    column, empty = typed([*chain.from_iterable(cells)])
    values: list[Values] = [part.to_pylist() for part in _parted(column.combine_chunks(), tables)]
    return values, Empty(empty, empty)


def _parted(values: pa.Array, tables: Sequence[CellTable]) -> list[pa.Array]:
    """The values of all rows, cut into those of each table."""
    ends = np.cumsum([0, *(len(table.rows) for table in tables)])
    return [values[int(start) : int(end)] for start, end in pairwise(ends)]
