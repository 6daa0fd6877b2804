"""The folder trees that images are read from, and the messages for other trees."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding.formats import SUFFIXES
from rayfed_ssl.data.readers.split_names import split_folders
from rayfed_ssl.data.readers.walking import unread_below

Layout = Literal["classes", "clients", "clients_flat", "flat"]
WITH_CLIENTS = ("clients", "clients_flat")  # layouts whose first folder is the client
TEST_FOLDERS = ("test", "val")  # keys of ``split_folders``: the first that holds images has the test images
MOST_NAMED = 5  # folders that a line names
TREES = {
    "classes": (
        "train/<class>/x.jpg with test/<class>/x.jpg (or val/), or <class>/x.jpg, of which a fifth is held out; "
        "unlabelled: train/x.jpg, or x.jpg"
    ),
    "clients": (
        "train/<client>/<class>/x.jpg with test/<class>/x.jpg or test/<client>/<class>/x.jpg (or val/); unlabelled: "
        "train/<client>/x.jpg; all of these also without train/ and test/, or with <client>/train/ and <client>/test/"
    ),
    "clients_flat": (
        "train/<client>/.../x.jpg, all of them unlabelled; also without train/ and test/, or with <client>/train/ and "
        "<client>/test/"
    ),
    "flat": "train/.../x.jpg, or .../x.jpg, all of them unlabelled",
}


def layout_error(path: Path, layout: Layout, problem: str, key: str, *, trees: bool = True) -> UserError:
    """The error of a tree that is not read: what is wrong, what is below ``path``, and, unless ``trees`` is False,
    because ``problem`` says which key helps, which trees are accepted. It is shorter if there is no file at all.
    """
    if empty := _empty(path):
        first = TREES[layout].partition("; ")[0]
        return UserError(f"{key}.path: {printable(path)} {empty}; must hold images, as {first}")
    accepted = "; ".join(
        f"with {key}.layout={name}: {TREES[name]}" for name in sorted(TREES, key=lambda n: n != layout)
    )
    line = f"{key}.path: {printable(path)} {problem}; found {_found(path, key)}"
    return UserError(f"{line}; accepted {accepted}" if trees else line).setting("layout")


def _empty(path: Path) -> str:
    """What is wrong with a folder that is empty or holds empty folders alone; "" if it holds a file or a link."""
    for folder, folders, files in os.walk(path):
        if files or any(os.path.islink(os.path.join(folder, name)) for name in folders):
            return ""
    return "holds empty folders alone" if any(path.iterdir()) else "is an empty folder"


def _found(path: Path, key: str, most: int = 5) -> str:
    """What lies below a folder, in a few words: its first entries, and the first entries of its splits."""

    def shown(folder: Path) -> list[str]:
        try:
            entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        except OSError:
            return []
        names = [printable(entry.name, 40) + ("/" if entry.is_dir() else "") for entry in entries[:most]]
        return names + ([f"and {len(entries) - most} more"] if len(entries) > most else [])

    words = shown(path)
    splits = split_folders(path, key)
    for folder in (splits[name] for name in ("train", *TEST_FOLDERS) if name in splits):
        words += [f"{printable(folder.name)}/{inner}" for inner in shown(folder)[:3]]
    return ", ".join(words) or "nothing"


def instead(folder: Path) -> str:
    """The end of a message on a folder without images: the suffixes that images have, and which files are there."""
    unread = unread_below(folder)
    return f" (known suffixes: {' '.join(sorted(SUFFIXES))})" + (f"; {unread}" if unread else "")


def some(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """The first of these names, one with a comma in quotation marks, and how many more there are."""
    return _first([*map(_quoted, names)], most)


def _quoted(name: str) -> str:
    return f'"{name}"' if "," in name else name


def _first(words: Sequence[str], most: int = MOST_NAMED) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return printable(", ".join(words[:most]), 120) + more


def not_read(beside: Sequence[tuple[str, int]], read: Sequence[str], advice: str = "") -> list[str]:
    """A line on images beside the folders that are read, if there are any.

    Args:
        beside: (folder, number of images in it); the folder is "" for images that lie in none.
        read: the folders that are read.
        advice: ends the line.
    """
    if not beside:
        return []
    unread = [
        f"{_quoted(folder)}/ ({count} images)" if folder else f"{count} images in no folder" for folder, count in beside
    ]
    verb = "is" if len(beside) == 1 and beside[0][0] else "are"
    in_all = f" ({sum(count for _, count in beside)} images in all)" if len(beside) > MOST_NAMED else ""
    used = printable(" and ".join(read))
    return [f"{_first(unread)}{in_all} {verb} not used: the images are those of {used}{advice}"]
