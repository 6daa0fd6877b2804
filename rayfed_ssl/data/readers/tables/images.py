"""Which image file a cell of a table means.

A cell is a path from the table's folder, or the end of one: the name of a file, or folders and a name, with the file's
suffix or without. Names are compared in Unicode's normal form C, and suffixes in small letters. Of a path from
elsewhere (``/kaggle/input/x.png``, ``C:\\scans\\x.png``) as much of the end counts as fits. Where no path of a column
leads to an image, the folders that all of them begin with are left off, as few as let any lead to one. Where
``train.csv`` and ``test.csv`` are read, the images of ``train/`` or ``train_images/`` are those of ``train.csv`` alone,
and come first there, unless a path leads elsewhere.
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

ELSEWHERE = re.compile(r"/|\\|[A-Za-z]:[\\/]|[a-z0-9+]+://")
LONGEST_NAME = 255  # bytes, of every file system


@dataclass
class Places:
    """The image files below a folder, by what a table may call them.

    Args:
        tables: the names, without suffix, of the tables that are read, where they are several.
    """

    folder: Path
    key: str
    tables: Sequence[str] = ()
    elsewhere: list[str] = field(default_factory=list)
    """Cells that are paths from elsewhere, of which the end was found here."""

    @cached_property
    def files(self) -> list[Path]:
        return images_below(self.folder, self.key)

    @cached_property
    def _ends(self) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
        """Every end of a file's path below the folder -> files: as it is, and without the suffix of an image."""
        whole: dict[str, list[Path]] = defaultdict(list)
        bare: dict[str, list[Path]] = defaultdict(list)
        for file in self.files:
            path = plain(file.relative_to(self.folder).as_posix())
            for ends, said in ((whole, path), (bare, without_suffix(path))):
                parts = said.split("/")
                for start in range(len(parts)):
                    ends["/".join(parts[start:])].append(file)
        return whole, bare

    def find_all(self, cells: Sequence[str], table: str, lines: Sequence[str], above: int = 0) -> list[Path | None]:
        """The files that the cells of a column name; the arguments are those of ``find``, a line for each cell."""
        return [self.find(cell, table, line, above) for cell, line in zip(cells, lines, strict=True)]

    def find_below(self, cells: Sequence[str], table: str, lines: Sequence[str]) -> list[Path | None]:
        """Like ``find_all``, where no cell names a file: without the first of the folders that all cells begin with, or
        the first two and so on, whichever lets any of them lead to a file.
        """
        paths = [os.path.normpath(plain(cell.strip().replace("\\", "/"))) for cell in cells if cell.strip()]
        levels = zip(*(path.split("/")[:-1] for path in paths if not ELSEWHERE.match(path)), strict=False)
        shared = sum(1 for _ in takewhile(lambda folders: len({*folders}) == 1, levels))
        tried = (self.find_all(cells, table, lines, above) for above in range(1, shared + 1))
        return next((files for files in tried if any(files)), [None] * len(cells))

    def find(self, cell: str, table: str, called: str, above: int = 0) -> Path | None:
        """The file that a cell names; None where there is none.

        Args:
            table: the name, without suffix, of the table that the cell is of.
            called: what messages call its row.
            above: how many folders at the beginning of a path do not count.
        Raises:
            UserError: the cell may mean several files.
        """
        text = cell.strip()
        given = self.folder / text
        if not text:
            return None
        if not above and os.path.isfile(given):  # where the table's path is relative, all of them are
            return given if given.is_absolute() == self.folder.is_absolute() else Path(os.path.relpath(given))
        said = plain(text.replace("\\", "/"))
        if not ELSEWHERE.match(text):
            parts = os.path.normpath(said).split("/")[above:]
            found = self._at_end("/".join(parts), table, text, called) if parts else None
            if above and found is not None:
                self.elsewhere.append(text)
            return found
        parts = [part for part in said.split("/") if part]
        for start in range(len(parts)):
            if (found := self._at_end("/".join(parts[start:]), table, text, called)) is not None:
                self.elsewhere.append(text)
                return found
        return None

    def _at_end(self, said: str, table: str, text: str, called: str) -> Path | None:
        for ends in self._ends:
            found = [(self._whose(file), file) for file in ends.get(said, ())]
            files = [file for whose, file in found if whose == table]
            files = files or [file for whose, file in found if whose is None]
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
        """The table with whose name the first folder on the way to the file begins."""
        folder, *below = PurePosixPath(file.relative_to(self.folder)).parts
        return next((table for table in self.tables if below and folder.lower().startswith(table)), None)

    def absent(self, cell: str) -> Path | None:
        """The path of an image that is not there, for what says so; None where no file can have it."""
        text = cell.strip()
        longest = max((len(os.fsencode(part)) for part in text.split("/")), default=0)
        return self.folder / text if text and longest <= LONGEST_NAME and "\0" not in text else None


def plain(path: str) -> str:
    """The path in normal form C, the suffix of an image in small letters."""
    path = composed(path)
    bare = without_suffix(path)
    return bare + path[len(bare) :].lower()


def without_suffix(path: str) -> str:
    """The path without the suffix of an image; any other stays, as in DICOM's ``1.2.840.1``."""
    root, suffix = os.path.splitext(path)
    return root if suffix.lower() in SUFFIXES else path
