"""Which client owns each image of a source, and which group (a patient, for instance) each image shows.

Shape legend: n images of a split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.data.readers.column_values import Values

GROUP_COLUMNS = {noun + suffix for noun in ("patient", "subject", "participant", "lesion") for suffix in ("", "id")}
"""Names of columns that seem to say whom or what an image shows, as ``bare`` writes them."""


def numbered_clients(train: Values | None, mine: Values | None) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """The client of each row of a split, and the names of the clients. ``train`` are the values of the training rows,
    ``mine`` those of the split's. The clients are those of the training split, numbers sorted by value, text by
    letters. A row without a client, or of one without training images, is -1.
    """
    if train is None or mine is None:
        return None, ()
    values = {client for client in train if client is not None}
    numbers = [client for client in values if isinstance(client, int)]
    known = sorted(numbers) if len(numbers) == len(values) else sorted(values, key=str)
    position = {client: number for number, client in enumerate(known)}
    clients = np.array([-1 if client is None else position.get(client, -1) for client in mine], np.int64)
    return clients, tuple(printable(client) for client in known)


def untrained_notes(clients: Sequence[str | int | None]) -> tuple[Note, ...]:
    """A line on test images of clients that train on nothing, such as a hospital kept for the test. ``clients`` has
    such a client for each test image, None for any other image.
    """
    names = sorted({str(client) for client in clients if client is not None})
    if not names:
        return ()
    count = sum(client is not None for client in clients)
    text = plural(count, f"of {len(clients)} test images is", f"of {len(clients)} test images are") + " of "
    text += "a client" if len(names) == 1 else f"{len(names)} clients"
    shown = printable(", ".join(names), 120)
    effect = "accuracies over all test images count them, those of single clients do not"
    return (Note(f"{text} without training images ({shown}): {effect}", f"{text} without training images"),)


def refuse_alike(trained: Iterable[str | int | None], strangers: Iterable[str | int | None], where: str) -> None:
    """Raise UserError for a client that only tests (``strangers``) and has almost the name of one that trains: they
    differ in capitals, blanks and ``_``, or one is text and the other a number. The message begins with ``where``.
    """
    known = {_alike(client): client for client in trained if client is not None}
    for client in sorted({client for client in strangers if client is not None}, key=str):
        if (other := known.get(_alike(client))) is not None and other != client:
            mine, theirs = (printable(repr(name), 80) for name in (client, other))
            found = f"test images are of the client {mine}, training images of {theirs}"
            raise UserError(f"{where}: {found}; allowed: one name for a client")


def refuse_mixed(values: Iterable[str | int | None], where: str) -> None:
    """Raise UserError for clients or groups that are text in one file and numbers in another: nobody knows whether '1'
    and 1 are one. The message begins with ``where``.
    """
    first: dict[type, str | int] = {}
    for value in values:
        if value is not None:
            first.setdefault(type(value), value)
    if len(first) > 1:
        text, number = first[str], first[int]
        found = f"text in one file or array ('{printable(text, 80)}'), numbers in another ({number})"
        raise UserError(f"{where}: found {found}; allowed: text in all, or numbers in all")


def _alike(client: str | int) -> str:
    """A client's name, the same for all names that are almost equal."""
    return " ".join(str(client).casefold().replace("_", " ").split())


def numbered_groups(values: Mapping[str, Sequence[str | int | None] | None]) -> dict[str, NDArray[np.int64] | None]:
    """Split -> the number of each row's group, the same in both splits; -1 if the cell is empty."""
    known = sorted({value for column in values.values() for value in column or () if value is not None}, key=str)
    number = {value: position for position, value in enumerate(known)} | {None: -1}
    return {
        split: None if column is None else np.array([number[value] for value in column], np.int64)
        for split, column in values.items()
    }


def bare(name: str) -> str:
    """A column's name in small letters, without ``_``, ``-``, ``.`` and blanks."""
    return "".join(letter for letter in name.lower() if letter not in "_-." and not letter.isspace())


def is_group(name: str) -> bool:
    """Whether a column of this name seems to say whom or what an image shows."""
    return bare(name) in GROUP_COLUMNS


def ungrouped(names: Iterable[str], single: bool, key: str, noun: str = "column") -> tuple[Note, ...]:
    """A line on the first column, or other ``noun``, whose name seems to be a group's, for when no key names one.
    ``single``: whether test images are held out of one split.
    """
    name = next((printable(name) for name in names if is_group(name)), None)
    if name is None:
        return ()
    effect = "images of one may train and test" if single else "evaluation.select may hold out images of one who trains"
    return (
        Note(
            f"{noun} {name} is not read as a group: {effect}; {quote(f'{key}.columns.group={name}')} forbids it",
            f"what seems to say whom an image shows was not read: {effect}",
        ),
    )


def shared_notes(groups: Mapping[str, NDArray[np.int64] | None], by: str) -> tuple[Note, ...]:
    """A line on test images whose groups also have training images, if there are any, or on the fact that no test image
    has a group. ``by`` is the key that groups images.
    """
    train, test = groups["train"], groups["test"]
    if train is not None and test is not None and len(test) and not (test >= 0).any():
        text = f"no test image has a group ({by}): how many show one with training images is not known"
        return (Note.shareable(text),)
    if train is None or test is None or not (shared := int(np.isin(test[test >= 0], train).sum())):
        return ()
    text = plural(shared, f"of {len(test)} test images is", f"of {len(test)} test images are")
    return (Note.shareable(f"{text} of a group ({by}) with training images"),)
