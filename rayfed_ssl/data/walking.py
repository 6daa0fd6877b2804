"""The image files below a folder: links are followed, hidden entries and files that are no images are not."""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
MOST_WAYS = 1000  # links may lead to one folder in so many ways


def images_below(root: Path, key: str) -> list[Path]:
    """All image files below a folder, sorted by path. Raises UserError for links in a circle and unreadable entries."""
    found: list[Path] = []
    ways: Counter[tuple[int, int]] = Counter()
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(root, frozenset())]
    while waiting:
        folder, above = waiting.pop()
        files, folders, identity = entries(folder, key)
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


def entries(folder: Path, key: str) -> tuple[list[Path], list[Path], tuple[int, int]]:
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
