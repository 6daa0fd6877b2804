"""Reads columns of numbers from the files that a ``system:`` block names; every error is one line that names the
key.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line


def read_table(path: Path, key: str) -> pa.Table:
    """The table in the Parquet or CSV file at ``path``, which ``key`` of the configuration names.

    Raises:
        UserError: the file cannot be read, or is neither Parquet nor CSV.
    """
    try:
        return pyarrow.csv.read_csv(path) if path.suffix.lower() == ".csv" else pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{key}: {path} cannot be read ({in_one_line(error)}); needs a Parquet or CSV file") from None


def column(table: pa.Table, name: str, path: Path, key: str) -> np.ndarray:
    """A column of ``table`` as float64. Raises UserError if the column is missing or appears more than once, holds no
    numbers, or holds NaN or infinity.
    """
    if (times := table.column_names.count(name)) != 1:
        found = f"{times} columns" if times else "no column"
        raise UserError(f"{key}: found {found} {name} in {path}; it has {', '.join(table.column_names)}")
    try:
        values = np.asarray(table.column(name).cast(pa.float64()).to_numpy(), np.float64)
    except pa.ArrowException:
        raise UserError(f"{key}: found {table.column(name).type} in column {name} of {path}; needs numbers") from None
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise UserError(f"{key}: found {values[row]} in column {name}, row {row} of {path}; needs a finite number")
    return values
