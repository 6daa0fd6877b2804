"""``error.txt`` of a run folder: why the run failed, until it is resumed."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path

from rayfed_ssl.base.text import last_line

ERROR = "error.txt"


def keep(folder: Path, error: BaseException) -> None:
    """Write down what ended the run in ``folder``; nothing where the disk refuses, which is not what went wrong."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).write_text("".join(traceback.format_exception(error)), encoding="utf-8")


def clear(folder: Path) -> None:
    """The run goes on: nothing has failed."""
    (folder / ERROR).unlink(missing_ok=True)


def kept(folder: Path) -> str | None:
    """The last line of what is written there; None where nothing is."""
    try:
        return last_line((folder / ERROR).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
