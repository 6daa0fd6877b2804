"""The file ``error.txt`` of a run folder, which says why the run failed until it is resumed."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path

from rayfed_ssl.base.text import last_line

ERROR = "error.txt"


def keep(folder: Path, error: BaseException) -> None:
    """Write the traceback of the error that ended the run in ``folder``. Errors of the disk are ignored, lest they hide
    it.
    """
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).write_text("".join(traceback.format_exception(error)), encoding="utf-8")


def clear(folder: Path) -> None:
    """Remove the file, because the run goes on."""
    (folder / ERROR).unlink(missing_ok=True)


def kept(folder: Path) -> str | None:
    """The last line of the traceback in ``error.txt``; None if there is no such file."""
    try:
        return last_line((folder / ERROR).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
