"""Checks what a source lists before it is decoded: labels, clients, and the names of both; orders names of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import composed, printable
from rayfed_ssl.data.images import MOST_CLASSES, Listing, Source


def sound(listing: Listing, key: str) -> Listing:
    """The listing of any source, with its names in normal form C. Raises UserError if it is no listing, or if its
    labels or clients do not fit its names.
    """
    _refuse_no_listing(listing, key)
    lowest, largest = int(listing.labels.min(initial=0)), int(listing.labels.max(initial=-1))
    if lowest < -1 or largest >= MOST_CLASSES:
        label = lowest if lowest < -1 else largest
        raise UserError(f"{key}.path: found the label {label}; allowed: 0 to {MOST_CLASSES - 1}, -1 where unknown")
    if largest >= len(listing.class_names):
        raise UserError(f"{key}.path: found the label {largest}; there are {len(listing.class_names)} class names")
    if listing.clients is not None and int(listing.clients.max(initial=-1)) >= len(listing.client_names):
        raise UserError(f"{key}.path: found more clients than their {len(listing.client_names)} names")
    classes, clients = (_spelt(names, key) for names in (listing.class_names, listing.client_names))
    return replace(listing, class_names=classes, client_names=clients)


def _refuse_no_listing(listing: object, key: str) -> None:
    """Raise UserError for what a third-party source may return in place of a listing, or put into one."""
    said = f"{key}.name: the source"
    if not isinstance(listing, Listing):
        raise UserError(f"{said} lists {type(listing).__name__}; must list a rayfed_ssl.data.images.Listing")
    for name in ("labels", "clients", "groups"):
        rows = getattr(listing, name)
        if rows is None and name != "labels":
            continue
        if not (isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and rows.shape == (len(listing.labels),)):
            found = f"{rows.dtype} {rows.shape}" if isinstance(rows, np.ndarray) else type(rows).__name__
            raise UserError(f"{said} lists {name} as {found}; must be an array with a whole number for each image")
    for name in ("class_names", "client_names"):
        if wrong := [one for one in getattr(listing, name) if not isinstance(one, str)]:
            raise UserError(f"{said} lists {name} with {wrong[0]!r}; must be text")
    if not callable(listing.read):
        raise UserError(
            f"{said} lists images by {type(listing.read).__name__}; read must be a function that yields them"
        )


def _spelt(names: Sequence[str], key: str) -> tuple[str, ...]:
    """The names of classes or clients in normal form C. Raises UserError if two names become the same."""
    first: dict[str, str] = {}
    for name in names:
        if first.setdefault(composed(name), name) != name:
            raise UserError(
                f"{key}.path: two classes or clients are called {printable(name, 80)}, spelt in two normal forms of "
                "Unicode (NFC and NFD); allowed: one of each name"
            )
    return tuple(printable(composed(name)) for name in names)


def in_order(names: Sequence[str], source: Source) -> list[str]:
    """The names of images in the order of the source's files and of their rows, whichever split they belong to."""
    places = {printable(path): place for place, path in enumerate(source.files)}

    def place(name: str) -> tuple[int, int]:
        file, _, row = name.rpartition(" row ")
        if name in places or not row.isdecimal():
            return places.get(name, len(places)), 0
        return places.setdefault(file, len(places)), int(row)  # ``file`` may be an array in a file

    return sorted(names, key=place)


def refuse_empty(counts: Mapping[str, tuple[int, int]], labelled: bool, path: Path | None, key: str) -> None:
    """Raise UserError if a split holds no image. Test images are only needed if training images are ``labelled``.

    Args:
        counts: split -> (number of images, number of images that cannot be decoded and were left out).
    """
    for split, (images, skipped) in counts.items():
        if not images and (split == "train" or labelled):
            where = "" if path is None else f" in {printable(path)}"
            which = "training" if split == "train" else split
            broken = f" ({skipped} cannot be decoded)" if skipped else ""
            raise UserError(f"{key}.path: no {which} images{where}{broken}")
