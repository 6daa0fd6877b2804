"""Images in folders: ``train/`` and ``test/`` (or ``val/``) below one root, or one tree for both.

``data.layout: classes`` (default)
    ``train/<class>/.../x.jpg``: the first folder is the class, deeper ones do not matter. Images directly in ``train/``
    are unlabelled (-1). The test folder is ``<class>/.../x.jpg``.
``data.layout: clients``
    ``train/<client>/<class>/.../x.jpg``: the first folder is the client, for the partition ``folders``; the second is
    the class. Images directly in a client's folder are unlabelled. The test folder holds common images
    (``test/<class>/x.jpg``), each client's own (``test/<client>/<class>/x.jpg``), or both.
``data.layout: flat``
    ``train/.../x.jpg``: no folder is a class, and no image is labelled. Test images may lie in any folders too.

Splits are also found as ``Training/``, ``Testing/``, ``valid/`` or ``validation/``, in any case. Images of ``val/``
beside those of ``test/`` are not used, with a note. The test folder may be absent only where no training image is
labelled. A root without ``train/``, ``test/`` and ``val/`` is read like a folder ``train/``, and a fixed fifth of each
class (always the same one) becomes the test split; with ``clients`` its client folders may also hold a ``train/`` and a
``test/`` each: ``<client>/train/<class>/x.jpg``. Class numbers follow the sorted names of the training classes. Files
and folders whose name begins with a dot, and files that are no images by their suffix, are ignored, the latter with a
note; links are followed.

Tiny-ImageNet-200 works as unpacked: ``train/<wnid>/images/*.JPEG``, and ``val/images/*.JPEG`` with the classes in
``val/val_annotations.txt`` (its ``test/`` is unlabelled and is passed over). ImageNet-100: merge ``train.X1`` to
``train.X4`` into ``train/<wnid>/`` and rename ``val.X`` to ``val/<wnid>/``. MiniImageNet as published splits by *class*
(64/16/20); evaluation needs test images of the training classes, so split each class's 600 images instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.holdout import TEST_SHARE, stratified_halves, untested
from rayfed_ssl.data.images import Listing, Payload, Source
from rayfed_ssl.data.split_folders import split_folders
from rayfed_ssl.data.walking import SUFFIXES, entries, images_below, unread_below

Layout = Literal["classes", "clients", "flat"]
CLASS_DEPTH = {"classes": 0, "clients": 1}  # folders above the class; with flat none is one
TEST_FOLDERS = ("test", "val")  # the first that holds images; names of split_folders
ANNOTATIONS = "val_annotations.txt"  # of Tiny-ImageNet's validation images
TABLES = {".csv", ".tsv", ".xlsx", ".json", ".jsonl"}
TREES = {
    "classes": (
        "train/<class>/x.jpg with test/<class>/x.jpg (or val/), or <class>/x.jpg, of which a fifth is held out; "
        "unlabelled: train/x.jpg, or x.jpg"
    ),
    "clients": (
        "train/<client>/<class>/x.jpg with test/<class>/x.jpg or test/<client>/<class>/x.jpg (or val/); unlabelled: "
        "train/<client>/x.jpg; all of these also without train/ and test/, or with <client>/train/ and <client>/test/"
    ),
    "flat": "train/.../x.jpg, or .../x.jpg, all of them unlabelled",
}


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

    def rows(self, chosen: NDArray[np.int64]) -> _Split:
        """Only these rows."""
        columns = (self.files, self.classes, self.clients)
        files, classes, clients = ([column[row] for row in chosen] for column in columns)
        return _Split(self.folder, files, classes, clients)

    def add(self, folder: Path, client: str, key: str) -> None:
        """Add a client's images below ``folder``, whose folders are the classes. Raises UserError."""
        found = images_below(folder, key)
        self.files.extend(found)
        self.classes.extend(_folder(file, folder, 0) for file in found)
        self.clients.extend(client for _ in found)


def folder_source(path: Path, layout: Layout, limits: dict[str, int | None], key: str) -> Source:
    """The source below ``path``. Its check raises UserError for labelled images without test images, and for a test
    class or client that is not trained. Its notes say what was made of a tree that can be read in two ways.

    Raises:
        UserError: no training images, links in a circle, an entry that cannot be read.
    """
    if "train" in split_folders(path, key):
        train = _train_split(path, layout, key)
        test, notes = _held_out(path, layout, _known(train.classes), _known(train.clients), key)
    else:
        train, test, notes = _unsplit(path, layout, key)
    class_names, client_names = _known(train.classes), _known(train.clients)

    def check() -> None:
        if test is not None:
            _check_trained(test, train, layout, class_names, client_names, key)
        elif class_names:
            raise _layout_error(path, layout, _untested(path, train, class_names, layout, key), key)

    def listing(split: str) -> Listing:
        chosen = (test or _Split(path / "test", [], [], [])) if split == "test" else train
        return _listing(chosen, class_names, client_names, limits[split])

    notes += _maybe_clients(train, key) if layout == "classes" else []
    notes += filter(None, [unread_below(*dict.fromkeys(split.folder for split in (train, test) if split))])
    deciding = (*train.files, *((*test.files, *test.named_in) if test else ()))
    return Source(deciding, listing, tuple(notes), check, root=path)


def _unsplit(path: Path, layout: Layout, key: str) -> tuple[_Split, _Split | None, list[str]]:
    """(training images, test images, what to say) of a root without ``train/``. Raises UserError."""
    _, folders, _ = entries(path, key)
    within = [inner["train"] for folder in folders if "train" in (inner := split_folders(folder, key))]
    if within and layout == "clients":
        return _split_within(path, folders, key)
    if within:
        hint = f"if its folders are clients: {key}.layout=clients with {key}.partition.name=folders"
        shown = printable(within[0].relative_to(path))
        raise _layout_error(path, layout, f"has no folder train/, but {shown}/; {hint}", key)
    files = images_below(path, key)
    if not files or split_folders(path, key):
        problem = "has no folder train/" + ("" if files else f" and no images{_instead(path)}")
        raise _layout_error(path, layout, problem, key)
    clients = [_folder(file, path, 0) if layout == "clients" else None for file in files]
    whole = _Split(path, files, [_class(file, path, layout) for file in files], clients)
    tables = sorted(entry.name for entry in path.iterdir() if entry.suffix.lower() in TABLES)
    unread = [f"{_some(tables)} is not read: put images and the labels of a table into Parquet"] if tables else []
    if not (class_names := _known(whole.classes)):
        return whole, None, unread
    labels = _numbers(whole.classes, class_names)
    labelled = np.flatnonzero(labels >= 0)
    held_out = labelled[stratified_halves(labels[labelled], TEST_SHARE)[1]]
    train, test = whole.rows(np.setdiff1d(np.arange(len(files)), held_out)), whole.rows(held_out)
    where = "folders" if layout == "classes" else "client folders' folders"
    note = (
        f"{printable(path)} has no train/ and test/: its {where} ({_some(class_names)}) are the classes, and a fifth "
        f"of each, {len(test.files)} of {len(files)} images, is held out as test images"
    )
    return train, test if test.files else None, [note, *untested(labels, held_out, class_names, TEST_SHARE), *unread]


def _split_within(path: Path, folders: list[Path], key: str) -> tuple[_Split, _Split | None, list[str]]:
    """Like ``_unsplit``, of ``<client>/train/<class>/x.jpg`` and ``<client>/test/<class>/x.jpg``. Raises UserError."""
    train, test = _Split(path, [], [], []), _Split(path, [], [], [])
    unused = 0
    for client in folders:
        splits = split_folders(client, key)
        if "train" not in splits:
            if not images_below(client, key):
                continue
            raise _layout_error(path, "clients", f"has {printable(client.name)}/ without train/ in it", key)
        train.add(splits["train"], client.name, key)
        held_out = [splits[name] for name in TEST_FOLDERS if name in splits]
        for folder in held_out[:1]:
            test.add(folder, client.name, key)
        unused += sum(len(images_below(folder, key)) for folder in held_out[1:])
    if not train.files:
        raise _layout_error(path, "clients", f"has no images below its clients' train/{_instead(path)}", key)
    note = f"the clients' val/ ({unused} images) is not used where test/ is there"
    return train, test if test.files else None, [note] if unused else []


def _maybe_clients(train: _Split, key: str) -> list[str]:
    """A line where the folders taken for classes look like clients: all hold the same two or more folders."""
    inner: dict[str, set[str | None]] = {}
    for file, label in zip(train.files, train.classes, strict=True):
        if label is not None:
            inner.setdefault(label, set()).add(_folder(file, train.folder, 1))
    shared = set.intersection(*inner.values()) - {None} if len(inner) > 1 else set()
    if len(shared) < 2:
        return []
    names, classes = _some(sorted(inner)), _some(sorted(name for name in shared if name is not None))
    return [
        f"{names} are taken for classes, and each of them holds {classes}: if they are clients, {key}.layout=clients"
    ]


def _some(names: Sequence[str], most: int = 5) -> str:
    """The first of these names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return printable(", ".join(names[:most]), 120) + more


def _train_split(path: Path, layout: Layout, key: str) -> _Split:
    train = split_folders(path, key)["train"]
    files = images_below(train, key)
    if not files:
        raise _layout_error(path, layout, f"has no images below {printable(train.name)}/{_instead(train)}", key)
    classes = [_class(file, train, layout) for file in files]
    clients = [_folder(file, train, 0) if layout == "clients" else None for file in files]
    return _Split(train, files, classes, clients)


def _untested(path: Path, train: _Split, class_names: tuple[str, ...], layout: Layout, key: str) -> str:
    """What is wrong with labelled images and no test images, and what to do where the folders are no classes."""
    if train.folder == path:
        return "has no test images, and of no class enough images to hold a fifth out: labelled images need test images"
    loose = sum(name is None for name in train.classes)
    beside = f", with {loose} unlabelled images beside them" if loose else ""
    level = "train/" if layout == "classes" else "the client folders of train/"
    return (
        "has no images in test/ or val/, and labelled images need a test split; the folders in "
        f"{level} are taken for classes ({_some(class_names)}){beside}; if they are none: {key}.layout=flat"
    )


def _held_out(
    path: Path, layout: Layout, class_names: tuple[str, ...], client_names: tuple[str, ...], key: str
) -> tuple[_Split | None, list[str]]:
    """The first test folder with images in it, and a line on the other one."""
    splits = split_folders(path, key)
    if layout != "flat" and "val" in splits and (splits["val"] / ANNOTATIONS).is_file():
        return _annotated(splits["val"], key), []
    folders = [splits[name] for name in TEST_FOLDERS if name in splits]
    found = [(folder, files) for folder in folders if (files := images_below(folder, key))]
    if not found:
        return None, []
    (folder, files), *unused = found
    below = [() if layout == "flat" else _folders(file, folder) for file in files]
    places = [_test_place(inner, class_names, client_names) for inner in below]
    split = _Split(folder, files, [label for _, label in places], [client for client, _ in places])
    test = printable(folder.name)
    return split, [
        f"{printable(other.name)}/ ({len(rest)} images) is not used: {test}/ is there" for other, rest in unused
    ]


def every_image(path: Path, layout: Layout, key: str) -> list[tuple[Path, str | None, str | None]]:
    """(file, split, class) of all images below ``path``, sorted within a split; None where there is none.

    With a folder ``train/``, or one in every client's folder, they lie as for training, and a test folder may be absent
    or hold other classes. Without one, and with anything but a test folder, there are no splits, and the folders below
    ``path`` are as below ``train/``: the class, or the client and then the class.

    Raises:
        UserError: no images, links in a circle, an entry that cannot be read.
    """
    train, test = None, None
    splits, folders = split_folders(path, key), entries(path, key)[1]
    if "train" in splits:
        train = _train_split(path, layout, key)
        test, _ = _held_out(path, layout, _known(train.classes), _known(train.clients), key)
    elif layout != "flat" and folders and all("train" in split_folders(folder, key) for folder in folders):
        train, test, _ = _split_within(path, folders, key)
    if train is None:
        files = images_below(path, key)
        if not files:
            raise UserError(f"{key}.path: found no images below {printable(path)}{_instead(path)}")
        if {file.relative_to(path).parts[0] for file in files} <= {folder.name for folder in splits.values()}:
            held_out, _ = _held_out(path, layout, (), (), key)
            assert held_out is not None
            return [(file, "test", label) for file, label in zip(held_out.files, held_out.classes, strict=True)]
        return [(file, None, _class(file, path, layout)) for file in files]
    rows: list[tuple[Path, str | None, str | None]] = []
    for name, split in (("train", train), ("test", test)):
        if split is not None:
            rows += [(file, name, label) for file, label in zip(split.files, split.classes, strict=True)]
    return rows


def has_client_folders(path: Path, key: str) -> bool:
    """Whether every image, of those below ``train/`` where there is such a folder, lies two folders deep or deeper: as
    ``layout: clients`` wants labelled images. Raises UserError where the folders cannot be walked.
    """
    root = split_folders(path, key).get("train", path)
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
    split: _Split, train: _Split, layout: Layout, class_names: tuple[str, ...], client_names: tuple[str, ...], key: str
) -> None:
    """Raise UserError unless every class in ``split`` has training images."""
    unknown = sorted({name for name in split.classes if name is not None} - set(class_names))
    if unknown:
        what = "the class" if layout == "classes" else "the class or client"
        trained = printable(", ".join([*class_names, *client_names]), 120) or "no classes"
        within = {_folder(file, train.folder, 1) for file in train.files}
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


def _instead(folder: Path) -> str:
    """What to say of a folder without images: the suffixes that images have, and what is there instead."""
    unread = unread_below(folder)
    return f" (known suffixes: {' '.join(sorted(SUFFIXES))})" + (f"; {unread}" if unread else "")


def _layout_error(path: Path, layout: Layout, problem: str, key: str) -> UserError:
    trees = "; ".join(f"with {key}.layout={name}: {TREES[name]}" for name in sorted(TREES, key=lambda n: n != layout))
    return UserError(f"{key}.path: {printable(path)} {problem}; found {_found(path, key)}; accepted {trees}")


def _found(path: Path, key: str, most: int = 5) -> str:
    """What lies below a folder, in a few words: its first entries, and those of its splits."""

    def shown(folder: Path) -> list[str]:
        try:
            found = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        except OSError:
            return []
        names = [printable(entry.name, 40) + ("/" if entry.is_dir() else "") for entry in found[:most]]
        return names + ([f"and {len(found) - most} more"] if len(found) > most else [])

    words = shown(path)
    splits = split_folders(path, key)
    for folder in (splits[name] for name in ("train", *TEST_FOLDERS) if name in splits):
        words += [f"{printable(folder.name)}/{inner}" for inner in shown(folder)[:3]]
    return ", ".join(words) or "nothing"
