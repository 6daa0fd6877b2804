"""Checks that the folder or the file of a source's images is there."""

from __future__ import annotations

import stat
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable


def existing_place(path: Path | None, name: str, key: str) -> Path:
    """The path of the source called ``name``, with ``~`` expanded. Raises UserError unless it is a folder or a regular
    file that is there.
    """
    if path is None:
        raise UserError(f"{key}.path: not set; {key}.name={name} needs a file or folder of images")
    path = path.expanduser()
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(f"{key}.path: {printable(path)} does not exist (seen from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{key}.path: {printable(path)} cannot be read ({reason})") from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise UserError(f"{key}.path: {printable(path)} is neither a file nor a folder (a FIFO, socket or device)")
    return path
