"""Images that a table names: a CSV, TSV or JSON Lines file with a row per image, beside the image files or above them.

``path`` is the table, or a folder with ``train.csv`` and ``test.csv`` (or ``validation.csv``, ``val.csv``,
``valid.csv``; or JSON Lines, if there is no CSV or TSV file), or a folder with ``train/metadata.csv`` and
``test/metadata.csv`` (or ``metadata.jsonl``), with the images of each below its own folder. Without a table of test
images a fixed fifth of each class is held out, as for one Parquet file. ``data.columns`` says what a column means;
``tables.cells`` reads files and cells, ``tables.images`` finds the image of a row. An image that is not there counts as
one that cannot be decoded. Image files in no row are not read, with a note.

Shape legend: n rows of a table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.images import Payload, Source
from rayfed_ssl.data.readers import split_column
from rayfed_ssl.data.readers.column_values import Unnamed
from rayfed_ssl.data.readers.columns import Columns, unread_columns
from rayfed_ssl.data.readers.ownership import bare
from rayfed_ssl.data.readers.split_names import TEST_NAMES, split_folders, to_test_on
from rayfed_ssl.data.readers.split_rows import RowSplits
from rayfed_ssl.data.readers.tables.beside import read_beside
from rayfed_ssl.data.readers.tables.cells import CellTable, read_table
from rayfed_ssl.data.readers.tables.columns import label_columns, listed_columns, named_column
from rayfed_ssl.data.readers.tables.images import Places
from rayfed_ssl.data.readers.walking import CSV, READ_TABLES

IMAGE_COLUMNS = (
    "image", "img", "file", "filename", "path", "filepath", "imagepath", "imagefile", "imagename", "imageid",
    "imageindex", "id", "imgid", "imgname", "imgpath", "imgfile", "idcode",
)  # fmt: skip
"""Columns of images that need not be named, as ``bare`` writes them."""
TESTS = (*TEST_NAMES, "testing", "valid")  # names of tables: the first that is there has the test images
PIXELS = re.compile(r"(pixel|px|p)?[ _-]?[0-9]+|[0-9]+x[0-9]+", re.IGNORECASE)  # names of columns of one pixel each
METADATA = ("metadata.csv", "metadata.jsonl")  # in a split's folder, as in image folders of the Hugging Face Hub


def tables_of(path: Path, key: str, test_split: str | None = None) -> tuple[dict[str, Path], list[str]]:
    """The table of "train" and, if there is one, of "test"; and lines on tables that are not used. Raises UserError if
    there is no table of training images, or none of ``test_split``.
    """
    shown = printable(path)
    if path.is_file():
        if test_split is not None:
            raise UserError(
                f"{key}.test_split: found {printable(repr(test_split))}; {shown} is one file, allowed: null"
            )
        return {"train": path}, []
    found = _tables_in(path, key)
    there = printable(", ".join(str(file.relative_to(path)) for file in found.values())) or "no table"
    if "train" not in found:
        hint = f"; give one of them, {printable(next(iter(found.values())))}" if found else ""
        raise UserError(f"{key}.path: {shown} has no train.csv; found {there}{hint}")
    if test_split is not None and test_split.lower() not in found.keys() - {"train"}:
        raise UserError(
            f"{key}.test_split: found {printable(repr(test_split))}; {shown} has {there}; "
            f"{printable(found['train'].relative_to(path))} trains"
        )
    chosen = (test_split or next((name for name in TESTS if name in found), "")).lower()
    others = {name: file.relative_to(path) for name, file in found.items() if name not in ("train", chosen)}
    advice = to_test_on(next(iter(others)), "it", key) if len(others) == 1 else ""
    line = f"{printable(', '.join(map(str, others.values())))} {'is' if len(others) == 1 else 'are'} not used{advice}"
    splits = {"train": found["train"]} | ({"test": found[chosen]} if chosen else {})
    return splits, [line] if others else []


def _tables_in(path: Path, key: str) -> dict[str, Path]:
    """The tables in a folder by their names in small letters, without suffix. If none of them is ``train``, and the
    folder of the training split holds one of ``METADATA``, then these tables of its splits, by split. Raises UserError.
    """
    shown = printable(path)
    try:
        files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in READ_TABLES and file.is_file()]
    except OSError as error:
        raise UserError(f"{key}.path: {shown} cannot be read ({error.strerror})") from None
    found: dict[str, Path] = {}
    for file in [file for file in files if file.suffix.lower() in CSV] or files:
        if (before := found.setdefault(file.stem.lower(), file)) is not file:
            two = f"{printable(before.name)} and {printable(file.name)}"
            raise UserError(f"{key}.path: {shown} has {two}; allowed: one table of a name")
    if "train" not in found:
        places = [(split, folder / name) for split, folder in split_folders(path, key).items() for name in METADATA]
        within = {split: file for split, file in reversed(places) if file.is_file()}  # the first name of a split
        found = within if "train" in within else found
    return found


@dataclass(frozen=True)
class Named:
    """A split: its table, the column of its images, and the file that each row names, None if it is not there."""

    table: CellTable
    image: str
    files: list[Path | None]
    places: Places

    def taken(self, rows: Sequence[int]) -> Named:
        """The same with these rows of the table alone."""
        cells, lines = [self.table.rows[row] for row in rows], [self.table.lines[row] for row in rows]
        table = replace(self.table, rows=cells, lines=lines)
        return replace(self, table=table, files=[self.files[row] for row in rows])

    def images(self, chosen: NDArray[np.int64]) -> Iterator[tuple[str, Payload]]:
        """The (name, file) of the images in the rows ``chosen``."""
        cells = self.table.cells(self.image)
        for row in chosen:
            if (file := self.files[row]) is not None:
                yield str(file), file
            else:
                shown = printable(cells[row].strip(), 80) or "(empty)"
                yield f"{shown}, {self.table.line(int(row))}", self.places.absent(cells[row])


def table_source(
    path: Path,
    limits: Mapping[str, int | None],
    key: str,
    columns: Columns | None = None,
    test_split: str | None = None,
) -> Source:
    """The source at ``path``. Its check raises UserError if no test image can be held out, and for labels of the test
    split that no training image has.

    Args:
        test_split: the name of the table of the test images, or of their split in a column; None: ``test``, else
            ``validation`` or ``val``.
    Raises:
        UserError: there is no table or no column of images, no row names an image, or two rows name the same one.
    """
    columns = columns or Columns()
    found, notes = open_tables(path, key, columns, test_split)
    first = found["train"]
    splits = {"train": first, "test": found.get("test", first)}
    rows = RowSplits(
        lambda: read_beside({split: named.table for split, named in splits.items()}, columns, key),
        lambda split, chosen: splits[split].images(chosen),
        None if "test" in found else "one table",
        limits,
        key,
    )
    files = [named.table.file for named in found.values()]
    files += [file for named in found.values() for file in named.files if file is not None]
    if key == "data":
        labels = [*label_columns(first.table, columns, key)]
        names = [name for name in first.table.names if name]
        single = "test" not in found
        notes += unread_columns(names, columns, single, key, [first.image], labels, first.table.parts)
    tests = splits["test"].table.shown
    return Source(
        tuple(dict.fromkeys(files)),
        rows.listing,
        notes,
        check=lambda: rows.check(first.table.shown, tests),
        alone=rows.alone if "test" not in found and path.is_dir() else None,
    )


def open_tables(
    path: Path, key: str, columns: Columns, test_split: str | None = None
) -> tuple[dict[str, Named], list[Note | str]]:
    """The splits with their images, and lines on what is not read or is found elsewhere. Raises UserError."""
    files, unused = tables_of(path, key, None if columns.split is not None else test_split)
    read = {split: read_table(file, key) for split, file in files.items()}
    folders = {table.file.parent for table in read.values()}
    several = [table.stem for table in read.values()] if len(folders) < len(read) else []
    places = {folder: Places(folder, key, several) for folder in folders}
    found = {split: _named(table, places[table.file.parent], columns, key) for split, table in read.items()}
    _refuse_twice(found.values(), key)
    notes: list[Note | str] = [*unused, *_left_over([*places.values()], [*found.values()])]
    if columns.split is None:
        return found, notes
    splits, split_notes = _split(found, columns.split, test_split, key)
    return splits, [*notes, *split_notes]


def _split(
    found: Mapping[str, Named], wanted: str, test_split: str | None, key: str
) -> tuple[dict[str, Named], list[str]]:
    """The splits that a column of one table says, and lines on rows that are not used. Raises UserError."""
    whole = found["train"]
    name = named_column(whole.table, wanted, (), "split", key)
    if "test" in found:
        raise UserError(
            f"{key}.columns.split: found {printable(repr(wanted))}; {found['test'].table.shown} has the test images, "
            "allowed: null"
        )
    rows, notes = split_column.rows_of_splits(whole.table.cells(name), name, whole.table.shown, test_split, key)
    return {split: whole.taken(numbers) for split, numbers in rows.items()}, notes


def _left_over(places: Sequence[Places], found: Sequence[Named]) -> Iterator[str]:
    """Lines on image files that are in no row, and on cells that are paths from elsewhere."""
    tables = " or ".join(dict.fromkeys(printable(named.table.file.name) for named in found))
    for place in places:
        if elsewhere := place.elsewhere:
            cells = "1 cell is a path" if len(elsewhere) == 1 else f"{len(elsewhere)} cells are paths"
            yield (
                f"{cells} from elsewhere, such as {printable(elsewhere[0], 80)}: images whose path ends so were taken, "
                f"below {printable(place.folder)}"
            )
    listed = {os.path.abspath(file) for named in found for file in named.files if file is not None}
    if left := sum(os.path.abspath(file) not in listed for place in places for file in place.files):
        files = "1 image file is" if left == 1 else f"{left} image files are"
        yield f"{files} in no row of {tables} and not read; a row with an empty label has an image without one"


def _refuse_twice(found: Iterable[Named], key: str) -> None:
    """Raise UserError if two rows, of one table or of two, name the same image."""
    seen: dict[str, str] = {}
    for named in found:
        for row, file in enumerate(named.files):
            line = printable(named.table.line(row))
            if file is not None and (before := seen.setdefault(os.path.abspath(file), line)) is not line:
                shown = printable(
                    file.relative_to(named.places.folder) if file.is_relative_to(named.places.folder) else file
                )
                raise UserError(
                    f"{key}.path: {before} and {line} name the same image, {shown}; allowed: one row per image"
                )


def _named(table: CellTable, places: Places, columns: Columns, key: str) -> Named:
    """The images of a table, from the column that ``data.columns.image`` names, or else from the first usual one that
    names any. Raises UserError if none does.
    """
    usual = [name for wanted in IMAGE_COLUMNS for name in table.names if bare(name) == wanted]
    wanted = named_column(table, columns.image, usual, "image", key)
    lines = [table.line(row) for row in range(len(table.rows))]
    for find in (places.find_all, places.find_below):  # first columns whose paths need not be cut
        for name in [wanted] if columns.image is not None else usual:
            files = find(table.cells(name), table.stem, lines)
            if any(files) or not files:
                return Named(table, name, files, places)
    other = _names_images(table, places, {*usual, *label_columns(table, columns, key)})
    if not wanted:
        problem = f"{key}.path: {table.shown} has no column of images; it has {listed_columns(table)}: "
        if not other and _pixels(table):
            raise UserError(
                f"{problem}pixels in cells are not read; write them as an array: {key}.name=arrays reads it"
            )
        say = f", such as {printable(other)}" if other else ""
        raise Unnamed.of(problem, "name one", f"name one in {key}.columns.image{say}", {"image": other or "COLUMN"})
    hint = f"; column {printable(other)} does: {key}.columns.image={printable(other)}" if other else ""
    named = columns.image is not None or len(usual) == 1
    which = f"column {printable(wanted)}" if named else f"columns {printable(', '.join(usual))}"
    raise UserError(
        f"{key}.columns.image: no cell of {which} of {table.shown} names an image below {printable(places.folder)}; "
        f"the first is {printable(table.cells(wanted)[0], 80)!r}{hint}"
    )


def _names_images(table: CellTable, places: Places, others: Collection[str]) -> str:
    """A column, not among ``others``, whose first cell names an image; "" if there is none."""
    for name, cell in zip(table.names, table.rows[0] if table.rows else (), strict=False):
        if name and name not in others:
            try:
                if places.find(cell, table.stem, "") is not None:
                    return name
            except UserError:  # it names several
                return name
    return ""


def _pixels(table: CellTable) -> bool:
    """Whether columns have names of pixels: one is ``pixels``, or most are ``pixel0``, ``pixel1`` and so on."""
    single = sum(PIXELS.fullmatch(name) is not None for name in table.names)
    return 2 * single > len(table.names) or any(bare(name) == "pixels" for name in table.names)
