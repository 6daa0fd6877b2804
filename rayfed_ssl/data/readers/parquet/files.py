"""Finds the Parquet files of each split of a folder, and those of no split."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, printable
from rayfed_ssl.data.readers.column_values import plain
from rayfed_ssl.data.readers.split_names import TEST_NAMES, is_file_of, spellings
from rayfed_ssl.data.readers.walking import FROM_TABLE, TABLES, of_container, read_by

PART = re.compile(r"(.+)-\d+-of-(\d+)(?:-[0-9a-f]+)?\.parquet")  # names that the Hugging Face datasets library writes
MOST_NAMED = 5  # files that are not used and that a line names
AT_A_TIME, BYTES_AT_A_TIME = 512, 32 * 2**20  # rows with images that are read at once, and about how many bytes


def parts_of(path: Path, key: str, shown: str, test_split: str | None = None) -> dict[str, list[Path]]:
    """The files of the splits "train" and "test" of a folder, or the file itself as "train"; no files for "test" if
    there is no test split.

    Args:
        test_split: the name of the split that is tested on; None: the first of ``TEST_NAMES``.
    Raises:
        UserError: there are no training files, several folders have some, or there are no files of ``test_split``.
    """
    if path.is_file() and test_split is not None:
        raise UserError(f"{key}.test_split: found {printable(repr(test_split))}; {shown} is one file, allowed: null")
    if path.is_file():
        return {"train": [path], "test": []}
    homes = homes_of(path, key, shown)
    if not homes:
        raise _missing(path, shown, key)
    train = _find(homes[0], ("train",))
    test = _test_files(path, homes, TEST_NAMES if test_split is None else (test_split,))
    if test_split is not None and not test:
        raise UserError(
            f"{key}.test_split: found {printable(repr(test_split))}; {shown} has no {_wanted(printable(test_split))}, "
            f"found {_present(path)}"
        )
    if both := sorted(set(train) & set(test)):
        raise UserError(f"{key}.test_split: found {test_split!r}, and {printable(both[0].name)} is a training file")
    return {"train": train, "test": test}


def _test_files(path: Path, homes: list[Path], names: tuple[str, ...]) -> list[Path]:
    """The files of the first of ``names`` in the first folder that has any: ``homes``, ``path``, its ``data/``."""
    return next((found for home in (*homes, path, path / "data") if (found := _find(home, names))), [])


def other_tests(path: Path, parts: dict[str, list[Path]], key: str, shown: str) -> dict[str, list[Path]]:
    """The files of each split of ``TEST_NAMES`` that could be tested on and is not."""
    homes = homes_of(path, key, shown)
    found: dict[str, list[Path]] = {}
    taken = {file for files in parts.values() for file in files}
    for name in TEST_NAMES:  # the files of "val" may be those of "validation"
        files = _test_files(path, homes, (name,))
        if files and taken.isdisjoint(files):
            found[name] = files
            taken.update(files)
    return found


def homes_of(path: Path, key: str, shown: str) -> list[Path]:
    """The folders with training files: ``path`` and its ``data/``, or else the only folder in it that has some. Raises
    UserError if several folders in it have some.
    """
    if homes := [folder for folder in (path, path / "data") if _find(folder, ("train",))]:
        return homes
    homes = sorted(folder for folder in path.iterdir() if folder.is_dir() and _find(folder, ("train",)))
    if len(homes) > 1:
        choices = printable(", ".join(f"{shown}/{home.name}" for home in homes))
        raise UserError(f"{key}.path: {shown} holds {len(homes)} data sets; give one of them: {choices}")
    return homes


def _find(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The files of the first of the splits ``names`` that is in a folder: files in it, or else in folders in it that
    are called as the splits are.
    """
    here = _files_in(folder)
    for name in names:
        if found := [file for file in here if is_file_of(file.name, name)]:
            return found
    for name in names:
        if found := sorted(file for spelling in spellings(name) for file in _files_in(folder / spelling)):
            return found
    return []


def _files_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.parquet") if not file.name.startswith("."))


def _wanted(split: str) -> str:
    return f"{split}.parquet or {split}-*.parquet"


def unused(path: Path, parts: dict[str, list[Path]], key: str, advice: str = "") -> tuple[str, ...]:
    """Lines on parts that are missing, and one on the Parquet files below ``path`` that belong to neither split, if
    there are any; ``advice`` ends it.
    """
    used = {file.resolve() for files in parts.values() for file in files}
    below = [file for file in sorted(path.rglob("*.parquet")) if file.is_file() and not file.name.startswith(".")]
    others = [file for file in below if file.resolve() not in used]
    if not others:
        return incomplete(parts)
    rows = sum(_rows_of(file, key) for file in others)
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    names = ", ".join(printable(file.relative_to(path), 80) for file in others[:MOST_NAMED]) + more
    first = [(files[0].relative_to(path), " .." if len(files) > 1 else "") for files in parts.values() if files]
    read = " and ".join(f"{printable(file, 80)}{dots}" for file, dots in first)
    are = "is" if len(others) == 1 else "are"
    return (
        *incomplete(parts),
        f"{names} ({rows} rows) {are} not used: the images are those of {read}{advice}",
    )


def incomplete(parts: dict[str, list[Path]]) -> tuple[str, ...]:
    """A line for each number of parts in names like ``train-00000-of-00003.parquet`` that are not all there."""
    counts: Counter[tuple[str, str]] = Counter()
    for file in dict.fromkeys(file for files in parts.values() for file in files):
        if match := PART.fullmatch(file.name):
            counts[match[1], match[2]] += 1
    return tuple(
        f"{printable(name, 80)}-*-of-{total}.parquet: {count} of {int(total)} parts are there"
        for (name, total), count in counts.items()
        if count < int(total)
    )


def _rows_of(file: Path, key: str) -> int:
    """How many rows a file that is not used has; 0 if it cannot be read."""
    try:
        with readable(file, key) as opened:
            return int(opened.metadata.num_rows)
    except UserError:
        return 0


def _missing(path: Path, shown: str, key: str) -> UserError:
    """The error of a folder without training files, from which a fifth could be held out."""
    files = sorted(path.rglob("*.parquet"))
    alone = f"{key}.path={printable(files[0])} reads it alone" if len(files) == 1 else "name the parts train-*.parquet"
    hint = f"; {alone}, and a fifth of each class is held out as test images" if files else _arrow_below(path)
    return UserError(
        f"{key}.path: {shown} lacks its train split: wanted {_wanted('train')}, found {_present(path)}{hint}"
    )


def _arrow_below(path: Path) -> str:
    """The end of a message: what to do with Arrow files, which ``save_to_disk`` of the Hugging Face datasets library
    writes; "" if there are none.
    """
    found = next((file for file in sorted(path.rglob("*.arrow")) if file.is_file()), None)
    if found is None:
        return ""
    folder = "" if found.parent == path else f" in {printable(found.parent.relative_to(path), 80)}/"
    return (
        f"; the Arrow files{folder} are of datasets' save_to_disk: datasets.load_from_disk(FOLDER).to_parquet("
        "'train.parquet') writes those of a split as Parquet"
    )


def _present(path: Path) -> str:
    files = sorted(str(file.relative_to(path)) for file in path.rglob("*.parquet"))[:5]
    return printable(", ".join(files)) or "no Parquet file"


@contextlib.contextmanager
def readable(file: Path, key: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file, opened. Raises UserError if it cannot be read, then or within."""
    try:
        with pq.ParquetFile(file, pre_buffer=False) as opened:  # else all row groups are in memory before the first
            yield opened
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = in_one_line(error)
        hint = read_by(file, key) if file.suffix.lower() != ".parquet" else ""
        hint = hint or (f"; {FROM_TABLE}" if file.suffix.lower() in {*TABLES, ".txt"} else of_container(file))
        raise UserError(f"{key}.path: {printable(file)} cannot be read as Parquet ({reason}){hint}") from error


def sound_column(opened: pq.ParquetFile, name: str) -> pa.ChunkedArray:
    """A column of an opened file, as ``plain`` returns it; nulls that have no type, as pandas writes a column without
    values, are text. Raises an ArrowException, which ``readable`` reports, for text that is not UTF-8 and for more or
    fewer values than the file has rows.
    """
    column = opened.read(columns=[name]).column(name)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"column {name}: {error}") from error
    if len(column) != (rows := opened.metadata.num_rows):
        raise pa.ArrowInvalid(f"column {name} has {len(column)} values, the file {rows} rows")
    return column.cast(pa.string()) if pa.types.is_null(column.type) else plain(column)


def few_rows(opened: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """A file's rows in order, a few at a time, so that large images are not in memory all at once: no more than a row
    group, than ``AT_A_TIME`` rows, and than about ``BYTES_AT_A_TIME``.
    """
    for number in range(opened.num_row_groups):
        group = opened.metadata.row_group(number)
        most = BYTES_AT_A_TIME * group.num_rows // max(1, group.total_byte_size)
        yield from opened.iter_batches(max(1, min(AT_A_TIME, most)), row_groups=[number], columns=columns)
