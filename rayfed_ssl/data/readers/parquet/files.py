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
from rayfed_ssl.data.readers.split_names import TEST_NAMES, is_file_of, spellings
from rayfed_ssl.data.readers.walking import FROM_TABLE, TABLES, of_container, read_by

PART = re.compile(r"(.+)-\d+-of-(\d+)(?:-[0-9a-f]+)?\.parquet")  # as the Hugging Face datasets library writes them
MOST_NAMED = 5  # of files that are not used
AT_A_TIME, BYTES_AT_A_TIME = 512, 32 * 2**20  # of rows with images: so many, of about so many bytes at most


def parts_of(path: Path, key: str, shown: str, test_split: str | None = None) -> dict[str, list[Path]]:
    """The files of each split in a folder, or the file itself; none of the test split where it is missing.

    Args:
        test_split: the name of the split that is the test; None: the first of ``TEST_NAMES``.
    Raises:
        UserError: no training files, or several folders that have some; no files of ``test_split``.
    """
    if path.is_file() and test_split is not None:
        raise UserError(f"{key}.test_split: found {printable(repr(test_split))}; {shown} is one file, allowed: null")
    if path.is_file():
        return {"train": [path], "test": []}
    homes = homes_of(path, key, shown)
    if not homes:
        raise _missing(path, shown, key)
    train, test = (
        _find(homes[0], ("train",)),
        _test_files(path, homes, TEST_NAMES if test_split is None else (test_split,)),
    )
    if test_split is not None and not test:
        raise UserError(
            f"{key}.test_split: found {printable(repr(test_split))}; {shown} has no {_wanted(printable(test_split))}, "
            f"found {_present(path)}"
        )
    if both := sorted(set(train) & set(test)):
        raise UserError(f"{key}.test_split: found {test_split!r}, and {printable(both[0].name)} is a training file")
    return {"train": train, "test": test}


def _test_files(path: Path, homes: list[Path], names: tuple[str, ...]) -> list[Path]:
    return next((found for home in (*homes, path, path / "data") if (found := _find(home, names))), [])


def other_tests(path: Path, parts: dict[str, list[Path]], key: str, shown: str) -> dict[str, list[Path]]:
    """The files of those splits of ``TEST_NAMES`` that could be the test and are not."""
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
    """The folders that hold a folder's training parts: itself, its ``data/``, or its only one that has them.

    Raises:
        UserError: several have them.
    """
    if homes := [folder for folder in (path, path / "data") if _find(folder, ("train",))]:
        return homes
    homes = sorted(folder for folder in path.iterdir() if folder.is_dir() and _find(folder, ("train",)))
    if len(homes) > 1:
        choices = printable(", ".join(f"{shown}/{home.name}" for home in homes))
        raise UserError(f"{key}.path: {shown} holds {len(homes)} data sets; give one of them: {choices}")
    return homes


def _find(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The parts of the first of ``names`` that lies in a folder: of the files in it, else of those in ``train/``."""
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
    """A line on the Parquet files below ``path`` that are of neither split, where there are any; ``advice`` ends it.
    Before it lines on parts that are missing.
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
    there: Counter[tuple[str, str]] = Counter()
    for file in dict.fromkeys(file for files in parts.values() for file in files):
        if named := PART.fullmatch(file.name):
            there[named[1], named[2]] += 1
    return tuple(
        f"{printable(name, 80)}-*-of-{total}.parquet: {count} of {int(total)} parts are there"
        for (name, total), count in there.items()
        if count < int(total)
    )


def _rows_of(file: Path, key: str) -> int:
    """How many rows a file has; none where it cannot be read, for nobody wants to read it."""
    try:
        with readable(file, key) as opened:
            return int(opened.metadata.num_rows)
    except UserError:
        return 0


def _missing(path: Path, shown: str, key: str) -> UserError:
    """What to say of a folder without training files: of these alone a fifth is held out."""
    files = sorted(path.rglob("*.parquet"))
    alone = f"{key}.path={printable(files[0])} reads it alone" if len(files) == 1 else "name the parts train-*.parquet"
    hint = f"; {alone}, and a fifth of each class is held out as test images" if files else _arrow_below(path)
    return UserError(
        f"{key}.path: {shown} lacks its train split: wanted {_wanted('train')}, found {_present(path)}{hint}"
    )


def _arrow_below(path: Path) -> str:
    """What to do with Arrow files, as ``save_to_disk`` of the Hugging Face datasets library writes them; "" without."""
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
    """A Parquet file, opened. Raises UserError where it cannot be read."""
    try:
        with pq.ParquetFile(file, pre_buffer=False) as opened:  # else all row groups lie in memory before the first
            yield opened
    except (pa.ArrowException, OSError) as error:
        reason = in_one_line(error)
        table = f"; {FROM_TABLE}" if file.suffix.lower() in {*TABLES, ".txt"} else of_container(file)
        table = (read_by(file, key) if file.suffix.lower() != ".parquet" else "") or table
        raise UserError(f"{key}.path: {printable(file)} cannot be read as Parquet ({reason}){table}") from error


def few_rows(opened: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """A file's rows in order, a few at a time, so that large images do not lie in memory all at once: no more than a
    row group, and of it what ``AT_A_TIME`` and ``BYTES_AT_A_TIME`` say.
    """
    for number in range(opened.num_row_groups):
        group = opened.metadata.row_group(number)
        most = BYTES_AT_A_TIME * group.num_rows // max(1, group.total_byte_size)
        yield from opened.iter_batches(max(1, min(AT_A_TIME, most)), row_groups=[number], columns=columns)
