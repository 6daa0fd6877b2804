"""Images in folders: ``train/`` and ``test/`` (or ``val/``) below one root.

``data.layout: classes`` (default)
    ``train/<class>/.../x.jpg``: the first folder is the class, deeper ones do not matter. Images directly in ``train/``
    are unlabelled (-1). The test folder is ``<class>/.../x.jpg``.
``data.layout: clients``
    ``train/<client>/<class>/.../x.jpg``: the first folder is the client, for the partition ``folders``; the second is
    the class. Images directly in a client's folder are unlabelled. The test folder holds common images
    (``test/<class>/x.jpg``), each client's own (``test/<client>/<class>/x.jpg``), or both.
``data.layout: flat``
    ``train/.../x.jpg``: no folder is a class, and no image is labelled. Test images may lie in any folders too.

The test folder may be absent only where no training image is labelled. Class numbers follow the sorted names of the
training classes. Files and folders whose name begins with a dot, and files that are no images by their suffix, are
ignored; links are followed.

Tiny-ImageNet-200 works as unpacked: ``train/<wnid>/images/*.JPEG``, and ``val/images/*.JPEG`` with the classes in
``val/val_annotations.txt`` (its ``test/`` is unlabelled and is passed over). ImageNet-100: merge ``train.X1`` to
``train.X4`` into ``train/<wnid>/`` and rename ``val.X`` to ``val/<wnid>/``. MiniImageNet as published splits by *class*
(64/16/20); evaluation needs test images of the training classes, so split each class's 600 images instead.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.images import Listing, Payload, Source

Layout = Literal["classes", "clients", "flat"]
CLASS_DEPTH = {"classes": 0, "clients": 1}  # folders above the class; with flat none is one
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
TEST_FOLDERS = ("test", "val")
ANNOTATIONS = "val_annotations.txt"  # of Tiny-ImageNet's validation images
TREES = {
    "classes": "train/<class>/x.jpg with test/<class>/x.jpg (or val/); unlabelled: train/x.jpg",
    "clients": (
        "train/<client>/<class>/x.jpg with test/<class>/x.jpg or test/<client>/<class>/x.jpg (or val/); unlabelled: "
        "train/<client>/x.jpg"
    ),
    "flat": "train/.../x.jpg, all of them unlabelled",
}
MOST_WAYS = 1000  # links may lead to one folder in so many ways


@dataclass(frozen=True)
class _Split:
    """One split's files, with the class and the client of each (None: unknown), and the file that names classes, if
    one does.
    """

    folder: Path
    files: list[Path]
    classes: list[str | None]
    clients: list[str | None]
    named_in: tuple[Path, ...] = ()


def folder_source(path: Path, layout: Layout, limits: dict[str, int | None], key: str) -> Source:
    """The source below ``path``. Its check raises UserError for labelled images without test images, and for a test
    class or client that is not trained.

    Raises:
        UserError: no folder ``train/``, no images, links in a circle, an entry that cannot be read.
    """
    train = _train_split(path, layout, key)
    class_names = _known(train.classes)
    client_names = _known(train.clients)
    test = _held_out(path, layout, class_names, client_names, key)

    def check() -> None:
        if test is not None:
            _check_trained(test, layout, class_names, client_names, key, path)
        elif class_names:
            raise _layout_error(path, layout, _untested(train, class_names, layout, key), key)

    def listing(split: str) -> Listing:
        chosen = (test or _Split(path / "test", [], [], [])) if split == "test" else train
        return _listing(chosen, class_names, client_names, limits[split])

    deciding = (*train.files, *((*test.files, *test.named_in) if test else ()))
    return Source(deciding, listing, check=check, root=path)


def _train_split(path: Path, layout: Layout, key: str) -> _Split:
    train = path / "train"
    if not train.is_dir():
        raise _layout_error(path, layout, "has no folder train/", key)
    files = images_below(train, key)
    if not files:
        suffixes = " ".join(sorted(SUFFIXES))
        raise _layout_error(path, layout, f"has no images below train/ (known suffixes: {suffixes})", key)
    classes = [_class(file, train, layout) for file in files]
    clients = [_folder(file, train, 0) if layout == "clients" else None for file in files]
    return _Split(train, files, classes, clients)


def _untested(train: _Split, class_names: tuple[str, ...], layout: Layout, key: str) -> str:
    """What is wrong with labelled images and no test images, and what to do where the folders are no classes."""
    taken = ", ".join(class_names[:5]) + (f" and {len(class_names) - 5} more" if len(class_names) > 5 else "")
    loose = sum(name is None for name in train.classes)
    beside = f", with {loose} unlabelled images beside them" if loose else ""
    level = "train/" if layout == "classes" else "the client folders of train/"
    return (
        "has no images in test/ or val/, and labelled images need a test split; the folders in "
        f"{level} are taken for classes ({printable(taken, 120)}){beside}; if they are none: {key}.layout=flat"
    )


def _held_out(
    path: Path, layout: Layout, class_names: tuple[str, ...], client_names: tuple[str, ...], key: str
) -> _Split | None:
    """The first test folder with images in it."""
    if layout != "flat" and (path / "val" / ANNOTATIONS).is_file():
        return _annotated(path / "val", key)
    for folder in (path / name for name in TEST_FOLDERS):
        if folder.is_dir() and (files := images_below(folder, key)):
            below = [() if layout == "flat" else _folders(file, folder) for file in files]
            places = [_test_place(folders, class_names, client_names) for folders in below]
            return _Split(folder, files, [label for _, label in places], [client for client, _ in places])
    return None


def every_image(path: Path, layout: Layout, key: str) -> list[tuple[Path, str | None, str | None]]:
    """(file, split, class) of all images below ``path``, sorted within a split; None where there is none.

    With a folder ``train/`` they lie as for training, and a test folder may be absent or hold other classes. Without
    one, and with anything but a test folder, there are no splits, and the folders below ``path`` are as below
    ``train/``: the class, or the client and then the class.

    Raises:
        UserError: no images, links in a circle, an entry that cannot be read.
    """
    if not (path / "train").is_dir():
        files = images_below(path, key)
        if not files:
            suffixes = " ".join(sorted(SUFFIXES))
            raise UserError(f"{key}.path: found no images below {printable(path)} (known suffixes: {suffixes})")
        if {file.relative_to(path).parts[0] for file in files} <= set(TEST_FOLDERS):
            held_out = _held_out(path, layout, (), (), key)
            assert held_out is not None
            return [(file, "test", label) for file, label in zip(held_out.files, held_out.classes, strict=True)]
        return [(file, None, _class(file, path, layout)) for file in files]
    train = _train_split(path, layout, key)
    test = _held_out(path, layout, _known(train.classes), _known(train.clients), key)
    rows: list[tuple[Path, str | None, str | None]] = []
    for name, split in (("train", train), ("test", test)):
        if split is not None:
            rows += [(file, name, label) for file, label in zip(split.files, split.classes, strict=True)]
    return rows


def has_client_folders(path: Path, key: str) -> bool:
    """Whether every image, of those below ``train/`` where there is such a folder, lies two folders deep or deeper: as
    ``layout: clients`` wants labelled images. Raises UserError where the folders cannot be walked.
    """
    root = path / "train" if (path / "train").is_dir() else path
    files = images_below(root, key)
    return bool(files) and all(_folder(file, root, 1) is not None for file in files)


def _annotated(folder: Path, key: str) -> _Split:
    """Tiny-ImageNet's validation images, whose classes stand in a text file."""
    text = (folder / ANNOTATIONS).read_bytes().decode(errors="surrogateescape")
    annotated = dict(line.split("\t")[:2] for line in text.splitlines() if "\t" in line)
    files = images_below(folder, key)
    classes = [annotated.get(file.name) for file in files]
    return _Split(folder, files, classes, [None] * len(files), (folder / ANNOTATIONS,))


def _test_place(
    folders: tuple[str, ...], class_names: tuple[str, ...], client_names: tuple[str, ...]
) -> tuple[str | None, str | None]:
    """(client, class) of a test image below these folders. A folder that is neither stands as an unknown class."""
    if not folders:
        return None, None
    if folders[0] in client_names:
        if len(folders) > 1 and folders[1] in class_names:
            return folders[0], folders[1]
        if folders[0] not in class_names:
            return folders[0], None if len(folders) == 1 else folders[1]
    return None, folders[0]


def _check_trained(
    split: _Split, layout: Layout, class_names: tuple[str, ...], client_names: tuple[str, ...], key: str, root: Path
) -> None:
    """Raise UserError unless every class in ``split`` has training images."""
    unknown = sorted({name for name in split.classes if name is not None} - set(class_names))
    if unknown:
        what = "the class" if layout == "classes" else "the class or client"
        trained = printable(", ".join([*class_names, *client_names]), 120) or "no classes"
        within = {_folder(file, root / "train", 1) for file in images_below(root / "train", key)}
        hint = ""
        if layout == "classes" and unknown[0] in within:
            hint = f"; the folders in train/ hold it, so they may be clients: {key}.layout=clients with "
            hint += f"{key}.partition.name=folders"
        raise UserError(
            f"{key}.path: {printable(split.folder)} holds {what} {printable(unknown[0], 80)}, which no training image "
            f"has; train/ has {trained}{hint}; accepted: {TREES[layout]}"
        )


def _listing(split: _Split, class_names: tuple[str, ...], client_names: tuple[str, ...], limit: int | None) -> Listing:
    rows = np.arange(len(split.files))
    if limit is not None and limit < len(rows):
        rows = np.linspace(0, len(rows) - 1, limit).astype(np.int64)
    groups = None
    if any(client is not None for client in split.clients):
        groups = _numbers(split.clients, client_names)[rows]

    def read() -> Iterator[tuple[str, Payload]]:
        return ((str(split.files[row]), split.files[row]) for row in rows)

    labels = _numbers(split.classes, class_names)[rows]
    shown = tuple(printable(name) for name in class_names)
    return Listing(labels, shown, read, groups, tuple(printable(name) for name in client_names))


def _known(names: list[str | None]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name is not None}))


def _numbers(names: list[str | None], known: tuple[str, ...]) -> NDArray[np.int64]:
    """The position of each name among the known ones; -1 for None."""
    number = {name: position for position, name in enumerate(known)}
    return np.array([-1 if name is None else number[name] for name in names], dtype=np.int64)


def _folders(file: Path, root: Path) -> tuple[str, ...]:
    """The folders between ``root`` and ``file``."""
    return file.relative_to(root).parts[:-1]


def _folder(file: Path, root: Path, depth: int) -> str | None:
    """The name of the folder ``depth`` levels below ``root`` on the way to ``file``; None if the file comes first."""
    folders = _folders(file, root)
    return folders[depth] if len(folders) > depth else None


def _class(file: Path, root: Path, layout: Layout) -> str | None:
    """The folder that is the class of a file below ``root``; None where there is none."""
    return _folder(file, root, CLASS_DEPTH[layout]) if layout in CLASS_DEPTH else None


# -- walking -----------------------------------------------------------------------------------------------------------


def images_below(root: Path, key: str) -> list[Path]:
    """All image files below a folder, sorted by path. Raises UserError for links in a circle and unreadable entries."""
    found: list[Path] = []
    ways: Counter[tuple[int, int]] = Counter()
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(root, frozenset())]
    while waiting:
        folder, above = waiting.pop()
        files, folders, identity = _entries(folder, key)
        ways[identity] += 1
        if identity in above:
            raise UserError(
                f"{key}.path: {printable(folder)} is a link back to a folder that contains it; remove the link"
            )
        if ways[identity] > MOST_WAYS:
            raise UserError(
                f"{key}.path: {printable(folder)} is reached by links in over {MOST_WAYS} ways; remove some"
            )
        found += files
        waiting += [(inner, above | {identity}) for inner in folders]
    return sorted(found)


def _entries(folder: Path, key: str) -> tuple[list[Path], list[Path], tuple[int, int]]:
    """The images and the folders in a folder, and the folder's identity (device, inode)."""
    files, folders = [], []
    try:
        own = os.stat(folder)
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise UserError(f"{key}.path: {printable(folder)} cannot be read ({error.strerror})") from error
    for name in names:
        entry, is_image = folder / name, Path(name).suffix.lower() in SUFFIXES
        try:
            mode = os.stat(entry).st_mode
        except OSError as error:
            if is_image:
                raise UserError(f"{key}.path: {printable(entry)} cannot be read ({error.strerror})") from error
            continue
        if stat.S_ISDIR(mode):
            folders.append(entry)
        elif is_image:
            files.append(entry)
    return files, folders, (own.st_dev, own.st_ino)


def _layout_error(path: Path, layout: Layout, problem: str, key: str) -> UserError:
    trees = "; ".join(f"with {key}.layout={name}: {TREES[name]}" for name in sorted(TREES, key=lambda n: n != layout))
    return UserError(f"{key}.path: {printable(path)} {problem}; found {_found(path)}; accepted {trees}")


def _found(path: Path, most: int = 5) -> str:
    """What lies below a folder, in a few words: its first entries, and those of train/, test/ and val/."""

    def entries(folder: Path) -> list[str]:
        try:
            found = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        except OSError:
            return []
        shown = [printable(entry.name, 40) + ("/" if entry.is_dir() else "") for entry in found[:most]]
        return shown + ([f"and {len(found) - most} more"] if len(found) > most else [])

    words = entries(path)
    for name in ("train", *TEST_FOLDERS):
        words += [f"{name}/{inner}" for inner in entries(path / name)[:3]]
    return ", ".join(words) or "nothing"
