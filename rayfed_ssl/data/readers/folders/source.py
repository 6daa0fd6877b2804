"""Images in folders: ``train/`` and ``test/`` (or ``val/``) below one root, or one tree for both.

``data.layout: classes`` (default)
    ``train/<class>/.../x.jpg``: the first folder is the class, deeper ones do not matter. Images directly in ``train/``
    are unlabelled (-1). The test folder is ``<class>/.../x.jpg``.
``data.layout: clients``
    ``train/<client>/<class>/.../x.jpg``: the first folder is the client, for the partition ``folders``; the second is
    the class. Images directly in a client's folder are unlabelled. The test folder holds common images
    (``test/<class>/x.jpg``), each client's own (``test/<client>/<class>/x.jpg``), or both. Those of a client without
    training images are common ones, with a note.
``data.layout: clients_flat``
    ``train/<client>/.../x.jpg``: the first folder is the client, deeper ones do not matter, and no image is labelled.
``data.layout: flat``
    ``train/.../x.jpg``: no folder is a class, and no image is labelled. Test images may lie in any folders too.

Splits may also be called ``Training/``, ``Testing/``, ``valid/`` or ``validation/``, in any case. Images of ``val/``
beside those of ``test/`` are not used, and neither are images beside ``train/`` that lie in no split; notes say so. The
test folder may be absent only if no training image is labelled. A root without ``train/``, ``test/`` and ``val/`` is
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

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import plural, printable
from rayfed_ssl.data.holdout import TEST_SHARE, rounded, stratified_halves, untested
from rayfed_ssl.data.images import NONE_HELD_OUT, Listing, Payload, Source
from rayfed_ssl.data.readers.folders.doubts import classes_in_names, classes_within, maybe_masks, maybe_patients
from rayfed_ssl.data.readers.folders.layouts import (
    TEST_FOLDERS,
    TREES,
    WITH_CLIENTS,
    Layout,
    instead,
    layout_error,
    not_read,
    some,
)
from rayfed_ssl.data.readers.folders.names import (
    ATTRIBUTES,
    CLASS_DEPTH,
    class_of,
    client_of,
    folder_at,
    folders_between,
    groups_of,
    known_names,
    maybe_clients,
    numbers_of,
    refuse_twins,
    undecided,
)
from rayfed_ssl.data.readers.folders.splits import (
    NAMED,
    Split,
    beside_clients,
    clients_with_splits,
    maybe_class,
    test_splits,
    train_split,
)
from rayfed_ssl.data.readers.limits import of_all, unseen_classes
from rayfed_ssl.data.readers.ownership import numbered_groups, refuse_alike, shared_notes, untrained_notes
from rayfed_ssl.data.readers.split_names import maybe_splits, split_folders
from rayfed_ssl.data.readers.walking import TABLES, entries, images_below, images_beside, unread_below
from rayfed_ssl.data.source_notes import HeldOut, Line


def folder_source(
    path: Path, layout: Layout, limits: dict[str, int | None], key: str, group: str | None = None
) -> Source:
    """The source below ``path``. Its check raises UserError for labelled images without test images, and for test
    images of a class, or almost of a client's name, that no training image has. Its notes say how a tree was read that
    can be read in two ways.

    Args:
        group: ``data.group``, which finds whom or what an image shows; None: each image is a group of its own.
    Raises:
        UserError: there are no training images, links lead in a circle, an entry cannot be read, or ``group`` finds
            nothing in any image.
    """
    hint = ""
    if "train" in (splits := split_folders(path, key)):
        train = train_split(path, layout, key)
        test, notes = _held_out(path, layout, train, key)
        beside = images_beside(path, splits.values(), key)
        hint = maybe_class(train, beside, layout)
        notes += not_read(beside, [f"{split.folder.name}/" for split in (train, test) if split], hint)
        needs_no_table = layout not in CLASS_DEPTH or known_names(train.classes)
        notes += [] if needs_no_table else _unread_tables(path, train.folder, key)
    else:
        train, test, notes = _unsplit(path, layout, key, group, limits)
    files = {"train": train.files, "test": test.files if test else []}
    groups, group_notes = _groups(files, path, group, key, limits)
    class_names, client_names = known_names(train.classes), known_names(train.clients)
    notes += [*group_notes, *untrained_notes(_strangers(test, client_names, limits["test"]) if test else ())]

    def check() -> None:
        if test is not None:
            _check_trained(test, train, layout, class_names, client_names, hint, key)
            refuse_alike(client_names, _strangers(test, client_names, None), f"{key}.path")
        elif class_names:
            whole = "" if group is None else f"; {key}.group holds whole groups out, or none"
            problem = _untested(path, train, class_names, layout, key) + whole
            raise layout_error(path, layout, problem, key, trees=False)

    def listing(split: str) -> Listing:
        chosen = (test or Split(path / "test", [], [], [])) if split == "test" else train
        return _listing(split, chosen, class_names, client_names, groups[split], limits[split])

    notes += (others := maybe_splits((*class_names, *client_names)))
    doubt = ""
    if layout == "classes" and not others:
        notes += maybe_clients(train.files, train.classes, train.folder, group, key, train.folder == path)
        doubt = undecided(train.files, train.classes, train.folder, key) if group is None else ""
    notes += maybe_masks([*files["train"], *files["test"]], path)
    if layout in CLASS_DEPTH:
        notes += classes_within(train.files, train.classes, train.folder, CLASS_DEPTH[layout])
        notes += maybe_patients(class_names, layout, group, key)
        notes += [] if class_names else classes_in_names(train.files)
    notes += filter(None, [unread_below(*dict.fromkeys(split.folder for split in (train, test) if split))])
    deciding = (*train.files, *((*test.files, *test.named_in) if test else ()))
    if "train" not in splits:
        deciding = tuple(sorted(deciding))  # one tree, from which the test images were taken
    return Source(deciding, listing, tuple(notes), check, root=path, doubt=doubt)


def _groups(
    files: Mapping[str, list[Path]], path: Path, group: str | None, key: str, limits: Mapping[str, int | None]
) -> tuple[dict[str, NDArray[np.int64] | None], list[Note | str]]:
    """Split -> the number of each image's group, -1 for a group of its own; and lines on the groups of the images that
    the limits leave.
    """
    if group is None:
        return dict.fromkeys(files), []
    names = groups_of([file for split in files.values() for file in split], path, group, key)
    first = len(files["train"])
    groups = numbered_groups({"train": names[:first], "test": names[first:]})
    taken = {split: _taken(len(images), limits[split]) for split, images in files.items()}
    used = [names[row] for row in (*taken["train"], *(first + taken["test"]))]
    alone = sum(name is None for name in used)
    known = sorted({name for name in used if name is not None})
    in_files = group.startswith(ATTRIBUTES)  # what a file says of a patient must not be shown, nor kept in a run
    such = "" if in_files else f", such as {some(known, 3)}"
    several = plural(len(known), "group", "groups")
    one = ": all are of one" if len(known) == 1 and not alone else ""
    notes: list[Note | str] = [
        f"{key}.group finds {several} in {plural(len(used) - alone, 'image', 'images')}{such}{one}"
    ]
    if alone:
        where = "in" if in_files else "in the path of"
        own = plural(alone, "image: it is one", "images: each is one")
        notes.append(Note.shareable(f"{key}.group finds nothing {where} {own} of its own"))
    left = {split: None if numbers is None else numbers[taken[split]] for split, numbers in groups.items()}
    return groups, [*notes, *shared_notes(left, f"{key}.group")]


def _unsplit(
    path: Path, layout: Layout, key: str, group: str | None, limits: Mapping[str, int | None]
) -> tuple[Split, Split | None, list[Line]]:
    """The training images, the test images, and lines on these, of a root without ``train/``. Raises UserError if it
    cannot be read without.
    """
    _, folders, _ = entries(path, key)
    within = [inner["train"] for folder in folders if "train" in (inner := split_folders(folder, key))]
    if within and layout in WITH_CLIENTS:
        return _split_within(path, folders, layout, key)
    if within:
        hint = (
            f"if its folders are clients: {key}.layout=clients, or clients_flat if there are no classes in them, with "
        )
        hint += f"{key}.partition.name=natural"
        filled = [train for train in within if images_below(train, key)] or within
        hint += f"; if not: {key}.path={printable(filled[0].parent)}" if len(filled) == 1 else ""
        shown = printable(filled[0].relative_to(path))
        raise layout_error(path, layout, f"has no folder train/, but {shown}/; {hint}", key, trees=False)
    files = images_below(path, key)
    if not files or split_folders(path, key):
        problem = "has no folder train/" + ("" if files else f" and no images{instead(path)}")
        raise layout_error(path, layout, problem, key)
    refuse_twins(files, path, NAMED[layout], key)
    clients = [client_of(file, path, layout) for file in files]
    whole = Split(path, files, [class_of(file, path, layout) for file in files], clients)
    unread = _unread_tables(path, path, key)
    if not (class_names := known_names(whole.classes)):
        return whole, None, unread
    labels = numbers_of(whole.classes, class_names)
    held_by = numbers_of(clients, known_names(clients)) if layout == "clients" else None
    groups = _groups({"train": files, "test": []}, path, group, key, limits)[0]["train"]
    rest, held_out = stratified_halves(labels, TEST_SHARE, held_by, groups)
    train, test = whole.rows(rest), whole.rows(held_out)
    where = "folders" if layout == "classes" else "client folders' folders"
    none = f"; if they are none: {key}.layout=clients_flat" if layout == "clients" else ""
    together = "" if groups is None else f", as near as whole groups of {key}.group allow"
    if unlabelled := test.classes.count(None):
        together += f"; {unlabelled} of them, of the same groups, have no label"
    counted = of_all(limits, train.files, test.files)
    before = (
        f"{printable(path)} has no train/ and test/: its {where} ({some(class_names)}) are the classes, and a fifth "
        f"of each{rounded(labels, held_out, groups)}"
    )
    held = HeldOut(before, len(test.files), len(files), f"{counted}{together}{none}", groups is not None)
    return (
        train,
        test if test.files else None,
        [held, *untested(labels, held_out, class_names, TEST_SHARE, groups), *unread],
    )


def _unread_tables(path: Path, folder: Path, key: str) -> list[Line]:
    """A line on tables beside the images, in ``path`` or in ``folder`` below it, which may hold their labels."""
    tables = {entry for place in (path, folder) for entry in place.iterdir() if entry.suffix.lower() in TABLES}
    names = sorted(str(table.relative_to(path)) for table in tables)
    line = f"{some(names)} is not read; {key}.name=table reads a CSV or JSON Lines file and the images that it names"
    return [line] if names else []


def _split_within(path: Path, folders: list[Path], layout: Layout, key: str) -> tuple[Split, Split | None, list[Line]]:
    """As ``_unsplit``, for ``<client>/train/<class>/x.jpg`` and ``<client>/test/<class>/x.jpg``."""
    train, test = Split(path, [], [], []), Split(path, [], [], [])
    unused = 0
    for client, splits in clients_with_splits(path, folders, key).items():
        if "train" in splits:
            train.add(splits["train"], client, key)
        held_out = [splits[name] for name in TEST_FOLDERS if name in splits and images_below(splits[name], key)]
        for folder in held_out[:1]:
            test.add(folder, client, key)
        unused += sum(len(images_below(folder, key)) for folder in held_out[1:])
    if not train.files:
        raise layout_error(path, "clients", f"has no images below its clients' train/{instead(path)}", key)
    note = f"the clients' val/ ({unused} images) is not used where test/ is there"
    notes: list[Line] = [note] if unused else []
    trained = set(train.clients)
    test = replace(test, clients=[client if client in trained else None for client in test.clients])
    train, test = train.read_as(layout), test.read_as(layout)
    return train, test if test.files else None, [*notes, *beside_clients(path, folders, key)]


def _untested(path: Path, train: Split, class_names: tuple[str, ...], layout: Layout, key: str) -> str:
    """What is wrong with labelled images without test images, and what to do if the folders are no classes."""
    if train.folder == path:
        none = "flat" if layout == "classes" else "clients_flat"
        return f"{NONE_HELD_OUT}; {key}.layout={none} reads no label and needs none"
    loose = sum(name is None for name in train.classes)
    beside = f", with {loose} unlabelled images beside them" if loose else ""
    alone = f"; {key}.path={printable(train.folder)} holds a fifth of each class out"
    none = "flat" if layout == "classes" else "clients_flat"
    level = "train/" if layout == "classes" else "the client folders of train/"
    return (
        "has no images in test/ or val/, and labelled images need a test split; the folders in "
        f"{level} are taken for classes ({some(class_names)}){beside}; if they are none: {key}.layout={none}{alone}"
    )


def _held_out(path: Path, layout: Layout, train: Split, key: str) -> tuple[Split | None, list[Line]]:
    """The test images that runs measure on, None if there are none; and lines on those that they do not measure on."""
    splits = [*test_splits(path, layout, known_names(train.classes), known_names(train.clients), key).values()]
    if not splits:
        return None, []
    test, *unused = splits
    used = printable(test.folder.name)
    return test, [
        f"{printable(other.folder.name)}/ ({len(other.files)} images) is not used: {used}/ is there" for other in unused
    ]


def _check_trained(
    split: Split,
    train: Split,
    layout: Layout,
    class_names: tuple[str, ...],
    client_names: tuple[str, ...],
    hint: str,
    key: str,
) -> None:
    """Raise UserError unless every class in ``split`` has training images. ``hint`` is what helps, if that is known."""
    unknown = sorted({name for name in split.classes if name is not None} - set(class_names))
    if unknown:
        what = "the class" if layout == "classes" else "the class or client"
        trained = printable(", ".join([*class_names, *client_names]), 120) or "no classes"
        to_set = None
        within = {folder_at(file, train.folder, 1) for file in train.files}
        if layout == "classes" and unknown[0] in within:
            hint += f"; the folders in train/ hold it, so they may be clients: {key}.layout=clients with "
            hint += f"{key}.partition.name=natural"
            to_set = "layout"
        if not (class_names or client_names or hint):
            hint = f"; {key}.layout=flat reads no labels, and `rayfed-ssl evaluate RUN --data FOLDER --protocol knn` "
            hint += "measures the run on a labelled set, with training and test images of its own"
            to_set = "layout"
        loose = any(folders_between(file, split.folder) == (unknown[0],) for file in split.files)
        if class_names and client_names and loose and not hint:
            place = f"{printable(split.folder.name)}/{printable(unknown[0], 80)}/"
            hint = f"; if it is a client that trains on nothing, its images lie in class folders, as {place}"
            hint += f"{printable(class_names[0], 80)}/; or take {place} out, or put images of it into train/"
        elif class_names and not hint:
            hint = f"; take it out of {printable(split.folder.name)}/, or put images of it into train/"
        raise UserError(
            f"{key}.path: {printable(split.folder)} holds {what} {printable(unknown[0], 80)}, which no training image "
            f"has; train/ has {trained}{hint}; accepted: {TREES[layout]}"
        ).setting(to_set)


def _strangers(test: Split, client_names: tuple[str, ...], limit: int | None) -> list[str | None]:
    """The client folder of each test image that the limit leaves, if it has no training images; else None."""
    if not client_names:
        return []
    rows = _taken(len(test.files), limit)
    outer = {row: folder_at(test.files[row], test.folder, 0) for row in rows if test.clients[row] is None}
    return [None if test.classes[row] == outer.get(row) else outer.get(row) for row in rows]


def _taken(count: int, limit: int | None) -> NDArray[np.int64]:
    """The rows, out of ``count``, that a limit leaves; they are evenly spread."""
    if limit is None or limit >= count:
        return np.arange(count)
    return np.linspace(0, count - 1, limit).astype(np.int64)


def _listing(
    name: str,
    split: Split,
    class_names: tuple[str, ...],
    client_names: tuple[str, ...],
    groups: NDArray[np.int64] | None,
    limit: int | None,
) -> Listing:
    rows, clients = _taken(len(split.files), limit), None
    if any(client is not None for client in split.clients):
        clients = numbers_of(split.clients, client_names)[rows]

    def read() -> Iterator[tuple[str, Payload]]:
        return ((str(split.files[row]), split.files[row]) for row in rows)

    labels = numbers_of(split.classes, class_names)
    classes, owners = (tuple(printable(given) for given in names) for names in (class_names, client_names))
    row_groups = None if groups is None else groups[rows]
    return Listing(labels[rows], classes, read, clients, owners, unseen_classes(name, labels, rows), row_groups)
