"""Images in folders: ``train/`` and ``test/`` (or ``val/``) below one root, or one tree for both.

``data.layout: classes`` (default)
    ``train/<class>/.../x.jpg``: the first folder is the class, deeper ones do not matter. Images directly in ``train/``
    are unlabelled (-1). The test folder is ``<class>/.../x.jpg``.
``data.layout: clients``
    ``train/<client>/<class>/.../x.jpg``: the first folder is the client, for the partition ``folders``; the second is
    the class. Images directly in a client's folder are unlabelled. The test folder holds common images
    (``test/<class>/x.jpg``), each client's own (``test/<client>/<class>/x.jpg``), or both.
``data.layout: clients_flat``
    ``train/<client>/.../x.jpg``: the first folder is the client, deeper ones do not matter, and no image is labelled.
``data.layout: flat``
    ``train/.../x.jpg``: no folder is a class, and no image is labelled. Test images may lie in any folders too.

Splits are also found as ``Training/``, ``Testing/``, ``valid/`` or ``validation/``, in any case. Images of ``val/``
beside those of ``test/`` are not used, and neither are images beside ``train/`` that lie in no split, with notes. The
test folder may be absent only where no training image is labelled. A root without ``train/``, ``test/`` and ``val/`` is
read like a folder ``train/``, and a fixed fifth of each class (always the same one) becomes the test split; with
``clients`` its client folders may also hold a ``train/`` and a ``test/`` each: ``<client>/train/<class>/x.jpg``. Class
numbers follow the sorted names of the training classes, in Unicode's normal form C. Files and folders whose name begins
with a dot, and files that are no images by their suffix, are ignored, the latter with a note; links are followed.

Tiny-ImageNet-200 works as unpacked: ``train/<wnid>/images/*.JPEG``, and ``val/images/*.JPEG`` with the classes in
``val/val_annotations.txt`` (its ``test/`` is unlabelled and is passed over, with a note). ImageNet-100: merge
``train.X1`` to ``train.X4`` into ``train/<wnid>/`` and rename ``val.X`` to ``val/<wnid>/``. MiniImageNet as published
splits by *class* (64/16/20); evaluation needs test images of the training classes, so split each class's 600 images
instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import composed, printable
from rayfed_ssl.data.folder_layouts import (
    TEST_FOLDERS,
    TREES,
    WITH_CLIENTS,
    Layout,
    instead,
    layout_error,
    not_read,
    some,
)
from rayfed_ssl.data.folder_names import (
    CLASS_DEPTH,
    class_of,
    client_of,
    folder_at,
    folders_between,
    known_names,
    maybe_clients,
    numbers_of,
    refuse_twins,
    test_place,
)
from rayfed_ssl.data.holdout import TEST_SHARE, stratified_halves, untested
from rayfed_ssl.data.images import NONE_HELD_OUT, Listing, Payload, Source
from rayfed_ssl.data.limits import unseen_classes
from rayfed_ssl.data.split_folders import split_folders
from rayfed_ssl.data.walking import TABLES, entries, images_below, images_beside, unread_below

NAMED = {"classes": 1, "clients": 2, "clients_flat": 1, "flat": 0}  # levels of folders whose names are read
ANNOTATIONS = "val_annotations.txt"  # of Tiny-ImageNet's validation images


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

    def read_as(self, layout: Layout) -> _Split:
        """The same where folders name classes, else without any."""
        return self if layout in CLASS_DEPTH else replace(self, classes=[None] * len(self.files))

    def add(self, folder: Path, client: str, key: str) -> None:
        """Add a client's images below ``folder``, whose folders are the classes. Raises UserError."""
        found = images_below(folder, key)
        refuse_twins(found, folder, 1, key)
        self.files.extend(found)
        self.classes.extend(folder_at(file, folder, 0) for file in found)
        self.clients.extend(composed(client) for _ in found)


def folder_source(path: Path, layout: Layout, limits: dict[str, int | None], key: str) -> Source:
    """The source below ``path``. Its check raises UserError for labelled images without test images, and for a test
    class or client that is not trained. Its notes say what was made of a tree that can be read in two ways.

    Raises:
        UserError: no training images, links in a circle, an entry that cannot be read.
    """
    hint = ""
    if "train" in (splits := split_folders(path, key)):
        train = _train_split(path, layout, key)
        test, notes = _held_out(path, layout, train, key)
        beside = images_beside(path, splits.values(), key)
        hint = _maybe_class(train, beside, layout)
        notes += not_read(beside, [f"{split.folder.name}/" for split in (train, test) if split], hint)
    else:
        train, test, notes = _unsplit(path, layout, key)
    class_names, client_names = known_names(train.classes), known_names(train.clients)

    def check() -> None:
        if test is not None:
            _check_trained(test, train, layout, class_names, client_names, hint, key)
        elif class_names:
            raise layout_error(path, layout, _untested(path, train, class_names, layout, key), key)

    def listing(split: str) -> Listing:
        chosen = (test or _Split(path / "test", [], [], [])) if split == "test" else train
        return _listing(split, chosen, class_names, client_names, limits[split])

    notes += maybe_clients(train.files, train.classes, train.folder, key) if layout == "classes" else []
    notes += filter(None, [unread_below(*dict.fromkeys(split.folder for split in (train, test) if split))])
    deciding = (*train.files, *((*test.files, *test.named_in) if test else ()))
    if "train" not in splits:
        deciding = tuple(sorted(deciding))  # one tree, of which some are the test images
    return Source(deciding, listing, tuple(notes), check, root=path)


def _unsplit(path: Path, layout: Layout, key: str) -> tuple[_Split, _Split | None, list[str]]:
    """(training images, test images, what to say) of a root without ``train/``. Raises UserError."""
    _, folders, _ = entries(path, key)
    within = [inner["train"] for folder in folders if "train" in (inner := split_folders(folder, key))]
    if within and layout in WITH_CLIENTS:
        return _split_within(path, folders, layout, key)
    if within:
        hint = f"if its folders are clients: {key}.layout=clients with {key}.partition.name=folders"
        shown = printable(within[0].relative_to(path))
        raise layout_error(path, layout, f"has no folder train/, but {shown}/; {hint}", key)
    files = images_below(path, key)
    if not files or split_folders(path, key):
        problem = "has no folder train/" + ("" if files else f" and no images{instead(path)}")
        raise layout_error(path, layout, problem, key)
    refuse_twins(files, path, NAMED[layout], key)
    clients = [client_of(file, path, layout) for file in files]
    whole = _Split(path, files, [class_of(file, path, layout) for file in files], clients)
    tables = sorted(entry.name for entry in path.iterdir() if entry.suffix.lower() in TABLES)
    unread = [f"{some(tables)} is not read: put images and the labels of a table into Parquet"] if tables else []
    if not (class_names := known_names(whole.classes)):
        return whole, None, unread
    labels = numbers_of(whole.classes, class_names)
    held_by = numbers_of(clients, known_names(clients)) if layout == "clients" else None
    rest, held_out = stratified_halves(labels, TEST_SHARE, held_by)
    train, test = whole.rows(rest), whole.rows(held_out)
    where = "folders" if layout == "classes" else "client folders' folders"
    none = f"; if they are none: {key}.layout=clients_flat" if layout == "clients" else ""
    note = (
        f"{printable(path)} has no train/ and test/: its {where} ({some(class_names)}) are the classes, and a fifth "
        f"of each, {len(test.files)} of {len(files)} images, is held out as test images{none}"
    )
    return train, test if test.files else None, [note, *untested(labels, held_out, class_names, TEST_SHARE), *unread]


def _split_within(path: Path, folders: list[Path], layout: Layout, key: str) -> tuple[_Split, _Split | None, list[str]]:
    """Like ``_unsplit``, of ``<client>/train/<class>/x.jpg`` and ``<client>/test/<class>/x.jpg``. Raises UserError."""
    train, test = _Split(path, [], [], []), _Split(path, [], [], [])
    unused = 0
    for client, splits in _clients_with_splits(path, folders, key).items():
        train.add(splits["train"], client, key)
        held_out = [splits[name] for name in TEST_FOLDERS if name in splits and images_below(splits[name], key)]
        for folder in held_out[:1]:
            test.add(folder, client, key)
        unused += sum(len(images_below(folder, key)) for folder in held_out[1:])
    if not train.files:
        raise layout_error(path, "clients", f"has no images below its clients' train/{instead(path)}", key)
    note = f"the clients' val/ ({unused} images) is not used where test/ is there"
    notes = [note] if unused else []
    train, test = train.read_as(layout), test.read_as(layout)
    return train, test if test.files else None, notes + _beside_clients(path, folders, key)


def _clients_with_splits(path: Path, folders: list[Path], key: str) -> dict[str, dict[str, Path]]:
    """client -> split -> its folder. Raises UserError for a client with images and without ``train/``."""
    refuse_twins((folder / "images" for folder in folders), path, 1, key)
    found = {folder.name: splits for folder in folders if "train" in (splits := split_folders(folder, key))}
    odd = (folder.name for folder in folders if folder.name not in found and images_below(folder, key))
    if name := next(odd, ""):
        raise layout_error(path, "clients", f"has {printable(name)}/ without train/ in it", key)
    return found


def _beside_clients(path: Path, folders: list[Path], key: str) -> list[str]:
    """A line on images beside the clients' splits, where there are any."""
    beside, loose = [], len(entries(path, key)[0])
    for client in folders:
        for name, count in images_beside(client, split_folders(client, key).values(), key):
            beside += [(f"{client.name}/{name}", count)] if name else []
            loose += 0 if name else count
    return not_read(beside + ([("", loose)] if loose else []), ["the clients' splits"])


def _maybe_class(train: _Split, beside: list[tuple[str, int]], layout: Layout) -> str:
    """What to add where ``train/`` has no class (client) in it, and may be one itself among other folders."""
    if layout == "flat" or known_names(train.classes + train.clients) or not any(folder for folder, _ in beside):
        return ""
    meant = "class" if layout == "classes" else "client"
    name = printable(train.folder.name)
    return f"; if {name}/ is a {meant} like them, rename it: a folder of that name is taken for the training split"


def _train_split(path: Path, layout: Layout, key: str) -> _Split:
    train = split_folders(path, key)["train"]
    files = images_below(train, key)
    if not files:
        raise layout_error(path, layout, f"has no images below {printable(train.name)}/{instead(train)}", key)
    refuse_twins(files, train, NAMED[layout], key)
    classes = [class_of(file, train, layout) for file in files]
    clients = [client_of(file, train, layout) for file in files]
    return _Split(train, files, classes, clients)


def _untested(path: Path, train: _Split, class_names: tuple[str, ...], layout: Layout, key: str) -> str:
    """What is wrong with labelled images and no test images, and what to do where the folders are no classes."""
    if train.folder == path:
        return NONE_HELD_OUT
    loose = sum(name is None for name in train.classes)
    beside = f", with {loose} unlabelled images beside them" if loose else ""
    alone = f"; {key}.path={printable(train.folder)} holds a fifth of each class out"
    none = "flat" if layout == "classes" else "clients_flat"
    level = "train/" if layout == "classes" else "the client folders of train/"
    return (
        "has no images in test/ or val/, and labelled images need a test split; the folders in "
        f"{level} are taken for classes ({some(class_names)}){beside}; if they are none: {key}.layout={none}{alone}"
    )


def _held_out(path: Path, layout: Layout, train: _Split, key: str) -> tuple[_Split | None, list[str]]:
    """The test images that runs measure on, and a line on those that they do not. Raises UserError."""
    found = [*_test_splits(path, layout, known_names(train.classes), known_names(train.clients), key).values()]
    if not found:
        return None, []
    test, *unused = found
    there = printable(test.folder.name)
    return test, [
        f"{printable(other.folder.name)}/ ({len(other.files)} images) is not used: {there}/ is there"
        for other in unused
    ]


def _test_splits(
    path: Path, layout: Layout, class_names: tuple[str, ...], client_names: tuple[str, ...], key: str
) -> dict[str, _Split]:
    """The test folders with images in them by the names of their splits, the one that runs measure on first."""
    folders = split_folders(path, key)
    annotated = layout in CLASS_DEPTH and "val" in folders and (folders["val"] / ANNOTATIONS).is_file()
    found = {"val": _annotated(folders["val"], key)} if annotated else {}
    for name in TEST_FOLDERS:
        if name in found or name not in folders or not (files := images_below(folders[name], key)):
            continue
        known = layout != "flat" and not annotated  # beside annotations folders are no classes
        refuse_twins(files, folders[name], NAMED[layout] if known else 0, key)
        below = [folders_between(file, folders[name]) if known else () for file in files]
        places = [test_place(inner, class_names, client_names) for inner in below]
        split = _Split(folders[name], files, [label for _, label in places], [client for client, _ in places])
        found[name] = split.read_as(layout)
    return found


Row = tuple[Path, str | None, str | None]  # file, split, class; None where there is none


def every_image(path: Path, layout: Layout, key: str) -> tuple[list[Row], list[str]]:
    """All images below ``path``, sorted within a split, and what to say of images and files that are not among them.

    With a folder ``train/``, or one in every client's folder, they lie as for training, and test folders may be absent
    or hold other classes. Without one, and with anything but test folders, there are no splits, and the folders below
    ``path`` are as below ``train/``: the class, or the client and then the class. Images of ``val/`` are the split
    "val" beside those of ``test/``, else "test".

    Raises:
        UserError: no images, links in a circle, an entry that cannot be read.
    """
    found: dict[str, _Split] = {}
    notes: list[str] = []
    splits, folders = split_folders(path, key), entries(path, key)[1]
    if "train" in splits:
        train = _train_split(path, layout, key)
        found = {"train": train} | _test_splits(
            path, layout, known_names(train.classes), known_names(train.clients), key
        )
        beside = images_beside(path, splits.values(), key)
        read = [f"{splits[name].name}/" for name in ("train", *TEST_FOLDERS) if name in splits]
        notes = not_read(beside, read, _maybe_class(train, beside, layout))
    elif layout != "flat" and folders and all("train" in split_folders(folder, key) for folder in folders):
        found = {name: _Split(path, [], [], []) for name in ("train", *TEST_FOLDERS)}
        for client, inner in _clients_with_splits(path, folders, key).items():
            for name, folder in inner.items():
                found[name].add(folder, client, key)
        notes = _beside_clients(path, folders, key)
    else:
        files = images_below(path, key)
        if {file.relative_to(path).parts[0] for file in files} <= {folder.name for folder in splits.values()}:
            found = _test_splits(path, layout, (), (), key)
        else:
            refuse_twins(files, path, NAMED[layout], key)
            notes = [*filter(None, [unread_below(path)])]
            return [(file, None, class_of(file, path, layout)) for file in files], notes
    if "val" in found and not ("test" in found and found["test"].files):
        found["test"] = found.pop("val")
    rows: list[Row] = []
    for name in (name for name in ("train", *TEST_FOLDERS) if name in found):
        split = found[name].read_as(layout)
        rows += [(file, name, label) for file, label in zip(split.files, split.classes, strict=True)]
    if not rows:
        raise UserError(f"{key}.path: found no images below {printable(path)}{instead(path)}")
    notes += filter(None, [unread_below(*dict.fromkeys(split.folder for split in found.values()))])
    return rows, notes


def has_client_folders(path: Path, key: str) -> bool:
    """Whether every image, of those below ``train/`` where there is such a folder, lies two folders deep or deeper: as
    ``layout: clients`` wants labelled images. Raises UserError where the folders cannot be walked.
    """
    root = split_folders(path, key).get("train", path)
    files = images_below(root, key)
    return bool(files) and all(folder_at(file, root, 1) is not None for file in files)


def _annotated(folder: Path, key: str) -> _Split:
    """Tiny-ImageNet's validation images, whose classes stand in a text file."""
    text = (folder / ANNOTATIONS).read_bytes().decode(errors="surrogateescape")
    annotated = dict(composed(line).split("\t")[:2] for line in text.splitlines() if "\t" in line)
    files = images_below(folder, key)
    classes = [annotated.get(composed(file.name)) for file in files]
    return _Split(folder, files, classes, [None] * len(files), (folder / ANNOTATIONS,))


def _check_trained(
    split: _Split,
    train: _Split,
    layout: Layout,
    class_names: tuple[str, ...],
    client_names: tuple[str, ...],
    hint: str,
    key: str,
) -> None:
    """Raise UserError, with ``hint`` in it, unless every class in ``split`` has training images."""
    unknown = sorted({name for name in split.classes if name is not None} - set(class_names))
    if unknown:
        what = "the class" if layout == "classes" else "the class or client"
        trained = printable(", ".join([*class_names, *client_names]), 120) or "no classes"
        within = {folder_at(file, train.folder, 1) for file in train.files}
        if layout == "classes" and unknown[0] in within:
            hint += f"; the folders in train/ hold it, so they may be clients: {key}.layout=clients with "
            hint += f"{key}.partition.name=folders"
        if not (class_names or client_names or hint):
            hint = f"; {key}.layout=flat reads no labels, and `rayfed-ssl evaluate RUN --data FOLDER` measures the run "
            hint += "on a labelled set, with training and test images of its own"
        if class_names and not hint:
            hint = f"; take it out of {printable(split.folder.name)}/, or put images of it into train/"
        raise UserError(
            f"{key}.path: {printable(split.folder)} holds {what} {printable(unknown[0], 80)}, which no training image "
            f"has; train/ has {trained}{hint}; accepted: {TREES[layout]}"
        )


def _listing(
    name: str, split: _Split, class_names: tuple[str, ...], client_names: tuple[str, ...], limit: int | None
) -> Listing:
    rows = np.arange(len(split.files))
    if limit is not None and limit < len(rows):
        rows = np.linspace(0, len(rows) - 1, limit).astype(np.int64)
    groups = None
    if any(client is not None for client in split.clients):
        groups = numbers_of(split.clients, client_names)[rows]

    def read() -> Iterator[tuple[str, Payload]]:
        return ((str(split.files[row]), split.files[row]) for row in rows)

    labels = numbers_of(split.classes, class_names)
    shown, clients = (tuple(printable(given) for given in names) for names in (class_names, client_names))
    return Listing(labels[rows], shown, read, groups, clients, unseen_classes(name, labels, rows))
