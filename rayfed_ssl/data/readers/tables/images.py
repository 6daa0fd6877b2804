"""Which image file a cell of a table means.

A cell is a path from the table's folder, or the end of one: the name of a file, or folders and a name, with the file's
suffix or without. Names are compared in Unicode's normal form C, and suffixes in small letters. If a path is from
elsewhere (``/kaggle/input/x.png``, ``C:\\scans\\x.png``), the longest end of it that fits counts. If no path of a
column leads to an image, folders that all of them begin with are left off, as few as let any path lead to one. If
``train.csv`` and ``test.csv`` are read, the images of ``train/`` or ``train_images/`` belong to ``train.csv`` alone,
which prefers them to others, unless a path leads elsewhere.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import composed, printable
from rayfed_ssl.data.decoding.formats import SUFFIXES
from rayfed_ssl.data.readers.walking import images_below

ELSEWHERE = re.compile(r"/|\\|[A-Za-z]:[\\/]|[a-z0-9+]+://")  # how paths from elsewhere begin
LONGEST_NAME, LONGEST_PATH = 255, 4095  # bytes, which Linux and its file systems allow


@dataclass
class Places:
    """The image files below a folder, by what a table may call them.

    Args:
        tables: the names, without suffix, of the tables that share the folder, if there are several.
    """

    folder: Path
    key: str
    tables: Sequence[str] = ()
    elsewhere: list[str] = field(default_factory=list)
    """The cells that are paths from elsewhere, and whose end was found here."""

    @cached_property
    def files(self) -> list[Path]:
        return images_below(self.folder, self.key)

    @cached_property
    def _ends(self) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
        """The files by every end of their paths below the folder: with suffix, and without the suffix of an image."""
        with_suffix: dict[str, list[Path]] = defaultdict(list)
        bare: dict[str, list[Path]] = defaultdict(list)
        for file in self.files:
            path = plain(file.relative_to(self.folder).as_posix())
            for ends, called in ((with_suffix, path), (bare, without_suffix(path))):
                parts = called.split("/")
                for start in range(len(parts)):
                    ends["/".join(parts[start:])].append(file)
        return with_suffix, bare

    def find_all(self, cells: Sequence[str], table: str, lines: Sequence[str], above: int = 0) -> list[Path | None]:
        """The files that the cells of a column name; the arguments are those of ``find``, with a line for each cell."""
        return [self.find(cell, table, line, above) for cell, line in zip(cells, lines, strict=True)]

    def find_below(self, cells: Sequence[str], table: str, lines: Sequence[str]) -> list[Path | None]:
        """As ``find_all``, for when no cell names a file: without the first of the folders that all cells begin with,
        or the first two and so on, as few as let any cell lead to a file.
        """
        paths = [os.path.normpath(plain(cell.strip().replace("\\", "/"))) for cell in cells if cell.strip()]
        levels = zip(*(path.split("/")[:-1] for path in paths if not ELSEWHERE.match(path)), strict=False)
        shared = sum(1 for _ in takewhile(lambda folders: len({*folders}) == 1, levels))
        for above in range(1, shared + 1):
            files = self.find_all(cells, table, lines, above)
            if any(files):
                return files
        return [None] * len(cells)

    def find(self, cell: str, table: str, called: str, above: int = 0) -> Path | None:
        """The file that a cell names; None if it names none.

        Args:
            table: the name, without suffix, of the cell's table.
            called: what messages call its row.
            above: how many folders at the beginning of a path do not count.
        Raises:
            UserError: the cell may mean several files.
        """
        text = cell.strip()
        given = self.folder / text
        if not text:
            return None
        if not above and os.path.isfile(given):  # the path of an image is relative if the table's is
            return given if given.is_absolute() == self.folder.is_absolute() else Path(os.path.relpath(given))
        path = plain(text.replace("\\", "/"))
        if not ELSEWHERE.match(text):
            parts = os.path.normpath(path).split("/")[above:]
            file = self._at_end("/".join(parts), table, text, called) if parts else None
            if above and file is not None:
                self.elsewhere.append(text)
            return file
        parts = [part for part in path.split("/") if part]
        for start in range(len(parts)):
            if (file := self._at_end("/".join(parts[start:]), table, text, called)) is not None:
                self.elsewhere.append(text)
                return file
        return None

    def _at_end(self, end: str, table: str, text: str, called: str) -> Path | None:
        """The file whose path ends in ``end``, one of ``table``'s own or else one of no table's; None if there is none.
        Raises UserError if there are several. ``text`` is the whole cell.
        """
        for ends in self._ends:
            candidates = [(self._whose(file), file) for file in ends.get(end, ())]
            files = [file for whose, file in candidates if whose == table]
            files = files or [file for whose, file in candidates if whose is None]
            if len(files) == 1:
                return files[0]
            if files:
                several = " or ".join(printable(file.relative_to(self.folder)) for file in files[:2])
                raise UserError(
                    f"{self.key}.columns.image: {printable(called)} names {printable(text, 80)}, which may be "
                    f"{several} below {printable(self.folder)}; allowed: paths from the table's folder"
                )
        return None

    def _whose(self, file: Path) -> str | None:
        """The table whose name begins that of the first folder on the way to the file; None if there is none."""
        folder, *below = PurePosixPath(file.relative_to(self.folder)).parts
        return next((table for table in self.tables if below and folder.lower().startswith(table)), None)

    def absent(self, cell: str) -> Path | None:
        """The path of an image that is not there, for a message; None if no file can have such a path."""
        text = cell.strip()
        longest = max((len(os.fsencode(part)) for part in text.split("/")), default=0)
        possible = longest <= LONGEST_NAME and len(os.fsencode(self.folder / text)) <= LONGEST_PATH
        return self.folder / text if text and possible and "\0" not in text else None


def plain(path: str) -> str:
    """The path in normal form C, with the suffix of an image in small letters."""
    path = composed(path)
    bare = without_suffix(path)
    return bare + path[len(bare) :].lower()


def without_suffix(path: str) -> str:
    """The path without the suffix of an image; any other suffix stays, as in DICOM's ``1.2.840.1``."""
    root, suffix = os.path.splitext(path)
    return root if suffix.lower() in SUFFIXES else path
