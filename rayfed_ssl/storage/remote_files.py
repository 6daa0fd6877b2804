"""Lists and copies files of a file system that pyarrow reaches by a URI, and detects credentials in a URI."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pyarrow import fs

COPIED_BYTES = 1 << 20  # at a time


def has_credentials(uri: str) -> bool:
    """Whether the URI contains a user or a password. Azure's ``abfs://container@account..`` contains neither, unless
    there is a colon before the @.
    """
    found = re.match(r"([^/:]*)://([^/]*)@", uri)
    if found is None:
        return False
    return found[1].lower() not in ("abfs", "abfss") or ":" in found[2]


def files_below(system: fs.FileSystem, root: str) -> set[str]:
    """The paths, relative to ``root``, of all files below it; empty if ``root`` does not exist."""
    infos = system.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    return {info.path[len(root) + 1 :] for info in infos if info.type == fs.FileType.File}


def download(system: fs.FileSystem, path: str, target: Path) -> None:
    """Copy the file at ``path`` of ``system`` to ``target``, whose missing folders are created."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with system.open_input_stream(path) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, COPIED_BYTES)


def upload(system: fs.FileSystem, file: Path, path: str) -> None:
    """Copy ``file`` to ``path`` of ``system``."""
    with file.open("rb") as source, system.open_output_stream(path) as sink:
        shutil.copyfileobj(source, sink, COPIED_BYTES)
