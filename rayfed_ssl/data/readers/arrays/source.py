"""Reads images from NumPy arrays: an ``.npz`` file, or a folder of ``.npy`` files.

``arrays.names`` says which arrays are read: MedMNIST's ``train_images``, ``train_labels``, ``val_images`` and so on,
Keras' ``x_train``, ``y_train``, ``x_test``, ``y_test``, or ``images`` (``x``, ``data``) with or without ``labels``
(``y``); ``data.columns`` names others, and the arrays of clients, groups and splits. Test images are those of ``test``,
or else of ``val``, or those of ``data.test_split``; if there are none, a fixed fifth of each class becomes the test
split, as for one Parquet file. Labels are (N,) or (N, 1), and mean the same as in a Parquet column; or (N, L), each row
zeros and one 1, whose place is the label.

Images are (N, H, W), (N, H, W, C) with 1, 3 or 4 channels, or (N, C, H, W) with 1 or 3 if nothing else can be meant; a
fourth channel is transparency. If ``data.channels`` is neither 1 nor 3, they have so many bands, (N, H, W, C) or
(N, C, H, W). If ``data.bands`` chooses some, they have at least these, along the axis that cannot be a side of images.
They are uint8, or bool (0 and 255); other numbers are scaled by ``data.range``, or, if they are grey, by each image's
own smallest and largest value. Volumes, pickles and flattened rows are refused.

Labels, clients and groups are read as a whole, images row by row. Beside what waits to be decoded
(``threads.WAITING_BYTES``), a few megabytes of an ``.npz`` file are in memory, and nothing of ``.npy`` files, which are
mapped. An array in an ``.npz`` file whose axes are in Fortran's order is read as a whole.

Shape legend: N images, H height, W width, C channels, L labels of an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding.bands import Bands, band_range_unknown
from rayfed_ssl.data.decoding.bit_depth import HIGH_BIT_DEPTH_TYPES, range_unknown
from rayfed_ssl.data.images import Source, are_bands
from rayfed_ssl.data.readers import split_column
from rayfed_ssl.data.readers.arrays.files import Header, arrays_at, header
from rayfed_ssl.data.readers.arrays.images import ImageArray, image_array
from rayfed_ssl.data.readers.arrays.names import WHOLE, listed, parsed, roles, tests_of
from rayfed_ssl.data.readers.column_values import (
    Empty,
    Values,
    label_texts,
    label_values,
    no_labels,
    numbered,
    whose_values,
)
from rayfed_ssl.data.readers.columns import Columns
from rayfed_ssl.data.readers.ownership import ungrouped
from rayfed_ssl.data.readers.split_names import to_test_on
from rayfed_ssl.data.readers.split_rows import NAMED, NO_LABEL, Beside, Rows, RowSplits
from rayfed_ssl.data.readers.walking import of_container

COLUMN_TYPES = "biufSU"  # kinds of NumPy's types that are labels, clients and groups: numbers and text


@dataclass(frozen=True)
class Arrays:
    """The arrays that are read: ``images`` by split, and ``beside`` by what they hold ("label", "client", "group",
    "split") and by split. Messages call the source ``shown``; ``unread`` are the names of other arrays and other parts
    of the file.
    """

    shown: str
    images: dict[str, ImageArray]
    beside: dict[str, dict[str, Header]]
    unread: tuple[str, ...]

    def files(self, splits: Mapping[str, str]) -> tuple[Path, ...]:
        """The files that hold the arrays of the splits that are the values of ``splits``."""
        headers = [self.images[split].header for split in splits.values()]
        headers += [arrays[split] for arrays in self.beside.values() for split in splits.values() if split in arrays]
        return tuple(dict.fromkeys(header.place.file for header in headers))


def arrays_source(
    path: Path,
    limits: Mapping[str, int | None],
    key: str,
    columns: Columns | None = None,
    test_split: str | None = None,
    ranged: bool = False,
    channels: int = 3,
    bands: Bands | None = None,
) -> Source:
    """The source at ``path``. Its check raises UserError if no test image can be held out, and for labels of the test
    split that no training image has.

    Args:
        test_split: the split that is tested on; None: ``test``, else ``val``.
        ranged: whether ``data.range`` is set, without which colours and bands of more than 8 bits cannot be read.
        channels: ``data.channels``, which says whether images have bands.
        bands: which bands of an image are read; None: all.
    Raises:
        UserError: there are no arrays of images, names are ambiguous, shapes or types are not read, a file is damaged,
            or ``test_split`` is not there.
    """
    columns = columns or Columns()
    arrays = open_arrays(path, columns, key, channels, bands)
    if columns.split is not None:
        return _divided(arrays, limits, key, columns, test_split, ranged, channels)
    first = next(iter(arrays.images))
    test = tests_of(arrays.images, test_split, arrays.shown, key)
    splits = {"train": first, "test": test or first}
    for images in (arrays.images[split] for split in splits.values()):
        _check_range(images, ranged, channels, key)
    rows = RowSplits(
        lambda: _of_both(read_beside(arrays, [*splits.values()], columns, key), splits),
        lambda split, chosen: arrays.images[splits[split]].images(chosen, key),
        None if test else "arrays",
        limits,
        key,
    )
    tests = arrays.images[splits["test"]].header.called
    return Source(
        arrays.files(splits),
        rows.listing,
        notes=_notes(arrays, splits, columns, key, channels),
        check=lambda: rows.check(arrays.shown, tests),
        alone=rows.alone if test is None and first != WHOLE else None,
    )


def _check_range(images: ImageArray, ranged: bool, channels: int, key: str) -> None:
    """Raise UserError for colours and bands of more than 8 bits, unless they are ``ranged``."""
    if not ranged and images.channels > 1 and images.header.dtype.name in HIGH_BIT_DEPTH_TYPES:
        unknown = band_range_unknown if are_bands(channels) else range_unknown
        problem = f"{images.header.called} holds {unknown(images.header.dtype, key)}"
        raise UserError(f"{key}.path: {problem}").setting("range")


def _divided(
    arrays: Arrays,
    limits: Mapping[str, int | None],
    key: str,
    columns: Columns,
    test_split: str | None,
    ranged: bool,
    channels: int,
) -> Source:
    """As ``arrays_source``, for arrays of which one says which images train and which test."""
    images, said = arrays.images[WHOLE], arrays.beside["split"][WHOLE]
    _check_range(images, ranged, channels, key)
    numbers, notes = split_column.rows_of_splits(
        split_cells(arrays, key), said.name, printable(said.place.file), test_split, key
    )
    rows = {split: np.array(numbers.get(split, numbers["train"]), np.int64) for split in ("train", "test")}

    def read() -> Beside:
        beside = read_beside(arrays, [WHOLE], columns, key)
        return replace(beside, splits={split: _taken(beside.splits[WHOLE], own) for split, own in rows.items()})

    splits = RowSplits(
        read,
        lambda split, chosen: images.images(rows[split][chosen], key),
        None if "test" in numbers else "arrays",
        limits,
        key,
    )
    return Source(
        arrays.files({"train": WHOLE, "test": WHOLE}),
        splits.listing,
        notes=[*notes, *_notes(arrays, {"train": WHOLE, "test": WHOLE}, columns, key, channels)],
        check=lambda: splits.check(arrays.shown, f"the split in {said.called}"),
    )


def split_cells(arrays: Arrays, key: str) -> list[str]:
    """The split (N,) that an array says of each image. Raises UserError unless it holds text."""
    said = arrays.beside["split"][WHOLE]
    column = _column(said, key)
    if not pa.types.is_string(column.type):
        raise UserError(
            f"{key}.columns.split: {said.called} is of type {column.type}; splits are text: train, test or val"
        )
    return [str(cell) for cell in column.to_pylist()]


def _taken(rows: Rows, numbers: NDArray[np.int64]) -> Rows:
    """The rows with these numbers."""
    clients, groups = (
        None if values is None else [values[number] for number in numbers] for values in (rows.clients, rows.groups)
    )
    return Rows(rows.labels[numbers], clients, groups)


def open_arrays(path: Path, columns: Columns, key: str, channels: int = 3, bands: Bands | None = None) -> Arrays:
    """The arrays at ``path``, of which only headers are read; ``channels`` and ``bands`` are as in ``arrays_source``.

    Raises:
        UserError: as in ``arrays_source``; also if the arrays of one split have different lengths.
    """
    shown = printable(path)
    if path.is_file() and (advice := of_container(path)):
        raise UserError(f"{key}.path: {shown} is no .npz file{advice}")
    places, others = arrays_at(path, key)
    named = roles(tuple(places), columns, shown, key)

    def headers(names: Mapping[str, str]) -> dict[str, Header]:
        return {split: header(name, places[name], key) for split, name in names.items()}

    images = {split: image_array(array, key, channels, bands) for split, array in headers(named.images).items()}
    beside = {"label": headers(named.labels), "client": headers(named.clients), "group": headers(named.groups)}
    beside["split"] = {} if named.split is None else headers({WHOLE: named.split})
    for what, columns_of in beside.items():
        for split, array in columns_of.items():
            _check_column(array, what, images[split], key)
    return Arrays(shown, images, beside, (*named.unread, *others))


def _notes(arrays: Arrays, splits: Mapping[str, str], columns: Columns, key: str, channels: int) -> list[Note | str]:
    """Lines on fourth channels, and on splits and arrays that are not read."""
    notes: list[Note | str] = []
    for images in (arrays.images[split] for split in dict.fromkeys(splits.values())):
        if images.channels == 4 and not are_bands(channels):
            notes.append(
                f"{images.header.called} has four channels: the fourth is taken for transparency; {key}.channels=4 "
                "reads four bands"
            )
    for split, images in arrays.images.items():
        if split not in splits.values():
            used = arrays.images[splits["test"]].header.name
            notes.append(
                f"{printable(images.header.name, 80)} ({len(images)} images) is not used: {printable(used, 80)} is "
                f"there{to_test_on(split, 'it', key)}"
            )
    if arrays.unread:
        verb = "is" if len(arrays.unread) == 1 else "are"
        notes.append(f"{listed(arrays.unread)} {verb} not read; {key}.columns says which arrays are")
    if columns.group is None and key == "data":
        notes += ungrouped([parsed(name)[0] for name in arrays.unread], splits["train"] == splits["test"], key, "array")
    return notes


# -- what lies beside them ---------------------------------------------------------------------------------------------


def _check_column(array: Header, what: str, images: ImageArray, key: str) -> None:
    """Raise UserError for an array of labels, clients or groups that is not one number or text per image."""
    shape = array.shape
    if shape and shape[0] != len(images):
        raise UserError(
            f"{key}.path: {array.called} has {shape[0]} {what}s, {printable(images.header.name, 80)} {len(images)} "
            "images; allowed: as many"
        )
    if what == "label" and _may_be_one_hot(array):
        return
    if (
        array.dtype.kind in COLUMN_TYPES
        and array.dtype.itemsize <= 8 * 2**10
        and (len(shape) == 1 or shape[1:] == (1,))
    ):
        return
    found = f"shape {shape} and type {printable(array.dtype.name)}"
    if what == "label":
        raise no_labels(array.called, found, key)
    allowed = "text" if what == "split" else "text or integers"
    raise UserError(f"{key}.columns.{what}: {array.called} is of {found}; {what}s are {allowed}, (N,) or (N, 1)")


def read_beside(arrays: Arrays, splits: Sequence[str], columns: Columns, key: str) -> Beside:
    """The labels, clients and groups of these splits. If labels are text, the sorted labels of all splits are the
    classes.

    Raises:
        UserError: values cannot be labels, clients or groups, or a file is damaged.
    """
    empty, labels = dict[str, Empty](), dict[str, pa.Array]()
    whose: dict[str, dict[str, Values | None]] = {what: {} for what in NAMED}
    for split in dict.fromkeys(splits):
        labels[split], cells = _labels(arrays, split, key)
        empty[NO_LABEL] = empty.get(NO_LABEL, Empty()) + cells
        for what, meaning in NAMED.items():
            whose[what][split], cells = _whose(arrays, split, what, columns, key)
            name = f"{what}: {meaning}"
            empty[name] = empty.get(name, Empty()) + cells
    texts = label_texts([*labels.values()])
    rows = {
        split: Rows(numbered(values, texts, key, "array"), whose["client"][split], whose["group"][split])
        for split, values in labels.items()
    }
    return Beside(rows, texts, None, empty)


def _of_both(beside: Beside, splits: Mapping[str, str]) -> Beside:
    """The same with the splits renamed to "train" and "test", which ``splits`` maps to their own names. Both may be one
    split.
    """
    return replace(beside, splits={name: beside.splits[split] for name, split in splits.items()})


def _labels(arrays: Arrays, split: str, key: str) -> tuple[pa.Array, Empty]:
    """A split's labels as ``label_values`` returns them, and how many cells have none. Without an array of labels, all
    images are unlabelled.
    """
    array = arrays.beside["label"].get(split)
    if array is None:
        return pa.array(np.full(len(arrays.images[split]), -1, np.int64)), Empty()
    return label_values(_one_hot(array, key) if _may_be_one_hot(array) else _column(array, key), array.called, key)


def _may_be_one_hot(array: Header) -> bool:
    """Whether an array of labels has a column for each class."""
    return array.dtype.kind in "biuf" and len(array.shape) == 2 and array.shape[1] > 1


def _one_hot(array: Header, key: str) -> pa.ChunkedArray:
    """The place (N,) of the 1 in each row (L,). Raises UserError for rows that are not zeros and one 1."""
    values = array.whole(key)
    is_one = values == 1
    odd = np.flatnonzero(~(is_one | (values == 0)).all(axis=1) | (is_one.sum(axis=1) != 1))
    if len(odd):
        found = f"shape {array.shape} and type {printable(array.dtype.name)}"
        raise no_labels(
            array.called, found, key, f"of several columns each row has one 1 and zeros, unlike row {odd[0]}; "
        )
    return pa.chunked_array([pa.array(is_one.argmax(axis=1))])


def _whose(arrays: Arrays, split: str, what: str, columns: Columns, key: str) -> tuple[Values | None, Empty]:
    """The client or the group (``what``) of each image of a split, and how many have none; None if no key names such an
    array. Test images need no groups.
    """
    if getattr(columns, what) is None:
        return None, Empty()
    array = arrays.beside[what].get(split)
    if array is None:
        if what == "group" and split not in (WHOLE, "train"):
            return [None] * len(arrays.images[split]), Empty()
        raise UserError(
            f"{key}.columns.{what}: found {printable(repr(getattr(columns, what)))}, of which "
            f"{printable(arrays.images[split].header.name, 80)} has none; it has "
            f"{listed(array.name for array in arrays.beside[what].values())}"
        )
    return whose_values(_column(array, key), what, array.called, key)


def _column(array: Header, key: str) -> pa.ChunkedArray:
    """The values (N,) of an array as a column of numbers or text. Raises UserError for a damaged file, and for bytes
    that are not UTF-8.
    """
    values = array.whole(key).reshape(-1)
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{key}.path: {array.called} holds text that is not UTF-8 ({error.reason})") from error
    if values.dtype.kind == "U":
        return pa.chunked_array([pa.array(values.tolist(), pa.string())])
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    return pa.chunked_array([pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))])
