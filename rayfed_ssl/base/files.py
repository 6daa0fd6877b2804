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

UNABLE = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})  # of file systems that do not sync folders


def replace_file(
    path: Path, write: Callable[[Path], object], within: Path | None = None, *, shared: bool = False
) -> None:
    """Let ``write`` fill a file beside ``path`` and put it in place: readers see the old file or the new one.

    Args:
        within: a folder that is there already, in which, or in a folder of which, the file is to lie. It is not made
            again where it is gone; without it every folder above the file is made.
        shared: other processes may write the same file at the same time; each fills one of its own first.
    Raises:
        FileNotFoundError: ``within`` is gone.
        OSError: the disk takes no more, or the folder cannot be written to; nothing is left of the new file.
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
    """Bring the names in a folder to the disk: a file that was put in place is there after a power cut, too.

    Raises:
        OSError: the disk failed. File systems that cannot do this are left to do it when they please.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that can be written to and not be listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
    finally:
        os.close(descriptor)


def readable_as_usual(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file, and give it the mode that a new file has here (the umask's): safetensors' own files
    can be read by their owner alone.
    """
    path.touch()
    mode = path.stat().st_mode & 0o777
    write(path)
    path.chmod(mode)


def finite(value: Any) -> Any:
    """A value for JSON, with null for the numbers that JSON does not have: NaN and the infinite ones."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any] | None:
    """The mapping in a JSON file; None where there is no such file.

    Raises:
        UserError: it cannot be read, or holds something else.
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
    """Indented JSON, by :func:`replace_file`. Raises ValueError on NaN and infinity, which JSON does not have."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    replace_file(path, lambda temporary: temporary.write_text(text), within)
