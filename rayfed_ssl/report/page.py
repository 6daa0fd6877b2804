"""Builds a page: writes sections of tables and figures into one HTML file.

The templates escape all text that came from a folder. The page's content security policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.report.maps import Strip
from rayfed_ssl.report.style import Drawing
from rayfed_ssl.report.verdict import Verdict

FILE = "report.html"


@dataclass(frozen=True)
class Cell:
    """A value of a table: as shown, as recorded, and the keys under which the folder's JSON file has it, joined by
    slashes. ``note``: lines below it.
    """

    text: str
    raw: float | int | None = None
    key: str = ""
    note: str = ""


@dataclass(frozen=True)
class Tile:
    """A value in a box on top of the page."""

    label: str
    value: Cell
    note: str = ""


@dataclass(frozen=True)
class HtmlTable:
    """A table. ``folded``: the words behind which it is hidden until a reader opens it. ``beside``: whether it stands
    among the figures.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    folded: str = ""
    beside: bool = False


@dataclass(frozen=True)
class Text:
    """A text that is shown as it is, such as a file."""

    title: str
    body: str


@dataclass
class Section:
    """A section of the page. ``absent``: lines on what could not be shown. ``settings``: keys and their values."""

    id: str
    title: str
    intro: str = ""
    tables: list[HtmlTable] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    settings: list[tuple[str, str]] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        parts = (self.tables, self.drawings, self.strips, self.settings, self.texts, self.notes, self.absent)
        return not any(parts)


@dataclass(frozen=True)
class Page:
    """A page. ``until``: the round up to which it shows the run, in words; "" for other pages."""

    kind: str
    title: str
    facts: Sequence[str]
    verdict: Verdict
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    until: str = ""


@cache
def _environment() -> Environment:
    loader = PackageLoader("rayfed_ssl.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def render(page: Page) -> str:
    """The page as HTML, without its empty sections."""
    shown = replace(page, sections=[section for section in page.sections if not section.empty])
    return _environment().get_template("page.html").render(page=shown, version=metadata.version("rayfed-ssl"))


def write(page: Page, folder: Path) -> Path:
    """Write ``report.html`` into ``folder``, atomically, and return its path."""
    text = render(page)
    path = folder / FILE
    replace_file(path, lambda draft: draft.write_text(text, encoding="utf-8", errors="backslashreplace"), folder)
    return path
