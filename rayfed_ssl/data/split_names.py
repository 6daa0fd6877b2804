"""Recognises which folders are splits, under names like ``Training/`` and ``Valid/``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable

NAMES = {  # split -> its folder's names, in any case; test images are those of "test", else of "val"
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "valid", "validation"),
}
AMBIGUOUS = {"valid"}  # may be a class beside "invalid": a split only where there are training images


def split_folders(path: Path, key: str) -> dict[str, Path]:
    """The folders in ``path`` that are its splits. Raises UserError where two folders are the same split."""
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


def split_named(name: str) -> str | None:
    """train, test or val where a folder of this name is that split; None where it is none."""
    return next((split for split, names in NAMES.items() if name.lower() in names), None)


def maybe_splits(names: Iterable[str]) -> list[str]:
    """A line where folders that are taken for classes or clients seem to be splits of other names, such as
    ``training_set/`` and ``test_set/``.
    """
    found = {start: [name for name in names if name.lower().startswith(start)] for start in ("train", "test", "val")}
    if not found["train"] or not (found["test"] or found["val"]):
        return []
    shown = ", ".join(printable(name, 80) for mine in found.values() for name in mine[:1])
    return [f"{shown} are taken for classes or clients; if they are splits, rename them to train/ and test/ (or val/)"]
