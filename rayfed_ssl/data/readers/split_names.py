"""Recognises splits by the names of their folders, like ``Training/`` and ``Valid/``, and of their Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePath

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable

NAMES = {  # split -> its folder's names, in any case; test images are those of "test", else of "val"
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "valid", "validation"),
}
TEST_NAMES = ("test", "validation", "val")  # names of files: the first that is there has the test images
AFTER = "-_. 0123456789"  # may follow the split's name in that of a file, as on the Hugging Face Hub
AMBIGUOUS = {"valid"}  # may be a class beside "invalid", so it is a split only if there is a training split


def split_folders(path: Path, key: str) -> dict[str, Path]:
    """Split -> its folder in ``path``. Raises UserError if two folders have names of the same split."""
    found: dict[str, Path] = {}
    names = sorted(os.listdir(path)) if os.access(path, os.R_OK) else []
    for name, split in ((name, split_named(name)) for name in names):
        folder = path / name
        if split is None or not folder.is_dir():
            continue
        if split in found and not found[split].samefile(folder):
            both = f"{printable(found[split].name)}/ and {printable(name)}/"
            raise UserError(f"{key}.path: {printable(path)} has {both}, which are names of one split; rename one")
        found[split] = folder
    if "train" not in found and "val" in found and found["val"].name.lower() in AMBIGUOUS:
        del found["val"]
    return found


def to_test_on(split: str, images: str, key: str) -> str:
    """The end of a line that says by which key runs test on a split that is not used; "" for public images, none of
    which are tested on.
    """
    return f"; {key}.test_split={printable(split)} tests on {images}" if key == "data" else ""


def split_named(name: str) -> str | None:
    """The split, train, test or val, of a folder of this name; None if it is no split's."""
    return next((split for split, names in NAMES.items() if name.lower() in names), None)


def spellings(split: str) -> tuple[str, ...]:
    """What the names of a split's files may begin with: for "val" also "valid" and "validation"."""
    for names in NAMES.values():
        if split in names:
            return tuple(name for name in names if name.startswith(split))
    return (split,)


def is_file_of(name: str, split: str) -> bool:
    """Whether a file of this name belongs to the split: ``train.parquet``, ``train-00000-of-00001.parquet`` and
    ``training_a.parquet`` belong to "train", ``trainees.parquet`` does not.
    """
    starts = spellings(split)
    return any(name.startswith(start) and name[len(start) : len(start) + 1] in ("", *AFTER) for start in starts)


def split_of_file(path: PurePath) -> str | None:
    """Which of "train" and ``TEST_NAMES`` a file belongs to, by its folder's name or else its own; None if to none."""
    splits = ("train", *TEST_NAMES)
    by_folder = (split for split in splits if path.parent.name in spellings(split))
    return next(by_folder, next((split for split in splits if is_file_of(path.name, split)), None))


def maybe_splits(names: Iterable[str]) -> list[str]:
    """A line if folders that are taken for classes or clients seem to be splits with other names, such as
    ``training_set/`` and ``test_set/``.
    """
    found = {start: [name for name in names if name.lower().startswith(start)] for start in ("train", "test", "val")}
    if not found["train"] or not (found["test"] or found["val"]):
        return []
    shown = ", ".join(printable(alike[0], 80) for alike in found.values() if alike)
    return [f"{shown} are taken for classes or clients; if they are splits, rename them to train/ and test/ (or val/)"]
