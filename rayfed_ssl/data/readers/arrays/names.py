"""Finds by their names which arrays are images, labels, clients and groups, and of which split.

An array's name says what it holds and of which split, such as MedMNIST's ``train_images`` or Keras' ``x_train``, or, if
there are no splits, only what it holds, such as ``images``. What it holds is one of the usual words, in any case, or
what ``data.columns`` says, which may also be an array's whole name. Splits are called as folders are
(``split_names.NAMES``): ``train``, ``test``, ``val`` and so on. If two names could mean the same, none is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import nearest, printable
from rayfed_ssl.data.readers.column_values import Unnamed
from rayfed_ssl.data.readers.columns import Columns
from rayfed_ssl.data.readers.split_names import split_named

USUAL = {"image": ("images", "x", "data"), "label": ("labels", "y"), "client": (), "group": ()}
WHOLE = "all"  # the split of arrays whose names say none
TEST_SPLITS = ("test", "val")
MOST_NAMED = 12  # arrays that a message names
ALLOWED = "train_images, val_images, test_images; x_train, x_test; or images, x or data alone"


@dataclass(frozen=True)
class Roles:
    """Which arrays hold what: ``images``, ``labels``, ``clients`` and ``groups`` map a split, or ``WHOLE``, to the
    array's name. The training split, or ``WHOLE``, is the first. Splits may lack everything but images. ``split`` is
    the array that says which of ``WHOLE`` train and which test. ``unread`` are the names of all other arrays.
    """

    images: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    clients: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    split: str | None = None


def roles(names: Sequence[str], columns: Columns, shown: str, key: str) -> Roles:
    """What the arrays with these names hold; messages call the source ``shown``. Raises UserError if no array holds
    images, or if a name is ambiguous.
    """
    if isinstance(columns.label, tuple):
        raise UserError(
            f"{key}.columns.label: found a list of columns; {shown} has arrays, allowed: the name of one of labels (N,)"
        )
    arrays = {what: _named(names, what, getattr(columns, what), shown, key) for what in USUAL}
    images = arrays["image"]
    if not images:
        problem = f"{key}.path: {shown} has no array of images; it has {listed(names)}; allowed: {ALLOWED}; or "
        raise Unnamed.of(problem, "name them", f"name them in {key}.columns.image", {"image": "ARRAY"})
    if WHOLE in images and len(images) > 1:
        raise UserError(
            f"{key}.path: {shown} has the images {listed(images.values())}: in splits, and in none; name one of both "
            f"in {key}.columns.image"
        )
    if WHOLE not in images and "train" not in images:
        raise UserError(f"{key}.path: {shown} has the images {listed(images.values())}, and none to train on")
    for what, by_split in arrays.items():
        if lonely := [name for split, name in by_split.items() if split not in images]:
            raise UserError(
                f"{key}.path: {shown} has {listed(lonely)} ({what}s) without images of the same split; it has the "
                f"images {listed(images.values())}; name others in {key}.columns"
            )
    if columns.split is not None:
        _check_split(columns.split, names, images, shown, key)
    first = next(split for split in (WHOLE, "train") if split in images)
    order = (first, *(split for split in TEST_SPLITS if split in images))
    read = {name for by_split in arrays.values() for name in by_split.values()}
    unread = tuple(name for name in names if name not in read and name != columns.split)
    in_order = {split: images[split] for split in order}
    return Roles(in_order, arrays["label"], arrays["client"], arrays["group"], unread, columns.split)


def _check_split(wanted: str, names: Sequence[str], images: Mapping[str, str], shown: str, key: str) -> None:
    """Raise UserError unless the array ``wanted`` is there, and the images' names are of no split."""
    if wanted not in names:
        raise UserError(
            f"{key}.columns.split: found {printable(repr(wanted))}; {shown} has the arrays {listed(names)}"
            f"{nearest(wanted, names, 1)}"
        )
    if WHOLE not in images:
        raise UserError(
            f"{key}.columns.split: found {printable(repr(wanted))}; {shown} has the images {listed(images.values())}, "
            "which are of a split by their names; allowed: null"
        )


def _named(
    names: Sequence[str], what: str, wanted: str | Literal[False] | None, shown: str, key: str
) -> dict[str, str]:
    """Split -> the name of the array that holds ``what``; empty for false, and if no array has a usual name. Raises
    UserError for a name that is not there, and for two arrays of one split.
    """
    if wanted is False:
        return {}
    if wanted is not None and wanted in names:
        return {WHOLE: wanted}
    split_of = {name: parsed(name) for name in names}
    if wanted is None:
        found = [name for name in names if split_of[name][0].lower() in USUAL[what]]
    else:
        found = [name for name in names if split_of[name][0] == wanted]
        if not found:
            raise UserError(
                f"{key}.columns.{what}: found {printable(repr(wanted))}; {shown} has the arrays {listed(names)}"
                f"{nearest(wanted, [*names, *(word for word, _ in split_of.values())], 1)}"
            )
    of: dict[str, str] = {}
    words = {split_of[name][0] for name in found}
    for name in found:
        if len(words) > 1 or of.setdefault(split_of[name][1], name) != name:
            raise UserError(
                f"{key}.path: {shown} has several arrays that may be its {what}s: {listed(found)}; name those that are "
                f"in {key}.columns.{what}"
            )
    return of


def parsed(name: str) -> tuple[str, str]:
    """What an array with a name such as ``train_images`` or ``x_train`` holds, and its split, or ``WHOLE``."""
    first, _, rest = name.partition("_")
    if rest and (split := split_named(first)):
        return rest, split
    rest, _, last = name.rpartition("_")
    if rest and (split := split_named(last)):
        return rest, split
    return name, WHOLE


def holds_images(names: Iterable[str]) -> bool:
    """Whether one of these is a usual name of an array of images."""
    return any(parsed(name)[0].lower() in USUAL["image"] for name in names)


def tests_of(images: Collection[str], test_split: str | None, shown: str, key: str) -> str | None:
    """The split that is tested on: ``test_split``, else ``test``, else ``val``; None if there is none. Raises UserError
    for a ``test_split`` that is not there.
    """
    if test_split is None:
        return next((split for split in TEST_SPLITS if split in images), None)
    split = split_named(test_split)
    if split not in TEST_SPLITS or split not in images:
        has = listed(split for split in images if split in TEST_SPLITS)
        raise UserError(f"{key}.test_split: found {printable(repr(test_split))}; {shown} has {has}")
    return split


def listed(names: Iterable[str]) -> str:
    """The first of these names, and how many more there are; "none" if there are none."""
    all_names = list(names)
    more = f" and {len(all_names) - MOST_NAMED} more" if len(all_names) > MOST_NAMED else ""
    return ", ".join(printable(name, 40) for name in all_names[:MOST_NAMED]) + more or "none"
