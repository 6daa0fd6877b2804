"""Reads from the first bytes of a file, without a DICOM library, whether it is DICOM and whether it has an image.

A DICOM file begins with 128 bytes of any kind and the four letters ``DICM``; then comes the File Meta Information,
always in explicit VR little endian (PS3.10, section 7.1). Its SOP class tells reports, plans and directories from
images.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Literal

Kind = Literal["image", "no image", "other"]
"""What a file is: DICOM that may hold an image ("image"), DICOM that holds none ("no image"), or no DICOM ("other")."""

HEAD = 1024  # bytes; the meta information names the SOP class in its first 100 or so
NO_IMAGE = "DICOM without an image"  # what such files are called where they are counted
_MARK, _MARKED = b"DICM", slice(128, 132)
_SOP_CLASS = b"\x02\0\x02\0UI"  # (0002,0002) Media Storage SOP Class UID
_STORAGE = "1.2.840.10008.5.1.4.1.1."
_FAMILIES = tuple(
    f"{_STORAGE}{family}."
    for family in (
        "11",  # presentation states
        "88",  # structured reports, key object selections
        "9",  # waveforms
        "104",  # encapsulated PDF, CDA and models
        *("38", "39", "200"),  # hanging protocols, palettes, implants and protocols of acquisition
        *("68", "78", "79"),  # scanned surfaces, measurements of eyes
    )
)  # PS3.4, annex B.5
_CLASSES = {
    "1.2.840.10008.1.3.10",  # DICOMDIR
    f"{_STORAGE}4.2",  # spectra
    *(
        f"{_STORAGE}66{part}" for part in ("", ".1", ".2", ".3", ".5", ".6")
    ),  # raw data, registrations, surfaces, tracts
    f"{_STORAGE}67",  # maps of values
    *(f"{_STORAGE}481.{part}" for part in range(3, 26)),  # RT structures, plans, records; 1 and 2 are images and doses
}


def is_dicom(head: bytes) -> bool:
    """Whether a file that begins like this is DICOM."""
    return head[_MARKED] == _MARK


def holds_no_image(head: bytes) -> bool:
    """Whether a DICOM file that begins like this has a SOP class without pixels."""
    place = head.find(_SOP_CLASS, _MARKED.stop)
    if place < 0:
        return False
    start = place + len(_SOP_CLASS) + 2
    length = int.from_bytes(head[start - 2 : start], "little")
    name = head[start : start + length].rstrip(b"\0 ").decode("ascii", "replace")
    return name in _CLASSES or name.startswith(_FAMILIES)


def kind_of(path: str, stats: os.stat_result) -> Kind:
    """What a regular file is; "other" if it cannot be read."""
    return _kind(path, stats.st_mtime_ns, stats.st_size)


@lru_cache(maxsize=2**17)  # a folder is walked several times
def _kind(path: str, changed: int, size: int) -> Kind:
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
    except OSError:
        return "other"
    if not is_dicom(head):
        return "other"
    return "no image" if holds_no_image(head) else "image"
