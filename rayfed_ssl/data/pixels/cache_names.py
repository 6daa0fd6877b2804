"""Names of cache files: they depend on the paths of a source's files and on a digest of these files; where images that
cannot be decoded are left out, on which these are.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding.dicom import installed
from rayfed_ssl.data.decoding.formats import HEIC_HERE, SUFFIXES, TIFFFILE_HERE
from rayfed_ssl.data.images import Source

CONTENT_DIGEST_BYTES = 256 * 2**20


def root_of(source: Source) -> Path | None:
    """The folder that a source's files are named from; None where there are none."""
    return source.root or (Path(os.path.commonpath([path.parent for path in source.files])) if source.files else None)


def left_out(ranged: bool, rasters: bool) -> dict[str, object]:
    """What says which images can be decoded, where others are left out: what is installed, and what earlier versions
    left out that is read now.

    Args:
        ranged: whether images of more than 8 bits have a range.
        rasters: whether images are read band by band.
    """
    found: dict[str, object] = {"of one value": "kept"}  # images of more than 8 bits
    if installed():
        found["dicom"] = installed()
    if HEIC_HERE:
        found["heic"] = True
    if ranged:
        found["deep colours"] = TIFFFILE_HERE  # which were read by the range of all 16 bits alone
    if rasters:
        found |= {"tifffile": TIFFFILE_HERE, "turned bands": "read"}  # and those whose zero is white
    return found


def add_files(digest: hashlib.blake2b, source: Source, key: str) -> None:
    """Add names and content to the digest, of more than ``CONTENT_DIGEST_BYTES`` the times of change instead.

    An image that cannot be read is one that cannot be decoded, of which its decoder tells; here it is another content.
    Raises UserError for other unreadable files, and for what is no regular file.
    """
    root = root_of(source) or Path()
    found = [(file, _found(file, key)) for file in source.files]
    whole = sum(stats.st_size for _, stats in found if stats is not None) <= CONTENT_DIGEST_BYTES
    for file, stats in found:
        name, size = os.fsencode(file.relative_to(root)), -1 if stats is None else stats.st_size
        digest.update(b"\0%s\0%d\0" % (name, size))
        if stats is None:
            continue
        if not whole:
            digest.update(str(stats.st_mtime_ns).encode())
            digest.update(b"" if os.access(file, os.R_OK) else b" unreadable")
            continue
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            _refuse_unreadable(file, error, key)
            digest.update(b"unreadable")


def _found(file: Path, key: str) -> os.stat_result | None:
    """What is known of a file; None of an image that is not there, such as a link that leads nowhere."""
    try:
        stats = file.stat()
    except OSError as error:
        _refuse_unreadable(file, error, key)
        return None
    if not stat.S_ISREG(stats.st_mode):
        raise UserError(f"{key}.path: {printable(file)} is no regular file (a folder, FIFO, socket or device)")
    return stats


def _refuse_unreadable(file: Path, error: OSError, key: str) -> None:
    """Raises UserError, unless the file is an image by its suffix."""
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"{key}.path: {printable(file)} cannot be read ({error.strerror})") from error
