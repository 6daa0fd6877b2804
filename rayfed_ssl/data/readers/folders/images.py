"""All images below a folder, whether or not they could train and test: for a table with a row per image."""

from __future__ import annotations

from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.readers.folders.layouts import TEST_FOLDERS, Layout, instead, not_read
from rayfed_ssl.data.readers.folders.names import class_of, folder_at, known_names, maybe_clients, refuse_twins
from rayfed_ssl.data.readers.folders.splits import (
    NAMED,
    Split,
    beside_clients,
    clients_with_splits,
    maybe_class,
    test_splits,
    train_split,
)
from rayfed_ssl.data.readers.split_names import maybe_splits, split_folders
from rayfed_ssl.data.readers.walking import entries, images_below, images_beside, unread_below

Row = tuple[Path, str | None, str | None]  # file, split, class; None where there is none


def every_image(path: Path, layout: Layout, key: str) -> tuple[list[Row], list[str]]:
    """All images below ``path``, sorted within a split, and lines on images and files that are not among them.

    If there is a folder ``train/``, or one in every client's folder, images lie as for training; but test folders may
    be absent or hold other classes. If there is none, and there are other folders than test folders, there are no
    splits, and folders below ``path`` mean what they mean below ``train/``: the class, or the client and then the
    class. Images of ``val/`` are the split "val" if ``test/`` has images, else "test".

    Raises:
        UserError: there are no images, links lead in a circle, or an entry cannot be read.
    """
    found: dict[str, Split] = {}
    notes: list[str] = []
    splits, folders = split_folders(path, key), entries(path, key)[1]
    if "train" in splits:
        train = train_split(path, layout, key)
        found = {"train": train} | test_splits(
            path, layout, known_names(train.classes), known_names(train.clients), key
        )
        beside = images_beside(path, splits.values(), key)
        read = [f"{splits[name].name}/" for name in ("train", *TEST_FOLDERS) if name in splits]
        notes = not_read(beside, read, maybe_class(train, beside, layout))
    elif layout != "flat" and folders and all("train" in split_folders(folder, key) for folder in folders):
        found = {name: Split(path, [], [], []) for name in ("train", *TEST_FOLDERS)}
        for client, inner in clients_with_splits(path, folders, key).items():
            for name, folder in inner.items():
                found[name].add(folder, client, key)
        notes = beside_clients(path, folders, key)
    else:
        files = images_below(path, key)
        if {file.relative_to(path).parts[0] for file in files} <= {folder.name for folder in splits.values()}:
            found = test_splits(path, layout, (), (), key)
        else:
            refuse_twins(files, path, NAMED[layout], key)
            classes = [class_of(file, path, layout) for file in files]
            notes = [*_maybe_clients(files, classes, path, layout, key), *filter(None, [unread_below(path)])]
            return [(file, None, label) for file, label in zip(files, classes, strict=True)], notes
    if "val" in found and not ("test" in found and found["test"].files):
        found["test"] = found.pop("val")
    rows: list[Row] = []
    for name in (name for name in ("train", *TEST_FOLDERS) if name in found):
        split = found[name].read_as(layout)
        rows += [(file, name, label) for file, label in zip(split.files, split.classes, strict=True)]
    if not rows:
        raise UserError(f"{key}.path: found no images below {printable(path)}{instead(path)}")
    if "train" in splits:
        notes += _maybe_clients(train.files, train.classes, train.folder, layout, key)
    notes += filter(None, [unread_below(*dict.fromkeys(split.folder for split in found.values()))])
    return rows, notes


def _maybe_clients(files: list[Path], classes: list[str | None], root: Path, layout: Layout, key: str) -> list[str]:
    """A line if the folders that are taken for classes may be clients. Groups are not asked for here."""
    if layout != "classes" or maybe_splits(known_names(classes)):
        return []
    return maybe_clients(files, classes, root, "", key)


def has_client_folders(path: Path, key: str) -> bool:
    """Whether every image lies two folders deep or deeper, as labelled images do with ``layout: clients``. If there is
    a folder ``train/``, only the images below it count. Raises UserError if the folders cannot be walked.
    """
    root = split_folders(path, key).get("train", path)
    files = images_below(root, key)
    return bool(files) and all(folder_at(file, root, 1) is not None for file in files)
