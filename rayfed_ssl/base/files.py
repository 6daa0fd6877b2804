"""Writes files completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rayfed_ssl.base.schema import UserError

UNABLE = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})  # errors of file systems that cannot sync folders


def replace_file(
    path: Path, write: Callable[[Path], object], within: Path | None = None, *, shared: bool = False
) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it to ``path``. Readers see either the old file
    or the complete new one.

    Args:
        within: an existing folder that contains ``path``, directly or one level down. It is not created again if it
            was removed. Without it, all missing parent folders are created.
        shared: other processes may write the same file at the same time, so each uses a temporary file of its own.
    Raises:
        FileNotFoundError: ``within`` was removed.
        OSError: the disk is full, or the folder cannot be written to. The temporary file is removed.
    """
    if path.parent != within:
        path.parent.mkdir(parents=within is None, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp" if shared else f".{path.name}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a file that was renamed into it survives a power cut.

    Does nothing on file systems that cannot sync folders.

    Raises:
        OSError: the disk failed.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # the folder may be written to, but not be read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
    finally:
        os.close(descriptor)


def readable_as_usual(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file, and give it the permissions that the umask gives new files. The files that safetensors
    writes are otherwise readable by their owner alone.
    """
    path.touch()
    mode = path.stat().st_mode & 0o777
    write(path)
    path.chmod(mode)


def finite(value: Any) -> Any:
    """``value`` with None in place of NaN and infinity, which JSON cannot represent."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any] | None:
    """The mapping in a JSON file; None if there is no such file.

    Raises:
        UserError: the file cannot be read, or holds something other than a mapping.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}); the file is damaged") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: found {type(found).__name__}; must be a mapping, so the file is damaged")
    return found


def write_json(path: Path, value: Mapping[str, object], within: Path | None = None) -> None:
    """Write ``value`` as indented JSON with :func:`replace_file`. Raises ValueError for NaN and infinity, which JSON
    cannot represent.
    """
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    replace_file(path, lambda temporary: temporary.write_text(text), within)
