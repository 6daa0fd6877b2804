"""Tables of components by name, which other packages can extend: methods, objectives, heads, encoders, sources,
partitions and protocols.

A table consists of this package's literal dictionary, the rows that installed packages offer as entry points of the
table's group, and the rows that a run's ``imports`` add. Names are unique: a row whose name is taken is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from rayfed_ssl.base.text import nearest
from rayfed_ssl.base.user_error import UserError

Row = TypeVar("Row")


class Table(Mapping[str, Row]):
    """A mapping of names to rows.

    Args:
        what: what a row is called in messages ("method").
        group: the entry points that add rows: ``name = "package.module:ROW"`` below ``[project.entry-points.GROUP]``.
        rows: this package's own rows.
        wrong: returns what is wrong with a third-party row, in words that continue a sentence after its name
            ("which .."), or an empty text.
    """

    def __init__(
        self, what: str, group: str, rows: Mapping[str, Row], wrong: Callable[[str, object], str] = lambda *_: ""
    ) -> None:
        self.what, self.group, self.wrong = what, group, wrong
        self._rows: dict[str, Row] = dict(rows)
        self._origins: dict[str, str] = {}  # of third-party rows
        self._discovered = False

    def add(self, name: str, row: Row, origin: str) -> None:
        """Add a row of ``origin`` (a package or a file). Adding the same row again does nothing.

        Raises:
            UserError: the name is taken, or the row is not valid in this table.
        """
        if name in self._rows:
            if self._rows[name] is row:
                return
            owner = self._origins.get(name, "rayfed-ssl itself")
            raise UserError(f"{origin}: found {self.what} {name!r}, which {owner} defines; choose another name")
        if wrong := self.wrong(name, row):
            raise UserError(f"{origin}: found {self.what} {name!r}, {wrong}")
        self._rows[name] = row
        self._origins[name] = origin

    def remove(self, origin: str) -> None:
        """Remove every row that ``origin`` added."""
        for name in [name for name, owner in self._origins.items() if owner == origin]:
            del self._rows[name], self._origins[name]

    def origin(self, name: str) -> str | None:
        """The origin of a third-party row; None for this package's own rows."""
        return self._origins.get(name)

    def unknown(self, key: str, name: object) -> str:
        """The message for an unknown name: ``key: found 'x'; must be one of ..; did you mean y?``"""
        return f"{key}: found {name!r}; must be one of {', '.join(self)}{self.nearest(name)}"

    def nearest(self, name: object) -> str:
        """``; did you mean y?`` with the row's name that is most like ``name``; empty if none is similar."""
        return nearest(name, self, 1) if isinstance(name, str) else ""

    def _discover(self) -> None:
        """Add the rows that installed packages offer. Raises UserError for a row that cannot be imported, or whose name
        is taken.
        """
        if self._discovered:
            return
        self._discovered = True  # a package that reads the table while it is imported sees the rows so far
        try:
            for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
                origin = f"entry point {point.name} = {point.value!r}"
                try:
                    row = point.load()
                except Exception as error:
                    raise UserError(f"{origin} in {self.group}: cannot be loaded ({error!r})") from error
                self.add(point.name, row, origin)
        except BaseException:
            self._discovered = False
            raise

    def __getitem__(self, name: str) -> Row:
        if name not in self._rows:
            self._discover()
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._rows:
            self._discover()
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(self._rows)

    def __len__(self) -> int:
        self._discover()
        return len(self._rows)
