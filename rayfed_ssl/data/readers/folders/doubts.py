"""Lines on folders and names that may mean something else than they are taken for: masks beside images, folders of
classes within a class, patients taken for classes, classes in the names of files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rayfed_ssl.base.text import composed, plural, printable
from rayfed_ssl.data.readers.folders.layouts import Layout, some
from rayfed_ssl.data.readers.folders.names import folder_at, folders_between, known_names

OF_MASK = re.compile(r"(.+?)[ _-]+(?:mask|seg|segmentation|groundtruth|gt)s?(?:[ _-]?\d+)?", re.IGNORECASE)
MASKS = {"mask", "masks", "segmentation", "segmentations", "groundtruth", "gt"}  # folders' names, as ``_letters``
IMAGES = {"image", "images", "img", "imgs"}  # names of the folders beside those of masks, as ``_letters``
BEGINNING = re.compile(r"([^\W\d_]{2,})[ ._-]*\d+")  # how a file's name begins: a word, then a number
PATIENT_NAME = re.compile(r"(?:patient|subject|participant|case)s?[ _-]?\d+", re.IGNORECASE)
MOST_CLASSES = 20  # different words that the names of files may begin with


def maybe_masks(files: Sequence[Path], root: Path) -> list[str]:
    """A line if some of the images below ``root`` have names of masks of others: ``x_mask.png`` beside ``x.png``, or
    any name in a folder ``masks/`` beside ``images/`` (``mask/`` beside ``no_mask/`` is a class).
    """
    known = {(file.parent, file.stem) for file in files}
    beside = [file for file in files if (match := OF_MASK.fullmatch(file.stem)) and (file.parent, match[1]) in known]
    pictured = {above for file in files for above in _above(file, root, IMAGES)}
    within = [file for file in files if pictured.intersection(_above(file, root, MASKS))]
    masks = sorted({*beside, *within})
    if not masks or len(masks) == len(files):
        return []
    first = printable(masks[0].relative_to(root), 80)
    count = plural(len(masks), "image is", "images are")
    return [f"{count} called as masks of others are ({first}), and read as any other: move masks away"]


def _above(file: Path, root: Path, names: set[str]) -> list[tuple[str, ...]]:
    """The folders above each folder with one of these ``names`` between ``root`` and ``file``, from ``root`` on."""
    folders = folders_between(file, root)
    return [folders[:level] for level, name in enumerate(folders) if _letters(name) in names]


def _letters(name: str) -> str:
    """The letters of a name alone, in small letters."""
    return "".join(letter for letter in name.lower() if letter.isalpha())


def classes_within(files: Sequence[Path], classes: Sequence[str | None], root: Path, depth: int) -> list[str]:
    """A line if all images of a class lie in folders within it that have names of other classes, as happens if a client
    has one more level of folders than others have.

    Args:
        classes: the class of each image below ``root``, which is its folder ``depth`` levels below it.
    """
    inner: dict[str, set[str | None]] = {}
    for file, label in zip(files, classes, strict=True):
        if label is not None:
            inner.setdefault(label, set()).add(folder_at(file, root, depth + 1))
    names = inner.keys()
    for label, folders in sorted(inner.items()):
        if {name for name in folders if name is not None} == folders <= names - {label}:
            example = next(file for file, own in zip(files, classes, strict=True) if own == label)
            where = printable(example.relative_to(root).parent, 80)
            return [
                f"{printable(label, 80)} is taken for a class, and folders in it that are called as other classes, "
                f"{some(known_names([*folders]))}, for none ({where}/): move them one level up if they are classes"
            ]
    return []


def maybe_patients(class_names: Sequence[str], layout: Layout, group: str | None, key: str) -> list[str]:
    """A line if two or more classes all have names like those of patients, such as ``patient_01``; ``group`` is the
    key's value.
    """
    if len(class_names) < 2 or not all(PATIENT_NAME.fullmatch(name) for name in class_names):
        return []
    other = "clients_flat" if layout == "clients" else "flat"
    together = "" if group else f", and {key}.group, which keeps those of one together"
    return [
        f"{some(class_names)} are taken for classes, and are called as patients are: if they are patients, "
        f"{key}.layout={other}, with which no image has a label{together}"
    ]


def classes_in_names(files: Sequence[Path]) -> list[str]:
    """A line if the names of the files seem to name classes, as ``cat.12.jpg`` and ``dog.7.jpg`` do; for when no folder
    does. Each begins with one of 2 to ``MOST_CLASSES`` words, then a number; on average two or more files share a word.
    """
    matches = [BEGINNING.match(composed(file.stem)) for file in files]
    words = Counter(match[1] for match in matches if match)
    if words.total() < len(files) or not 2 <= len(words) <= MOST_CLASSES or len(files) < 2 * len(words):
        return []
    return [
        f"no folder is a class, and names of files, which begin with {some(sorted(words))}, say none: where these are "
        "the classes, sort the files into folders called so, or list them with labels in a CSV file (name=table)"
    ]
