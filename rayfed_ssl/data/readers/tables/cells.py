"""The cells of a CSV, TSV or JSON Lines file, and what a column of them holds.

Files are UTF-8, with or without a byte-order mark. The first line that is not blank names the columns. Cells are
separated by commas, semicolons or tabs, whichever that line has most of outside of quotes, or as Excel's line ``sep=;``
says. Rows without any text are left out. In a ``.jsonl`` file every line is a JSON object, which is a row; its keys
name the columns. A key that is missing or null is an empty cell; numbers, true, false, lists and objects are read as
JSON writes them.

Shape legend: n rows.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import composed, in_one_line, printable

DELIMITERS = ",;\t"
LONGEST_CELL = 2**20
QUOTED = re.compile(r'"[^"]*"')
EXCELS = re.compile(r"sep=(.)\s*")
INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.0*)?")
NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
UNKNOWN = {"na", "n/a", "nan", "null", "none"}  # empty cells in a column of numbers, in any case


@dataclass(frozen=True)
class CellTable:
    """The cells of a file: the columns' names, n rows of as many cells, the line of the file that each row begins in,
    and the columns in which a cell is a list or an object.
    """

    file: Path
    names: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    nested: frozenset[str] = frozenset()

    @property
    def shown(self) -> str:
        return printable(self.file)

    @property
    def stem(self) -> str:
        """The file's name without suffix, in small letters."""
        return self.file.stem.lower()

    def cells(self, name: str) -> list[str]:
        """The cells (n,) of a column."""
        position = self.names.index(name)
        return [row[position] for row in self.rows]

    def parts(self, name: str) -> list[pa.Array]:
        """A column's values, as :func:`typed` reads them."""
        values: list[pa.Array] = typed(self.cells(name), fractions=True)[0].chunks
        return values

    def line(self, row: int) -> str:
        """What messages call a row: the line that it begins in."""
        return f"line {self.lines[row]} of {self.file}"


def read_table(file: Path, key: str) -> CellTable:
    """The table in a file. Raises UserError if it cannot be read as one, or if a row has more or fewer cells than the
    first.
    """
    shown = printable(file)
    if file.suffix.lower() == ".jsonl":
        return _json_lines(file, key)
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            delimiter, has_sep_line = _delimiter(opened)
            opened.seek(0)
            rows, lines = _filled(opened, delimiter)
    except UnicodeDecodeError as error:
        raise UserError(f"{key}.path: {shown} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{key}.path: {shown} cannot be read as a table ({printable(str(error))})") from None
    except OSError as error:
        raise UserError(f"{key}.path: {shown} cannot be read ({error.strerror})") from None
    finally:
        csv.field_size_limit(before)
    if has_sep_line:
        rows, lines = rows[1:], lines[1:]
    if not rows:
        raise UserError(f"{key}.path: {shown} is empty; its first line names the columns")
    names = tuple(composed(name.strip()) for name in rows[0])
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(names):
            raise UserError(f"{key}.path: line {line} of {shown} has {len(row)} cells, its first {len(names)}")
    return CellTable(file, names, rows[1:], lines[1:])


def _json_lines(file: Path, key: str) -> CellTable:
    """The table in a file of JSON Lines. Raises UserError if it cannot be read as one."""
    shown, rows, lines, nested = printable(file), list[dict[str, str]](), list[int](), set[str]()
    try:
        with file.open(encoding="utf-8-sig") as opened:
            for number, line in enumerate(opened, 1):
                if line.strip():
                    row, nests = _object(line, f"{key}.path: line {number} of {shown}")
                    rows.append(row)
                    lines.append(number)
                    nested |= nests
    except UnicodeDecodeError as error:
        raise UserError(f"{key}.path: {shown} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{key}.path: {shown} cannot be read ({error.strerror})") from None
    if not rows:
        raise UserError(f"{key}.path: {shown} is empty; each of its lines is an image, as a JSON object")
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return CellTable(file, names, [[row.get(name, "") for name in names] for row in rows], lines, frozenset(nested))


def _object(line: str, where: str) -> tuple[dict[str, str], set[str]]:
    """The cells of a row by column, and the columns of those that are lists or objects. Raises UserError, whose message
    begins with ``where``, if the line is no object.
    """
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise UserError(f"{where} is {printable(line.strip(), 40)}; allowed: a JSON object")
        values = {composed(name.strip()): value for name, value in row.items()}
        cells = {name: _as_cell(value) for name, value in values.items()}
        "".join((*cells, *cells.values())).encode()  # raises for half a surrogate pair, which JSON may escape
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no JSON object ({in_one_line(error)})") from None
    return cells, {name for name, value in values.items() if isinstance(value, list | dict)}


def _as_cell(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _delimiter(lines: Iterable[str]) -> tuple[str, bool]:
    """What separates the cells, by the first line that is not blank; and whether that is Excel's line ``sep=``."""
    first = next((line for line in lines if line.strip()), "")
    if excels := EXCELS.fullmatch(first):
        return excels[1], True
    return max(DELIMITERS, key=QUOTED.sub("", first).count), False


def _filled(lines: Iterable[str], delimiter: str) -> tuple[list[list[str]], list[int]]:
    """The rows that have any text, and the line that each begins in."""
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    rows, starts, begin = list[list[str]](), list[int](), 1
    for row in reader:
        if any(cell.strip() for cell in row):
            rows.append(row)
            starts.append(begin)
        begin = reader.line_num + 1
    return rows, starts


def typed(cells: Sequence[str], fractions: bool = False) -> tuple[pa.ChunkedArray, int]:
    """The cells as integers if all that are not empty are integers, as floats if all are numbers, some of them with
    ``fractions`` and these are asked for, or else as text; and how many are empty, which become null. A leading zero
    makes text, and so do more than 18 digits.
    """
    texts: list[Any] = [composed(cell.strip()) or None for cell in cells]
    known = [text for text in texts if text is not None and text.lower() not in UNKNOWN]
    whole = all(map(INTEGER.fullmatch, known))
    fractional = not whole and fractions and all(map(NUMBER.fullmatch, known)) and any("." in text for text in known)
    if not known or not (whole or fractional):
        return pa.chunked_array([pa.array(texts, pa.string())]), texts.count(None)

    def number(text: str) -> int | float:
        return int(text.partition(".")[0]) if whole else float(text)

    numbers = [None if text is None or text.lower() in UNKNOWN else number(text) for text in texts]
    return pa.chunked_array([pa.array(numbers)]), numbers.count(None)
