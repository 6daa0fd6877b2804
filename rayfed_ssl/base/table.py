"""Tables of named things that others can add to: methods, objectives, heads, encoders, sources, partitions, protocols.

A table is a literal dictionary of ours, plus what installed packages offer as entry points of its group, plus what a
run's ``imports`` add. A name means one thing: a row whose name is taken is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from rayfed_ssl.base.schema import UserError

Row = TypeVar("Row")


class Table(Mapping[str, Row]):
    """A mapping of names to rows.

    Args:
        what: a row in words, for messages ("method").
        group: the entry points that add rows: ``name = "package.module:ROW"`` below ``[project.entry-points.GROUP]``.
        rows: our own.
        wrong: what is wrong with a third-party row, in words that go on after its name ("which ..");
            empty where nothing is.
    """

    def __init__(
        self, what: str, group: str, rows: Mapping[str, Row], wrong: Callable[[str, object], str] = lambda *_: ""
    ) -> None:
        self.what, self.group, self.wrong = what, group, wrong
        self._rows: dict[str, Row] = dict(rows)
        self._origins: dict[str, str] = {}  # of rows that are not ours
        self._discovered = False

    def add(self, name: str, row: Row, origin: str) -> None:
        """Add a row that ``origin`` (a package, a file) brings. Adding the same row again does nothing.

        Raises:
            UserError: the name is taken, or the row is none of this table's.
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
        """Take out every row that ``origin`` added."""
        for name in [name for name, owner in self._origins.items() if owner == origin]:
            del self._rows[name], self._origins[name]

    def origin(self, name: str) -> str | None:
        """Who added the row; None for one of ours."""
        return self._origins.get(name)

    def unknown(self, key: str, name: object) -> str:
        """The line for a name that is not there: ``key: found 'x'; must be one of ..; did you mean y?``"""
        return f"{key}: found {name!r}; must be one of {', '.join(self)}{self.nearest(name)}"

    def nearest(self, name: object) -> str:
        """``; did you mean y?`` with the name most like ``name``; empty where none is."""
        near = difflib.get_close_matches(name.lower(), list(self), n=1, cutoff=0.6) if isinstance(name, str) else []
        return f"; did you mean {near[0]}?" if near else ""

    def _discover(self) -> None:
        """Add what installed packages offer. Raises UserError for one that cannot be imported or is taken."""
        if self._discovered:
            return
        self._discovered = True  # a package that looks at the table while it is imported finds what is there so far
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
