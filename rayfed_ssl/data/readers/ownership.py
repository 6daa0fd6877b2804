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

GROUP_COLUMNS = {of + number for of in ("patient", "subject", "participant", "lesion") for number in ("", "id")}
"""Names of columns that seem to say whom or what an image shows, as ``bare`` writes them."""


def numbered_clients(train: Values | None, mine: Values | None) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """(client of each row, client names): the training split's clients, sorted; numbers by value, text by letters. A
    row is nobody's, -1, where it has no client, or one without training images.
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
    """A line on test images of clients that train on nothing, such as a hospital kept for the test; ``clients`` has
    such a client of each test image, None of any other.
    """
    names = sorted({str(client) for client in clients if client is not None})
    if not names:
        return ()
    count = sum(client is not None for client in clients)
    found = plural(count, f"of {len(clients)} test images is", f"of {len(clients)} test images are") + " of "
    found += "a client" if len(names) == 1 else f"{len(names)} clients"
    shown = printable(", ".join(names), 120)
    told = "accuracies over all test images count them, those of single clients do not"
    return (Note(f"{found} without training images ({shown}): {told}", f"{found} without training images"),)


def refuse_alike(trained: Iterable[str | int | None], strangers: Iterable[str | int | None], where: str) -> None:
    """Raise UserError, after ``where``, for a client that only tests and is called as one that trains, but for
    capitals, blanks and ``_``, or for being text where the other is a number.
    """
    known = {_alike(client): client for client in trained if client is not None}
    for client in sorted({client for client in strangers if client is not None}, key=str):
        if (other := known.get(_alike(client))) is not None and other != client:
            mine, theirs = (printable(repr(name), 80) for name in (client, other))
            found = f"test images are of the client {mine}, training images of {theirs}"
            raise UserError(f"{where}: {found}; allowed: one name for a client")


def _alike(client: str | int) -> str:
    return " ".join(str(client).casefold().replace("_", " ").split())


def numbered_groups(values: Mapping[str, Sequence[str | int | None] | None]) -> dict[str, NDArray[np.int64] | None]:
    """split -> the number of each row's group, the same in both splits; -1 where the cell is empty."""
    known = sorted({value for mine in values.values() for value in mine or () if value is not None}, key=str)
    number = {value: position for position, value in enumerate(known)} | {None: -1}
    return {
        name: None if mine is None else np.array([number[value] for value in mine], np.int64)
        for name, mine in values.items()
    }


def bare(name: str) -> str:
    """A column's name in small letters, without ``_``, ``-``, ``.`` and blanks."""
    return "".join(letter for letter in name.lower() if letter not in "_-." and not letter.isspace())


def is_group(name: str) -> bool:
    """Whether a column of this name seems to say whom an image shows."""
    return bare(name) in GROUP_COLUMNS


def ungrouped(names: Iterable[str], single: bool, key: str, noun: str = "column") -> tuple[Note, ...]:
    """A line where a column, or another ``noun``, of these names seems to be a group; no group column is named."""
    found = next((printable(name) for name in names if is_group(name)), None)
    if found is None:
        return ()
    otherwise = (
        "images of one may train and test" if single else "evaluation.select may hold out images of one who trains"
    )
    return (
        Note(
            f"{noun} {found} is not read as a group: {otherwise}; {quote(f'{key}.columns.group={found}')} forbids it",
            f"what seems to say whom an image shows was not read: {otherwise}",
        ),
    )


def shared_notes(groups: Mapping[str, NDArray[np.int64] | None], by: str) -> tuple[Note, ...]:
    """A line on test images of groups that train, where there are any, or where no test image has a group; ``by`` is
    the key that groups them.
    """
    train, test = groups["train"], groups["test"]
    if train is not None and test is not None and len(test) and not (test >= 0).any():
        said = f"no test image has a group ({by}): how many show one with training images is not known"
        return (Note.shareable(said),)
    if train is None or test is None or not (shared := int(np.isin(test[test >= 0], train).sum())):
        return ()
    found = plural(shared, f"of {len(test)} test images is", f"of {len(test)} test images are")
    return (Note.shareable(f"{found} of a group ({by}) with training images"),)
