"""Images that a table names: a CSV or TSV file with a row per image, beside the image files or above them.

``path`` is the table, or a folder with ``train.csv`` and ``test.csv`` (or ``validation.csv``, ``val.csv``). Without a
table of test images a fixed fifth of each class is held out, as of one Parquet file. The first line names the columns,
in UTF-8; cells are separated by commas, semicolons or tabs, whichever the first line has most of. ``data.columns`` says
what a column means. A column whose cells are integers holds integers (pandas' 1.0 is 1), every other one text; an empty
cell says nothing.

A cell of the image column is a path from the table's folder, or the name of an image file anywhere below it, with its
suffix or without. Of several files of one name, those count whose path ends with the cell, and then those in a folder
whose name begins with the table's (``train/`` and ``train_images/`` for ``train.csv``). A row whose image is not there
is one that cannot be decoded. Image files in no row are not read, with a note.

Shape legend: n rows of a table.
"""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.column_values import (
    Empty,
    Unnamed,
    Values,
    label_texts,
    label_values,
    numbered,
    whose_values,
)
from rayfed_ssl.data.images import Payload, Source
from rayfed_ssl.data.parquet_files import TEST_NAMES
from rayfed_ssl.data.source_parquet import LABEL_COLUMNS, Columns, column_named, unread_columns
from rayfed_ssl.data.split_rows import NAMED, NO_LABEL, Beside, Rows, RowSplits
from rayfed_ssl.data.walking import CSV, images_below
from rayfed_ssl.data.whose import bare

IMAGE_COLUMNS = (
    "image", "img", "file", "filename", "path", "filepath", "imagepath", "imagefile", "imagename", "imageid",
    "imageindex", "id",
)  # fmt: skip
"""Columns of images that need not be named, in any case, with ``_`` and spaces or without."""
DELIMITERS = ",;\t"
LONGEST_CELL = 2**20
INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.0*)?")
NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|nan", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """The cells of a file, (n rows) x (columns)."""

    file: Path
    names: tuple[str, ...]
    rows: list[list[str]]

    @property
    def shown(self) -> str:
        return printable(self.file)

    @property
    def stem(self) -> str:
        return self.file.stem.lower()

    def cells(self, name: str) -> list[str]:
        """A column."""
        at = self.names.index(name)
        return [row[at] for row in self.rows]

    def row(self, number: int) -> str:
        """What messages call a row: counted from 1, without the first line."""
        return f"row {number + 1} of {self.file}"


def read_table(file: Path, key: str) -> Table:
    """The table. Raises UserError for what is none, and for a row with other cells than the first line has."""
    shown = printable(file)
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            first = opened.readline()
            opened.seek(0)
            delimiter = max(DELIMITERS, key=first.count)
            rows = [row for row in csv.reader(opened, delimiter=delimiter, strict=True) if row]
    except UnicodeDecodeError as error:
        raise UserError(f"{key}.path: {shown} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{key}.path: {shown} cannot be read as a table ({printable(str(error))})") from None
    except OSError as error:
        raise UserError(f"{key}.path: {shown} cannot be read ({error.strerror})") from None
    finally:
        csv.field_size_limit(before)
    if not rows:
        raise UserError(f"{key}.path: {shown} is empty; its first line names the columns")
    names = tuple(name.strip() for name in rows[0])
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(names):
            raise UserError(f"{key}.path: row {number} of {shown} has {len(row)} cells, its first line {len(names)}")
    return Table(file, names, rows[1:])


def tables_of(path: Path, key: str, test_split: str | None = None) -> dict[str, Path]:
    """The table of each split; none of the test split where it is missing. Raises UserError."""
    shown = printable(path)
    if path.is_file():
        if test_split is not None:
            raise UserError(
                f"{key}.test_split: found {printable(repr(test_split))}; {shown} is one file, allowed: null"
            )
        return {"train": path}
    found = {file.stem: file for file in sorted(path.iterdir()) if file.suffix.lower() in CSV and file.is_file()}
    there = printable(", ".join(file.name for file in found.values())) or "no table"
    if "train" not in found:
        hint = f"; give one of them, {shown}/{there.split(',')[0]}" if found else ""
        raise UserError(f"{key}.path: {shown} has no train.csv; found {there}{hint}")
    if test_split is not None and test_split not in found:
        raise UserError(f"{key}.test_split: found {printable(repr(test_split))}; {shown} has {there}")
    test = test_split or next((name for name in TEST_NAMES if name in found), None)
    return {"train": found["train"]} if test is None else {"train": found["train"], "test": found[test]}


class Places:
    """The image files below a folder, by what a table may call them."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    @cached_property
    def files(self) -> list[Path]:
        return images_below(self.folder, self.key)

    @cached_property
    def named(self) -> Mapping[str, list[Path]]:
        """Name, and name without suffix -> files."""
        found: dict[str, list[Path]] = defaultdict(list)
        for file in self.files:
            for name in dict.fromkeys((file.name, file.stem)):
                found[name].append(file)
        return found

    def find(self, cell: str, table: str, called: str) -> Path | None:
        """The file that a cell names; None where there is none. ``table`` is the table's name without suffix, and
        ``called`` what messages call the row.

        Raises:
            UserError: the cell may mean several files.
        """
        text = cell.strip()
        given = self.folder / text
        if not text or os.path.isfile(given):
            return given if text else None
        parts = Path(text.replace("\\", "/")).parts
        candidates = self.named.get(parts[-1], []) if parts else []

        def ending(file: Path) -> tuple[str, ...]:
            return file.parts[-len(parts) :]

        for better in (
            [file for file in candidates if parts in (ending(file), ending(file.with_suffix("")))],
            [file for file in candidates if self._first_folder(file).startswith(table)],
        ):
            if len(candidates) > 1 and better:
                candidates = [file for file in candidates if file in better] or candidates
        if len(candidates) > 1:
            several = " or ".join(printable(file.relative_to(self.folder)) for file in candidates[:2])
            raise UserError(
                f"{self.key}.columns.image: {printable(called)} names {printable(text, 80)}, which may be {several} "
                f"below {printable(self.folder)}; allowed: paths from the table's folder"
            )
        return candidates[0] if candidates else None

    def _first_folder(self, file: Path) -> str:
        return file.relative_to(self.folder).parts[0].lower()


@dataclass(frozen=True)
class Named:
    """A split: its table, the column of its images, and the files that this names, None where one is not there."""

    table: Table
    image: str
    files: list[Path | None]

    def images(self, chosen: NDArray[np.int64]) -> Iterator[tuple[str, Payload]]:
        """(name, file) of the rows of these numbers."""
        cells = self.table.cells(self.image)
        for row in chosen:
            file = self.files[row]
            if file is None:
                absent = self.table.file.parent / cells[row].strip() if cells[row].strip() else None
                yield f"{printable(cells[row], 80)}, {self.table.row(int(row))}", absent
            else:
                yield str(file), file


def table_source(
    path: Path,
    limits: Mapping[str, int | None],
    key: str,
    columns: Columns | None = None,
    test_split: str | None = None,
) -> Source:
    """The source at ``path``. Its check raises UserError where no test image can be held out, and for labels or clients
    of the test split that no training image has.

    Args:
        test_split: the name of the table of the test images; None: ``test``, else ``validation`` or ``val``.
    Raises:
        UserError: no table, no column of images, images that none of the rows names, or two rows name.
    """
    columns = columns or Columns()
    read = {split: read_table(file, key) for split, file in tables_of(path, key, test_split).items()}
    places = Places(read["train"].file.parent, key)
    found = {split: named_images(table, places, columns, key) for split, table in read.items()}
    first = found["train"]
    splits = {"train": first, "test": found.get("test", first)}
    rows = RowSplits(
        lambda: read_beside(splits, columns, key),
        lambda split, chosen: splits[split].images(chosen),
        None if "test" in found else "one table",
        limits,
        key,
    )
    files = [table.file for table in read.values()]
    files += [file for named in found.values() for file in named.files if file is not None]
    notes: list[Note | str] = [*_left_over(places, found)]
    if key == "data":
        labels = [name for name in first.table.names if bare(name) in LABEL_COLUMNS]
        notes += unread_columns(first.table.names, columns, "test" not in found, key, [first.image], labels)
    return Source(
        tuple(dict.fromkeys(files)),
        rows.listing,
        notes,
        check=lambda: rows.check(first.table.shown, splits["test"].table.shown),
        alone=None,
    )


def _left_over(places: Places, found: Mapping[str, Named]) -> Iterator[str]:
    """A line on the image files that are in no row."""
    listed = {os.path.abspath(file) for named in found.values() for file in named.files if file is not None}
    if left := sum(os.path.abspath(file) not in listed for file in places.files):
        tables = " or ".join(printable(named.table.file.name) for named in found.values())
        of = "1 image file is" if left == 1 else f"{left} image files are"
        yield f"{of} in no row of {tables} and not read; a row with an empty label has an image without one"


def named_images(table: Table, places: Places, columns: Columns, key: str) -> Named:
    """The images of a table. Raises UserError where it has no column of them, names none, or one twice."""
    name = _image_column(table, places, columns, key)
    cells = table.cells(name)
    files = [places.find(cell, table.stem, table.row(number)) for number, cell in enumerate(cells)]
    if cells and not any(files):
        raise UserError(
            f"{key}.columns.image: no cell of column {printable(name)} of {table.shown} names an image below "
            f"{printable(places.folder)}; the first is {printable(cells[0], 80)!r}"
        )
    seen: dict[Path, int] = {}
    for number, file in enumerate(files):
        if file is not None and (before := seen.setdefault(file, number)) != number:
            raise UserError(
                f"{key}.path: rows {before + 1} and {number + 1} of {table.shown} name the same image, "
                f"{printable(cells[number], 80)}; allowed: one row per image"
            )
    return Named(table, name, files)


def _image_column(table: Table, places: Places, columns: Columns, key: str) -> str:
    usual = tuple(name for wanted in IMAGE_COLUMNS for name in table.names if _plain(name) == wanted)
    name = _column(table, columns.image, usual, "image", key)
    if name:
        return name
    first = table.rows[0] if table.rows else []
    some = next(
        (n for n, cell in zip(table.names, first, strict=False) if places.find(cell, table.stem, table.row(0))),
        "COLUMN",
    )
    problem = f"{key}.path: {table.shown} has no column of images; it has {printable(', '.join(table.names))}: "
    raise Unnamed.of(problem, "name one", f"name one in {key}.columns.image, {printable(some)} say", {"image": some})


def _plain(name: str) -> str:
    return bare(name).replace(" ", "")


def _column(table: Table, wanted: str | Literal[False] | None, usual: tuple[str, ...], what: str, key: str) -> str:
    schema = pa.schema([(name, pa.string()) for name in table.names])
    return column_named(schema, wanted, usual, what, table.file, key)


# -- what lies beside them ---------------------------------------------------------------------------------------------


def typed(cells: Sequence[str]) -> tuple[pa.ChunkedArray, int]:
    """(cells as integers, as numbers or as text, null where they are empty; how many are): as whatever all of those
    mean that say something. A leading zero makes text.
    """
    said: list[Any] = [cell.strip() or None for cell in cells]
    known = [cell for cell in said if cell is not None]
    kind = pa.string()
    if known and all(map(INTEGER.fullmatch, known)):
        kind, said = pa.int64(), [None if cell is None else int(cell.partition(".")[0]) for cell in said]
    elif known and all(map(NUMBER.fullmatch, known)):
        kind, said = pa.float64(), [None if cell is None else float(cell) for cell in said]
    return pa.chunked_array([pa.array(said, kind)]), len(said) - len(known)


def read_beside(splits: Mapping[str, Named], columns: Columns, key: str) -> Beside:
    """Labels, clients and groups of the splits; sorted text of all of them together are the classes.

    Raises:
        UserError: a column that is not there, values that cannot be labels, clients or groups.
    """
    empty: dict[str, Empty] = {}
    found: dict[str, tuple[pa.Array, dict[str, Values | None]]] = {}
    for split, named in splits.items():
        if split == "test" and named is splits["train"]:
            found[split] = found["train"]
            continue
        labels, empty_labels = _labels(named.table, columns, key)
        empty[NO_LABEL] = empty.get(NO_LABEL, Empty()) + empty_labels
        whose: dict[str, Values | None] = {}
        for what, meaning in NAMED.items():
            whose[what], cells = _whose(named.table, getattr(columns, what), what, key, split == "test")
            empty[f"{what}: {meaning}"] = empty.get(f"{what}: {meaning}", Empty()) + cells
        found[split] = labels, whose
    texts = label_texts([labels for labels, _ in found.values()])
    rows = {
        split: Rows(numbered(labels, texts, key, "table"), whose["client"], whose["group"])
        for split, (labels, whose) in found.items()
    }
    return Beside(rows, texts, None, empty)


def _labels(table: Table, columns: Columns, key: str) -> tuple[pa.Array, Empty]:
    """Labels as of ``label_values``, and the cells without one; no row has one where there is no such column."""
    usual = tuple(name for wanted in LABEL_COLUMNS for name in table.names if bare(name) == bare(wanted))
    name = _column(table, columns.label, usual, "label", key)
    if not name:
        return pa.array(np.full(len(table.rows), -1, np.int64)), Empty()
    column, empty = typed(table.cells(name))
    if empty == len(column):
        return pa.array(np.full(len(column), -1, np.int64)), Empty(empty, empty)
    labels, cells = label_values(column, f"column {printable(name)} of {table.shown}", key)
    return labels, Empty(empty, cells.all)


def _whose(table: Table, wanted: str | None, what: str, key: str, tests: bool) -> tuple[Values | None, Empty]:
    """Who holds the images, or whom they show; None where nobody asks. Test images need no groups."""
    if wanted is None:
        return None, Empty()
    if what == "group" and tests and wanted not in table.names:
        return [None] * len(table.rows), Empty()
    name = _column(table, wanted, (), what, key)
    column, empty = typed(table.cells(name))
    values, cells = whose_values(column, what, f"column {printable(name)} of {table.shown}", key)
    return values, Empty(empty, cells.all)
