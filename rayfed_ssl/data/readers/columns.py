"""Which columns of Parquet or of a table, or which arrays, hold images, labels, clients, groups and splits
(``data.columns``), and what to say of those that are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import Literal

import pyarrow as pa
from pydantic import model_validator

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.text import nearest, printable
from rayfed_ssl.data.readers import one_hot, split_column
from rayfed_ssl.data.readers.column_values import count_likely_labels
from rayfed_ssl.data.readers.ownership import bare, is_group, ungrouped
from rayfed_ssl.data.readers.split_rows import NAMED

LABEL_COLUMNS = ("label", "labels", "fine_label")
OF_IMAGES = {  # columns that describe the image itself, as ``bare`` writes them: notes leave them out
    *("id", "imageid", "index", "path", "imagepath", "file", "filename", "filepath", "url", "bytes", "format", "mode"),
    *("width", "height", "size", "split"),
}
OF_LABELS = re.compile(  # names of columns of labels, such as "Finding Labels" and class_id, not label_source
    r"(?:.*[\W_])?(?:labels?|class(?:es)?|diagnos\w*|targets?)(?:[\W_](?:ids?|names?|index))?", re.IGNORECASE
)
MOST_UNREAD = 10  # columns that a note names


class Columns(Block):
    """Which columns of Parquet or of a table hold what, or which arrays. Of ``arrays`` a name is an array's own, or
    what stands beside its split, as ``scans`` of ``train_scans`` and ``test_scans``.
    """

    image: str | None = None
    """The images; null: ``img`` or ``image``, of ``arrays`` ``images``, ``x`` or ``data``, of a ``table`` also
    ``file``, ``filename``, ``path``, ``image_id``, .. or ``id``.
    """
    label: str | tuple[str, ...] | Literal[False] | None = None
    """The labels, as integers from 0 or as text, whose sorted values are the classes; null: ``label``, ``labels`` or
    ``fine_label``, of ``arrays`` ``labels`` or ``y``, where there is one; false: none is read, and all images are
    unlabelled. Whole floats (NaN: unknown) and booleans count as integers, and empty text is no label. A list names
    columns that are a class each, with a 1 for its images, as ``[MEL,NV,BCC]``; an array may be such columns. Several
    labels per image and targets of a regression are not measured.
    """
    client: str | None = None
    """Who holds an image, as text or integers; null: nobody does. Nor where the text is empty."""
    group: str | None = None
    """Whom or what an image shows, such as the patient, as text or integers: images of one are held out together, for
    tests and by ``evaluation.select``; null: each image alone. Files of test images need no such column.
    """
    split: str | None = None
    """Which images train and which test, as ``train``, ``test`` or ``val``, in one ``table``, in Parquet files of which
    none is a test split, or in an array beside ``images`` alone; null: a fifth of each class tests.
    """

    @model_validator(mode="after")
    def _several_classes(self) -> Columns:
        """A list of labels names columns, each once."""
        if isinstance(self.label, tuple) and (len(self.label) < 2 or len({*self.label}) < len(self.label)):
            raise ValueError(
                f"label: found {printable(list(self.label), 120)}; a list names two columns or more, each once"
            )
        return self


def column_named(
    schema: pa.Schema, wanted: str | Literal[False] | None, usual: tuple[str, ...], what: str, file: Path, key: str
) -> str:
    """The column ``wanted``, or else the first of the ``usual`` names that is there; "" if none is, and for false.
    Raises UserError if ``wanted`` is not there, or if two columns have the name.
    """
    if wanted is False:
        return ""
    has = printable(", ".join(schema.names)) or "none"
    if wanted is not None and wanted not in schema.names:
        raise UserError(
            f"{key}.columns.{what}: found {printable(repr(wanted))}; {printable(file)} has the columns {has}"
            f"{nearest(wanted, schema.names, 1)}"
        )
    name = wanted if wanted is not None else next((name for name in usual if name in schema.names), "")
    if name and schema.names.count(name) > 1:
        raise UserError(f"{key}.path: {printable(file)} has the column {printable(name)} twice; it has {has}")
    return name


def unread_columns(
    names: Sequence[str],
    columns: Columns,
    single: bool,
    key: str,
    images: Sequence[str],
    labels: Sequence[str],
    values: Callable[[str], Iterable[pa.Array]],
) -> list[Note | str]:
    """Lines on columns that are not read: a column that seems to be a group, one that seems to say which images train,
    and the others, with the keys that could name them. If no labels are read, also which columns look like labels.

    Args:
        names: the columns of the file or table.
        single: whether there is one file or table, without a test split.
        images, labels: the columns that are taken for these if no key names one; the first that is there.
        values: the values of a column, in parts.
    """
    others = [name for name in names if name != columns.image]
    group = next(iter(ungrouped(others, single, key)), None) if columns.group is None else None
    asked = [what for what in ("label", *NAMED) if getattr(columns, what) is None]
    named = columns.label if isinstance(columns.label, tuple) else (columns.label,)
    read = {columns.image, *named, columns.client, columns.group, columns.split}
    for wanted, usual in ((columns.image, images), (columns.label, labels)):
        if wanted is None:
            read.add(next((name for name in usual if name in names), None))
        elif wanted is False:
            read.update(usual)
    if group is not None:
        read.add(next(name for name in others if is_group(name)))
    unsplit = dict[str, str]()
    if single and columns.split is None:
        unsplit = split_column.advice([name for name in names if name not in read], values, f"{key}.columns.split")
        read.update(unsplit)
    unread = [
        name
        for name in names
        if name not in read and bare(name) not in OF_IMAGES and not name.startswith("__index_level_")
    ]
    unread_names = [printable(name, 40) for name in unread]
    notes: list[Note | str] = [*unsplit.values(), *([] if group is None else [group])]
    if unread_names and asked:
        more = f" and {len(unread_names) - MOST_UNREAD} more" if len(unread_names) > MOST_UNREAD else ""
        subject = (
            f"column {unread_names[0]} is"
            if len(unread_names) == 1
            else f"columns {', '.join(unread_names[:MOST_UNREAD])}{more} are"
        )
        verb = "says which is" if len(asked) == 1 else "say which are"
        unlabelled = columns.label is None and not any(name in names for name in labels)
        likely = _likely_labels(unread, values, key) if unlabelled else ""
        notes.append(f"{subject} not read; {key}.columns.{', .'.join(asked)} {verb}{likely}")
    return notes


def _likely_labels(names: Sequence[str], values: Callable[[str], Iterable[pa.Array]], key: str) -> str:
    """The end of a line that says which of these columns look like a class each, or which of them look like labels,
    first those that are called so, and the key that reads them; "" if none does.
    """
    classes = one_hot.likely_classes(names, values, key)
    called = {name: OF_LABELS.fullmatch(name.strip()) is not None for name in names}
    ordered = sorted(names, key=lambda name: not called[name])[:MOST_UNREAD]
    counts = {name: count for name in ordered if (count := count_likely_labels(values(name), called=called[name]))}
    if classes and (classes.certain or not counts.keys() - {*classes.names}):
        return f"; {classes.advice}"
    if not counts:
        return ""
    likely = [f"{printable(name, 40)} ({count} values)" for name, count in list(counts.items())[:3]]
    by_key = quote(f"{key}.columns.label={printable(next(iter(counts)))}")
    return f"; {' or '.join(likely)} may be the labels: {by_key}"
