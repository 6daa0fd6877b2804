"""The splits of a tree of folders: which images lie in them, and the class and the client that folders name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.text import composed, printable
from rayfed_ssl.data.readers.folders.layouts import TEST_FOLDERS, Layout, instead, layout_error, not_read
from rayfed_ssl.data.readers.folders.names import (
    CLASS_DEPTH,
    class_of,
    client_of,
    folder_at,
    folders_between,
    known_names,
    refuse_twins,
    test_place,
)
from rayfed_ssl.data.readers.split_names import split_folders
from rayfed_ssl.data.readers.walking import entries, images_below, images_beside

NAMED = {"classes": 1, "clients": 2, "clients_flat": 1, "flat": 0}  # layout -> levels of folders whose names are read
ANNOTATIONS = "val_annotations.txt"  # names the classes of Tiny-ImageNet's validation images


@dataclass(frozen=True)
class Split:
    """One split's files, with the class and the client of each (None: unknown), and the files that name classes."""

    folder: Path
    files: list[Path]
    classes: list[str | None]
    clients: list[str | None]
    named_in: tuple[Path, ...] = ()

    def rows(self, chosen: NDArray[np.int64]) -> Split:
        """Only these rows."""
        columns = (self.files, self.classes, self.clients)
        files, classes, clients = ([column[row] for row in chosen] for column in columns)
        return Split(self.folder, files, classes, clients)

    def read_as(self, layout: Layout) -> Split:
        """The split, without classes if the layout has none."""
        return self if layout in CLASS_DEPTH else replace(self, classes=[None] * len(self.files))

    def add(self, folder: Path, client: str, key: str) -> None:
        """Add the images of a client below ``folder``, in which folders are classes. Raises UserError if it cannot be
        walked, or if two classes have the same name.
        """
        files = images_below(folder, key)
        refuse_twins(files, folder, 1, key)
        self.files.extend(files)
        self.classes.extend(folder_at(file, folder, 0) for file in files)
        self.clients.extend(composed(client) for _ in files)


def train_split(path: Path, layout: Layout, key: str) -> Split:
    """The images below ``train/``. Raises UserError if there are none."""
    train = split_folders(path, key)["train"]
    files = images_below(train, key)
    if not files:
        raise layout_error(path, layout, f"has no images below {printable(train.name)}/{instead(train)}", key)
    refuse_twins(files, train, NAMED[layout], key)
    classes = [class_of(file, train, layout) for file in files]
    clients = [client_of(file, train, layout) for file in files]
    return Split(train, files, classes, clients)


def test_splits(
    path: Path, layout: Layout, class_names: tuple[str, ...], client_names: tuple[str, ...], key: str
) -> dict[str, Split]:
    """Split -> its images, for each test folder that holds any; the one that runs measure on is the first."""
    folders = split_folders(path, key)
    annotated = layout in CLASS_DEPTH and "val" in folders and (folders["val"] / ANNOTATIONS).is_file()
    found = {"val": _annotated(folders["val"], key)} if annotated else {}
    for name in TEST_FOLDERS:
        if name in found or name not in folders or not (files := images_below(folders[name], key)):
            continue
        known = layout != "flat" and not annotated  # if val/ has annotations, folders of test/ are no classes
        refuse_twins(files, folders[name], NAMED[layout] if known else 0, key)
        below = [folders_between(file, folders[name]) if known else () for file in files]
        places = [test_place(inner, class_names, client_names) for inner in below]
        split = Split(folders[name], files, [label for _, label in places], [client for client, _ in places])
        found[name] = split.read_as(layout)
    return found


def _annotated(folder: Path, key: str) -> Split:
    """Tiny-ImageNet's validation images, whose classes are in a text file."""
    text = (folder / ANNOTATIONS).read_bytes().decode(errors="surrogateescape")
    annotated = dict(composed(line).split("\t")[:2] for line in text.splitlines() if "\t" in line)
    files = images_below(folder, key)
    classes = [annotated.get(composed(file.name)) for file in files]
    return Split(folder, files, classes, [None] * len(files), (folder / ANNOTATIONS,))


def clients_with_splits(path: Path, folders: list[Path], key: str) -> dict[str, dict[str, Path]]:
    """Client -> split -> its folder. Raises UserError for a client with images outside of its splits, but no
    ``train/``.
    """
    refuse_twins((folder / "images" for folder in folders), path, 1, key)
    found = {folder.name: splits for folder in folders if (splits := split_folders(folder, key))}
    unsplit = (folder.name for folder in folders if folder.name not in found and images_below(folder, key))
    if name := next(unsplit, ""):
        raise layout_error(path, "clients", f"has {printable(name)}/ without train/ or test/ in it", key)
    for client in (name for name, splits in found.items() if "train" not in splits):
        if beside := [name for name, _ in images_beside(path / client, found[client].values(), key)]:
            called = printable(beside[0]) + "/" if beside[0] else "images"
            problem = f"has {called} in {printable(client)}/, which has no train/: is it to be train/?"
            raise layout_error(path, "clients", problem, key)
    return found


def beside_clients(path: Path, folders: list[Path], key: str) -> list[str]:
    """A line on images beside the clients' splits, if there are any."""
    beside, loose = [], len(entries(path, key)[0])
    for client in folders:
        for name, count in images_beside(client, split_folders(client, key).values(), key):
            beside += [(f"{client.name}/{name}", count)] if name else []
            loose += 0 if name else count
    return not_read(beside + ([("", loose)] if loose else []), ["the clients' splits"])


def maybe_class(train: Split, beside: list[tuple[str, int]], layout: Layout) -> str:
    """The end of a message if ``train/`` has no class or client in it, and may be one itself, like the folders beside
    it; else "".
    """
    if layout == "flat" or known_names(train.classes + train.clients) or not any(folder for folder, _ in beside):
        return ""
    meant = "class" if layout == "classes" else "client"
    name = printable(train.folder.name)
    return f"; if {name}/ is a {meant} like them, rename it: a folder of that name is taken for the training split"
