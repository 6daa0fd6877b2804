"""Names of cache files. They depend on the paths of a source's files and on a digest of these files, and, if images
that cannot be decoded are left out, on what decides which images these are.
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

CONTENT_DIGEST_BYTES = 256 * 2**20  # files of more bytes in all are told apart by when they were changed


def root_of(source: Source) -> Path | None:
    """The folder that the names of a source's files are relative to; None if it has no files."""
    if source.root is not None or not source.files:
        return source.root
    return Path(os.path.commonpath([path.parent for path in source.files]))


def left_out(ranged: bool, rasters: bool) -> dict[str, object]:
    """What decides which images are left out because they cannot be decoded: what is installed, and what is read now
    that earlier versions left out.

    Args:
        ranged: whether images of more than 8 bits have a range.
        rasters: whether images are read band by band.
    """
    settings: dict[str, object] = {"of one value": "kept"}  # images of more than 8 bits
    if installed():
        settings["dicom"] = installed()
    if HEIC_HERE:
        settings["heic"] = True
    if ranged:
        settings["deep colours"] = TIFFFILE_HERE  # earlier versions read them by the range of all 16 bits alone
    if rasters:
        settings |= {"tifffile": TIFFFILE_HERE, "turned bands": "read"}  # also bands whose zero is white
    return settings


def add_files(digest: hashlib.blake2b, source: Source, key: str) -> None:
    """Add the names and the content of a source's files to the digest; instead of the content the times of change, if
    there are more than ``CONTENT_DIGEST_BYTES``.

    An image that cannot be read is reported when it is decoded; here it counts as another content. Raises UserError for
    other files that cannot be read, and for a file that is no regular one.
    """
    root = root_of(source) or Path()
    files = [(file, _stats(file, key)) for file in source.files]
    by_content = sum(stats.st_size for _, stats in files if stats is not None) <= CONTENT_DIGEST_BYTES
    for file, stats in files:
        name, size = os.fsencode(file.relative_to(root)), -1 if stats is None else stats.st_size
        digest.update(b"\0%s\0%d\0" % (name, size))
        if stats is None:
            continue
        if not by_content:
            digest.update(str(stats.st_mtime_ns).encode())
            digest.update(b"" if os.access(file, os.R_OK) else b" unreadable")
            continue
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            _refuse_unreadable(file, error, key)
            digest.update(b"unreadable")


def _stats(file: Path, key: str) -> os.stat_result | None:
    """A file's status; None for an image that is not there, such as a link that leads nowhere. Raises UserError as
    ``add_files`` does.
    """
    try:
        stats = file.stat()
    except OSError as error:
        _refuse_unreadable(file, error, key)
        return None
    if not stat.S_ISREG(stats.st_mode):
        raise UserError(f"{key}.path: {printable(file)} is no regular file (a folder, FIFO, socket or device)")
    return stats


def _refuse_unreadable(file: Path, error: OSError, key: str) -> None:
    """Raise UserError for a file that cannot be read, unless it has the suffix of an image."""
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"{key}.path: {printable(file)} cannot be read ({error.strerror})") from error
