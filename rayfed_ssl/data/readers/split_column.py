"""A column (of a table or Parquet) or an array that says which images train and which test (``data.columns.split``).

Its values are names of splits, as folders have them: ``train`` or ``Training``, ``test``, ``val``, ``valid`` or
``validation``, in any case. The test images are those of ``test``, or those of ``val`` if no row says ``test``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.data.readers.column_values import is_text
from rayfed_ssl.data.readers.split_names import split_named, to_test_on

TESTS = ("test", "val")  # the first of them that has rows has the test images


def splits_of(cells: Iterable[str]) -> list[str | None]:
    """The split that each cell names: train, test or val; None if it names none."""
    return [split_named(cell.strip()) for cell in cells]


def rows_of_splits(
    cells: Sequence[str], name: str, file: str, wanted: str | None, key: str
) -> tuple[dict[str, list[int]], list[str]]:
    """The row numbers of "train" and, if some cell names a test split, of "test"; and lines on rows that are not used.

    Args:
        cells: the column ``name`` of ``file``.
        wanted: the split of the test images; None: the first of ``TESTS``.
    Raises:
        UserError: no row trains, or ``wanted`` has none.
    """
    splits = [split or "" for split in splits_of(cells)]
    rows: dict[str, list[int]] = {}
    for row, split in enumerate(splits):
        rows.setdefault(split, []).append(row)
    column = f"column {printable(name)} of {file}"
    has = printable(", ".join(dict.fromkeys(cell.strip() or "(empty)" for cell in cells)), 120) or "no cells"
    if "train" not in rows:
        raise UserError(f"{key}.columns.split: {column} has {has}; allowed: train for images that train, test or val")
    test = next((split for split in TESTS if split in rows), None)
    if wanted is not None and (test := split_named(wanted)) not in {*rows} - {"train", ""}:
        raise UserError(f"{key}.test_split: found {printable(repr(wanted))}; {column} has {has}")
    unused = {split: len(numbers) for split, numbers in rows.items() if split not in ("train", test)}
    notes = [
        f"{plural(count, 'row', 'rows')} of {column} {'is' if count == 1 else 'are'} {split or 'of no split'} and not "
        + (f"used{to_test_on(split, 'them', key)}" if split else "used")
        for split, count in unused.items()
    ]
    return {"train": rows["train"]} | ({} if test is None else {"test": rows[test]}), notes


def advice(names: Iterable[str], values: Callable[[str], Iterable[pa.Array]], by_key: str) -> dict[str, str]:
    """The first of these columns that seems to be one of splits, with a line that says that it is not read, and that
    ``by_key`` reads it. In such a column every cell says train, test or val, some say train, and others do not.

    Args:
        values: a column's values, in parts.
    """
    for name in names:
        if counts := _counts(values(name)):
            counted = ", ".join(f"{split}: {count}" for split, count in counts.items())
            shown = printable(name, 40)
            line = f"column {shown} says which images train ({counted} rows) and is not read; {by_key}={shown} reads it"
            return {name: line}
    return {}


def _counts(parts: Iterable[pa.Array]) -> Counter[str]:
    """Split -> number of rows, for a column that names splits alone, "train" among them; empty for any other column."""
    found = Counter[str]()
    try:
        for part in parts:
            kind = part.type.value_type if pa.types.is_dictionary(part.type) else part.type
            if not is_text(kind):
                return Counter()
            for entry in part.value_counts():
                text = entry["values"].as_py()
                if text is None or (split := split_named(text.strip())) is None:
                    return Counter()
                found[split] += entry["counts"].as_py()
    except (UnicodeDecodeError, pa.ArrowException, OSError):
        return Counter()  # it is only looked at for a hint
    return found if len(found) > 1 and "train" in found else Counter()
