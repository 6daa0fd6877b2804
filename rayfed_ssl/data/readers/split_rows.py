"""Splits whose images are rows with a label, a client and a group beside each, as in Parquet files, tables and arrays:
which rows a split lists, and which are held out if there are no test images.

Shape legend: n images of a split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.data.holdout import TEST_SHARE, held_out_notes, stratified_halves
from rayfed_ssl.data.images import NONE_HELD_OUT, Listing, Payload
from rayfed_ssl.data.readers.column_values import Empty, Unnamed, Values, gaps
from rayfed_ssl.data.readers.limits import FIRST_ROWS, first_rows, of_all, unseen_classes
from rayfed_ssl.data.readers.ownership import (
    numbered_clients,
    numbered_groups,
    refuse_alike,
    refuse_mixed,
    shared_notes,
    untrained_notes,
)
from rayfed_ssl.data.source_notes import Line

NAMED = {"client": "nobody's", "group": "each is one of its own"}  # columns, and what an empty cell means
NO_LABEL = "label: unlabelled"
SEVERAL = "several labels, a 1 in several columns"


@dataclass(frozen=True)
class Rows:
    """A split before decoding: ``labels`` (n,), -1 if unknown; ``clients`` and ``groups`` are the values of the client
    and the group column, None if there is no such column.
    """

    labels: NDArray[np.int64]
    clients: Values | None
    groups: Values | None


@dataclass(frozen=True)
class Beside:
    """What the source says of the images of both splits: labels, clients and groups.

    ``texts`` are the classes if labels are text. ``given`` are the names that the files give their classes; None if
    they give none. ``empty`` counts the cells that say nothing, by what these mean. ``several`` is the number of images
    with several labels, if columns are a class each.
    """

    splits: Mapping[str, Rows]
    texts: tuple[str, ...]
    given: tuple[str, ...] | None
    empty: Mapping[str, Empty]
    several: int = 0

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes: the labels that are text, else the names that the files give, else numbers."""
        if self.texts or self.given is not None:
            return tuple(map(printable, self.texts)) or self.given or ()
        return tuple(str(number) for number in range(1 + max(rows.labels.max(initial=-1) for rows in self._rows)))

    def notes(self, counted: str) -> tuple[Note, ...]:
        """Lines on empty cells, on images with several labels, and on gaps between labels without names; ``counted``
        is added where they count images. Cells that are all null, none of them blank text, are meant so: no line.
        """
        notes = tuple(
            Note.shareable(plural(cells.all, "image has", "images have") + f" an empty {what}", counted)
            for what, cells in self.empty.items()
            if cells.blank
        )
        if self.several:
            text = plural(self.several, "image has", "images have") + f" {SEVERAL}"
            more = f"{counted}: every combination is read as a class of its own, and naming one of them counts as wrong"
            notes += (Note.shareable(text, more),)
        named = self.texts or self.given is not None
        return notes if named else notes + gaps([rows.labels for rows in self._rows], counted)

    @property
    def _rows(self) -> tuple[Rows, ...]:
        return tuple(self.splits.values())


@dataclass(frozen=True)
class RowSplits:
    """The splits "train" and "test" of a source of rows, read when they are first needed.

    ``read`` reads labels, clients and groups; without a test split, both splits are all rows. ``images`` yields (name,
    image) for rows of a split, whose numbers ascend. ``undivided`` is set if there is no test split, so that a fifth of
    each class is held out: it is what notes call the source, such as "one Parquet file".
    """

    read: Callable[[], Beside]
    images: Callable[[str, NDArray[np.int64]], Iterator[tuple[str, Payload]]]
    undivided: str | None
    limits: Mapping[str, int | None]
    key: str

    @cached_property
    def beside(self) -> Beside:
        return self.read()

    @cached_property
    def groups(self) -> dict[str, NDArray[np.int64] | None]:
        return numbered_groups({name: split.groups for name, split in self.beside.splits.items()})

    @cached_property
    def halves(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows to train on and those held out, if there is no test split."""
        only = self.beside.splits["train"]
        clients = numbered_clients(only.clients, only.clients)[0]
        return stratified_halves(only.labels, TEST_SHARE, clients, self.groups["train"])

    def check(self, shown: str, tests: str) -> None:
        """Raise UserError if no test image can be held out, or if the test split has labels or clients that do not fit
        the training images, or if clients or groups are text in one file and numbers in another. Messages call the
        source ``shown`` and its test split ``tests``.
        """
        splits = self.beside.splits
        groups = [rows.groups for rows in splits.values() if rows.groups is not None]
        whole = f"; {self.key}.columns.group holds whole groups out, or none" if groups else ""
        refuse_mixed(chain.from_iterable(groups), f"{self.key}.columns.group")
        refuse_mixed(splits["train"].clients or (), f"{self.key}.columns.client")
        if self.undivided and (splits["train"].labels >= 0).any() and not len(self.halves[1]):
            raise Unnamed.of(
                f"{self.key}.path: {shown} {NONE_HELD_OUT}{whole}; ",
                "reading no label needs none",
                f"{self.key}.columns.label=false reads no label and needs none",
                {"label": False},
            )
        _check_test(splits["train"], splits["test"], self.beside.texts, tests, self.key)
        refuse_alike(splits["train"].clients or (), self._strangers(), f"{self.key}.columns.client")

    def listing(self, split: str) -> Listing:
        """The rows of a split; if there is no test split, the rows that are trained on, or those that are held out."""
        return self._listing(split, self.undivided)

    def alone(self) -> Listing:
        """All training rows; none is held out."""
        return self._listing("train", None)

    def _listing(self, split: str, undivided: str | None) -> Listing:
        splits, limit = self.beside.splits, self.limits[split]
        labels, named, groups = splits[split].labels, self.beside.class_names, self.groups[split]
        clients, client_names = numbered_clients(splits["train"].clients, splits[split].clients)
        counted = of_all(self.limits, *(self.halves if undivided else [rows.labels for rows in splits.values()]))
        chosen = np.arange(len(labels))
        notes: tuple[Line, ...] = () if split == "test" else self.beside.notes(counted)
        if undivided:
            chosen = self.halves[1 if split == "test" else 0]
            held_out = held_out_notes(labels, self.halves[1], named, groups, undivided, counted)
            notes = () if split == "test" else held_out + notes
        elif split == "train" and not self.undivided:
            notes += shared_notes(first_rows(self.groups, self.limits), "data.columns.group")
            notes += untrained_notes(self._strangers()[: self.limits["test"]])
        notes += unseen_classes(split, labels[chosen], np.arange(len(chosen))[:limit], FIRST_ROWS)
        chosen = chosen[:limit]
        return Listing(
            labels[chosen],
            named,
            lambda: self.images(split, chosen),
            None if clients is None else clients[chosen],
            client_names,
            notes,
            None if groups is None else groups[chosen],
        )

    def _strangers(self) -> Values:
        """The client of each test image, if it has no training images; else None."""
        splits = self.beside.splits
        known = {*(splits["train"].clients or ()), None}
        return [None if client in known else client for client in splits["test"].clients or ()]


def _check_test(train: Rows, test: Rows, texts: tuple[str, ...], shown: str, key: str) -> None:
    """Raise UserError for labels of the test split that the training split lacks."""
    if not len(train.labels):
        return  # no training images: reported as such
    known = np.unique(train.labels[train.labels >= 0])
    unknown = np.setdiff1d(test.labels[test.labels >= 0], known)
    if len(unknown):
        what = f"class {printable(texts[unknown[0]], 80)}" if texts else f"label {unknown[0]}"
        if not len(known):
            raise UserError(
                f"{key}.path: {shown} has labels, and no training image has; a probe learns from labelled training "
                f"images: {key}.columns.label=false trains without labels, and evaluate --data measures by others"
            )
        raise UserError(
            f"{key}.path: {shown} holds the {what}, which no training image has; take its images out, or let some of "
            "them train"
        )
