"""Images in folders: ``train/`` and ``test/`` (or ``val/``) below one root.

``data.layout: classes`` (default)
    ``train/<class>/.../x.jpg``: the first folder is the class, deeper ones do not matter. Images directly in ``train/``
    are unlabelled (-1).
``data.layout: clients``
    ``train/<client>/<class>/.../x.jpg``: the first folder is the client, for the partition ``folders``; the second is
    the class. Images directly in a client's folder are unlabelled.

The test folder is ``<class>/.../x.jpg`` in both layouts. It may be absent only where no training image is labelled.
Class numbers follow the sorted names of the training classes. Files and folders whose name begins with a dot, and files
that are no images by their suffix, are ignored; links are followed.

Tiny-ImageNet-200 works as unpacked: ``train/<wnid>/images/*.JPEG``, and ``val/images/*.JPEG`` with the classes in
``val/val_annotations.txt`` (its ``test/`` is unlabelled and is passed over). ImageNet-100: merge ``train.X1`` to
``train.X4`` into ``train/<wnid>/`` and rename ``val.X`` to ``val/<wnid>/``. MiniImageNet as published splits by *class*
(64/16/20); evaluation needs test images of the training classes, so split each class's 600 images instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.images import Listing, Payload, Source

Layout = Literal["classes", "clients"]
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
TEST_FOLDERS = ("test", "val")


def folder_source(path: Path, layout: Layout, limits: dict[str, int | None], key: str) -> Source:
    """The source below ``path``. Raises UserError for missing folders, no images, a test class that is not trained."""
    train = path / "train"
    if not train.is_dir():
        raise UserError(
            f"{key}.path: {path} has no folder train/; wanted train/ and test/ (or val/) with images in them"
        )
    files = _images(train)
    if not files:
        raise UserError(f"{key}.path: no images below {train}; known suffixes: {' '.join(sorted(SUFFIXES))}")
    depth = 1 if layout == "clients" else 0
    classes = [_folder(file, train, depth) for file in files]
    class_names = tuple(sorted({name for name in classes if name is not None}))
    test_folder, test_files, test_classes = _test_split(path, class_names, key)

    def listing(split: str) -> Listing:
        if split == "test":
            return _listing(test_files, test_classes, class_names, limits["test"], key, test_folder)
        clients = [_folder(file, train, 0) for file in files] if layout == "clients" else None
        return _listing(files, classes, class_names, limits["train"], key, train, clients)

    return Source(tuple(files + test_files), listing)


def _images(folder: Path) -> list[Path]:
    """All image files below a folder, sorted by path."""
    found: list[Path] = []
    for where, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        known = (name for name in names if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES)
        found += [Path(where, name) for name in known]
    return sorted(found)


def _folder(file: Path, root: Path, depth: int) -> str | None:
    """The name of the folder ``depth`` levels below ``root`` on the way to ``file``; None if the file comes first."""
    folders = file.relative_to(root).parts[:-1]
    return folders[depth] if len(folders) > depth else None


def _test_split(path: Path, class_names: tuple[str, ...], key: str) -> tuple[Path, list[Path], list[str | None]]:
    if (path / "val" / "val_annotations.txt").is_file():
        folder = path / "val"
        lines = (folder / "val_annotations.txt").read_text().splitlines()
        annotated = dict(line.split("\t")[:2] for line in lines if "\t" in line)
        files = _images(folder)
        return folder, files, [annotated.get(file.name) for file in files]
    for folder in (path / name for name in TEST_FOLDERS):
        if folder.is_dir() and (files := _images(folder)):
            return folder, files, [_folder(file, folder, 0) for file in files]
    if class_names:
        raise UserError(f"{key}.path: {path} has no images in test/ or val/; labelled images need a test split")
    return path / "test", [], []


def _listing(
    files: list[Path],
    classes: list[str | None],
    class_names: tuple[str, ...],
    limit: int | None,
    key: str,
    folder: Path,
    clients: list[str | None] | None = None,
) -> Listing:
    unknown = sorted({name for name in classes if name is not None} - set(class_names))
    if unknown:
        raise UserError(f"{key}.path: {folder} holds the class {unknown[0]}, which no training image has")
    rows = np.arange(len(files))
    if limit is not None and limit < len(files):
        rows = np.linspace(0, len(files) - 1, limit).astype(np.int64)
    group_names = tuple(sorted({name for name in clients or () if name is not None}))
    groups = None if clients is None else _numbers(clients, group_names)[rows]

    def read() -> Iterator[tuple[str, Payload]]:
        return ((str(files[row]), files[row]) for row in rows)

    return Listing(_numbers(classes, class_names)[rows], class_names, read, groups, group_names)


def _numbers(names: list[str | None], known: tuple[str, ...]) -> NDArray[np.int64]:
    """The position of each name among the known ones; -1 for None."""
    number = {name: position for position, name in enumerate(known)}
    return np.array([-1 if name is None else number[name] for name in names], dtype=np.int64)
