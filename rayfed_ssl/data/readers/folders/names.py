"""Reads from the names of folders and files an image's class, client and group; numbers these names.

Names are read in Unicode's normal form C, so that a name is the same wherever its folder was made: macOS may spell an
accented letter as two characters. Two folders side by side that then have the same name are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import composed, printable
from rayfed_ssl.data.decoding import dicom
from rayfed_ssl.data.readers.folders.layouts import WITH_CLIENTS, Layout, some

ATTRIBUTES = "dicom:"  # ``data.group`` begins with it if it names attributes, and is no regular expression
CLIENT_NAME = re.compile(
    r"(hospital|clinic|site|client|cent(?:er|re)|institut(?:e|ion)|scanner|device|silo|node|party)"
    r"(?:[ _-]?\d+|[ _-][a-z])",
    re.IGNORECASE,
)
CLASS_DEPTH = {"classes": 0, "clients": 1}  # layout -> folders above the class; other layouts have no classes


def known_names(names: list[str | None]) -> tuple[str, ...]:
    """The different names, sorted, without None."""
    return tuple(sorted({name for name in names if name is not None}))


def numbers_of(names: list[str | None], known: tuple[str, ...]) -> NDArray[np.int64]:
    """The position of each name among the known ones; -1 for None."""
    number = {name: position for position, name in enumerate(known)}
    return np.array([-1 if name is None else number[name] for name in names], dtype=np.int64)


def folders_between(file: Path, root: Path) -> tuple[str, ...]:
    """The names of the folders between ``root`` and ``file``."""
    return tuple(composed(name) for name in file.relative_to(root).parts[:-1])


def folder_at(file: Path, root: Path, depth: int) -> str | None:
    """The name of the folder ``depth`` levels below ``root`` on the way to ``file``; None if the file comes first."""
    folders = file.relative_to(root).parts[:-1]
    return composed(folders[depth]) if len(folders) > depth else None


def class_of(file: Path, root: Path, layout: Layout) -> str | None:
    """The folder that is the class of a file below ``root``; None if there is none."""
    return folder_at(file, root, CLASS_DEPTH[layout]) if layout in CLASS_DEPTH else None


def client_of(file: Path, root: Path, layout: Layout) -> str | None:
    """The folder that is the client of a file below ``root``; None if there is none."""
    return folder_at(file, root, 0) if layout in WITH_CLIENTS else None


def expression(pattern: str) -> str:
    """The pattern itself. Raises ValueError unless it is a regular expression, or names attributes of DICOM."""
    if pattern.startswith(ATTRIBUTES):
        if not re.fullmatch(r"\w+(/\w+)*", pattern.removeprefix(ATTRIBUTES)):
            raise ValueError("must be dicom: and keywords of attributes with / between, such as dicom:PatientID")
        return pattern
    try:
        re.compile(composed(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression ({error})") from None
    return pattern


def groups_of(files: Sequence[Path], root: Path, pattern: str, key: str) -> list[str | None]:
    """Whom or what each image shows; None if that is not found. It is what the regular expression ``pattern`` matches
    in the image's path below ``root``, or what its brackets hold, joined by ``/``. If ``pattern`` begins with
    ``ATTRIBUTES``, it is the values of these attributes in a DICOM file.

    Raises:
        UserError: the expression matches nothing in any path, no file has the attributes, or they cannot be read.
    """
    if pattern.startswith(ATTRIBUTES):
        return _attributes(files, pattern.removeprefix(ATTRIBUTES).split("/"), root, key)
    search = re.compile(composed(pattern)).search
    paths = [composed(file.relative_to(root).as_posix()) for file in files]
    groups = [None if match is None else _held(match) or None for match in map(search, paths)]
    if paths and not any(groups):
        raise UserError(
            f"{key}.group: found {pattern!r}, which matches nothing in any image's path below {printable(root)}, such "
            f"as {printable(paths[0])}; allowed: a regular expression that finds whom an image shows, or null"
        )
    return groups


def _attributes(files: Sequence[Path], keywords: Sequence[str], root: Path, key: str) -> list[str | None]:
    """As ``groups_of``, for attributes. Only the header of a file is read, as far as the last attribute."""
    prefix = f"{key}.group: found {ATTRIBUTES + '/'.join(keywords)!r}"
    if "pydicom" not in dicom.installed():
        raise UserError(f"{prefix}, which needs pydicom; {dicom.NEEDED}")
    if unknown := dicom.unknown_attribute(keywords):
        near = dicom.like(unknown)
        raise UserError(
            f"{prefix}; {unknown} must be the keyword of a DICOM attribute of text or numbers, such as PatientID"
            + (f"; did you mean {near}?" if near else "")
        )
    groups = [dicom.attributes_of(file, keywords) for file in files]
    if groups and not any(groups):
        raise UserError(
            f"{prefix}, which no image below {printable(root)} has; allowed: attributes that some have, or null"
        )
    return groups


def _held(match: re.Match[str]) -> str:
    """What the brackets that took part in the match hold, joined by ``/``; without brackets, what was matched."""
    return "/".join(part for part in match.groups() if part) if match.re.groups else match[0]


def refuse_twins(files: Iterable[Path], root: Path, levels: int, key: str) -> None:
    """Raise UserError if two folders side by side, at most ``levels`` below ``root`` on the way to ``files``, have the
    same name in normal form C.
    """
    spelt: dict[tuple[str, ...], tuple[str, ...]] = {}
    for folder in dict.fromkeys(file.parent for file in files):
        parts = folder.relative_to(root).parts[:levels]
        for length in range(1, len(parts) + 1):
            above, name = parts[: length - 1], parts[length - 1]
            if spelt.setdefault((*above, composed(name)), parts[:length]) != parts[:length]:
                raise UserError(
                    f"{key}.path: {printable(root.joinpath(*above))} holds two folders called {printable(name, 80)}, "
                    "spelt in two normal forms of Unicode (NFC and NFD); allowed: one of each name: rename or merge "
                    "them"
                )


def undecided(files: list[Path], classes: list[str | None], root: Path, key: str) -> str:
    """Why the folders below ``root`` that are taken for classes may be no classes, and which key says what they are; ""
    if there is no doubt. There is one if each of two or more folders holds the same two or more folders.
    """
    inner = _inner_folders(files, classes, root)
    if len(shared := _in_each(inner)) < 2:
        return ""
    return (
        f"{key}.path: each of the folders {some(sorted(inner))} in {printable(root)} holds folders {some(shared)}, so "
        f"the tree does not say which are the classes; allowed: {key}.layout=clients if the outer ones are clients, "
        f"such as hospitals, and the inner ones classes; {key}.layout=clients_flat if the outer ones are clients, and "
        f"the inner ones no classes, but patients or dates; {key}.layout=classes if the outer ones are classes, and "
        f"the inner ones mean nothing, or are patients, which {key}.group finds"
    )


def _inner_folders(files: list[Path], classes: list[str | None], root: Path) -> dict[str, set[str | None]]:
    """Class -> the names of the folders in it that images lie in, with None for images that lie in none."""
    inner: dict[str, set[str | None]] = {}
    for file, label in zip(files, classes, strict=True):
        if label is not None:
            inner.setdefault(label, set()).add(folder_at(file, root, 1))
    return inner


def _in_each(inner: dict[str, set[str | None]]) -> list[str]:
    """The folders that every class holds; none if there is only one class."""
    held = set.intersection(*inner.values()) if len(inner) > 1 else set[str | None]()
    return sorted(name for name in held if name is not None)


def _called_like_clients(names: list[str], key: str) -> list[str]:
    """A line if two or more folders that are taken for classes all have names like those of clients, such as
    ``hospital_a`` and ``hospital_b``.
    """
    words = {match[1].lower() if (match := CLIENT_NAME.fullmatch(name)) else "" for name in names}
    if len(names) < 2 or len(words) > 1 or "" in words:
        return []
    return [
        f"{some(names)} are taken for classes, and are called as clients are: if they are clients, "
        f"{key}.layout=clients_flat, with which no image has a label"
    ]


def maybe_clients(
    files: list[Path], classes: list[str | None], root: Path, group: str | None, key: str, alone: bool = False
) -> list[str]:
    """A line if the folders below ``root`` that are taken for classes may be clients: because folders of two or more
    names lie in them, which mean nothing, or because of their own names. ``group`` is ``data.group``, "" if it is not
    asked for; ``alone`` says whether ``root`` is the whole tree, without splits.
    """
    inner = _inner_folders(files, classes, root)
    below = sorted({name for names in inner.values() for name in names if name is not None})
    if len(below) < 2:
        return _called_like_clients(sorted(inner), key)
    if len(inner) == 1:
        (only,) = inner
        how = f"{key}.path={printable(root / only)}" if alone else "move them one level up"
        return [
            f"{printable(only, 80)} is taken for the only class, and folders in it, {some(below)}, for none: if "
            f"these are the classes, {how}; if it is a client, and they its classes, {key}.layout=clients; if no "
            f"folder is a class, {key}.layout=flat"
        ]
    shared = _in_each(inner)
    what = f"each of them holds {some(shared)}" if len(shared) > 1 else f"folders in them, {some(below)}, for nothing"
    patients = f"; if the inner ones are patients, {key}.group" if group is None else ""
    return [
        f"{some(sorted(inner))} are taken for classes, and {what}: if they are clients, {key}.layout=clients{patients}"
    ]


def test_place(
    folders: tuple[str, ...], class_names: tuple[str, ...], client_names: tuple[str, ...]
) -> tuple[str | None, str | None]:
    """The (client, class) of a test image below these folders. If there are clients, a folder that is neither a client
    nor a class and has classes in it is a client that trains on nothing: its images have no client (None). Any other
    folder is returned as a class that is not known.
    """
    if not folders:
        return None, None
    if folders[0] in client_names:
        if len(folders) > 1 and folders[1] in class_names:
            return folders[0], folders[1]
        if folders[0] not in class_names:
            return folders[0], None if len(folders) == 1 else folders[1]
    if client_names and folders[0] not in class_names and len(folders) > 1 and folders[1] in class_names:
        return None, folders[1]
    return None, folders[0]
