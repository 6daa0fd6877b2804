"""Finds the columns of a table that the keys in ``data.columns`` name, or else those with a usual name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from rayfed_ssl.base.text import composed, printable
from rayfed_ssl.data.readers.columns import LABEL_COLUMNS, Columns, column_named
from rayfed_ssl.data.readers.ownership import bare
from rayfed_ssl.data.readers.tables.cells import CellTable

MOST_LISTED = 20  # the most columns that a message names


def label_columns(table: CellTable, columns: Columns, key: str) -> tuple[str, ...]:
    """The column of labels, or the columns that are a class each; none if there is none. Raises UserError."""
    if isinstance(columns.label, tuple):
        return tuple(named_column(table, name, (), "label", key) for name in columns.label)
    usual = [name for wanted in LABEL_COLUMNS for name in table.names if bare(name) == bare(wanted)]
    name = named_column(table, columns.label, usual, "label", key)
    return (name,) if name else ()


def named_column(
    table: CellTable, wanted: str | Literal[False] | None, usual: Sequence[str], what: str, key: str
) -> str:
    """As ``column_named``, for a table."""
    schema = pa.schema([(name, pa.string()) for name in table.names if name])
    given = composed(wanted.strip()) if isinstance(wanted, str) else wanted
    return column_named(schema, given, tuple(usual), what, table.file, key)


def listed_columns(table: CellTable) -> str:
    """The columns of a table, for a message: at most ``MOST_LISTED``, and how many more."""
    names = [name for name in table.names if name]
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return (printable(", ".join(names[:MOST_LISTED])) or "none") + more
