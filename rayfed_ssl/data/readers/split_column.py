"""A column, of a table or of Parquet, that says which images train and which test (``data.columns.split``).

Its values are names of splits, as of folders: ``train`` or ``Training``, ``test``, ``val``, ``valid`` or
``validation``, in any case. The test images are those of ``test``, without one those of ``val``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.data.readers.column_values import is_text
from rayfed_ssl.data.readers.split_names import split_named, to_test_on

TESTS = ("test", "val")  # the first that has rows


def splits_of(cells: Iterable[str]) -> list[str | None]:
    """The split that each cell names: train, test or val, None where it names none."""
    return [split_named(cell.strip()) for cell in cells]


def rows_of_splits(
    cells: Sequence[str], name: str, file: str, wanted: str | None, key: str
) -> tuple[dict[str, list[int]], list[str]]:
    """(the rows of "train" and of "test", none of "test" where no cell names one; lines on rows that are not used).

    Args:
        cells: the column ``name`` of ``file``.
        wanted: the split of the test images; None: the first of ``TESTS``.
    Raises:
        UserError: no row trains, or ``wanted`` has none.
    """
    splits = [split or "" for split in splits_of(cells)]
    rows = {split: [row for row, mine in enumerate(splits) if mine == split] for split in dict.fromkeys(splits)}
    column = f"column {printable(name)} of {file}"
    has = printable(", ".join(dict.fromkeys(cell.strip() or "(empty)" for cell in cells)), 120) or "no cells"
    if "train" not in rows:
        raise UserError(f"{key}.columns.split: {column} has {has}; allowed: train for images that train, test or val")
    test = next((split for split in TESTS if split in rows), None)
    if wanted is not None and (test := split_named(wanted)) not in {*rows} - {"train", ""}:
        raise UserError(f"{key}.test_split: found {printable(repr(wanted))}; {column} has {has}")
    left = {split: len(mine) for split, mine in rows.items() if split not in ("train", test)}
    notes = [
        f"{plural(count, 'row', 'rows')} of {column} {'is' if count == 1 else 'are'} {split or 'of no split'} and not "
        + (f"used{to_test_on(split, 'them', key)}" if split else "used")
        for split, count in left.items()
    ]
    return {"train": rows["train"]} | ({} if test is None else {"test": rows[test]}), notes


def advice(names: Iterable[str], values: Callable[[str], Iterable[pa.Array]], by_key: str) -> dict[str, str]:
    """The first of these columns whose every cell says train, test or val, and some train and others not, with a line:
    it is not read; ``by_key`` reads it.

    Args:
        values: a column's values, in parts.
    """
    for name in names:
        if counts := _counts(values(name)):
            said = ", ".join(f"{split}: {count}" for split, count in counts.items())
            shown = printable(name, 40)
            line = f"column {shown} says which images train ({said} rows) and is not read; {by_key}={shown} reads it"
            return {name: line}
    return {}


def _counts(parts: Iterable[pa.Array]) -> Counter[str]:
    """Split -> rows, of a column that says splits alone, "train" among them; else nothing."""
    found = Counter[str]()
    try:
        for part in parts:
            kind = part.type.value_type if pa.types.is_dictionary(part.type) else part.type
            if not is_text(kind):
                return Counter()
            for each in part.value_counts():
                said = each["values"].as_py()
                if said is None or (split := split_named(said.strip())) is None:
                    return Counter()
                found[split] += each["counts"].as_py()
    except (UnicodeDecodeError, pa.ArrowException, OSError):
        return Counter()  # nobody asked for it
    return found if len(found) > 1 and "train" in found else Counter()
