"""Tables in as many parts as the terminal wants."""

from __future__ import annotations

import re

import pytest
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rayfed_ssl.terminal.fitting import parts, show

MEASURES = [f"measure {column}" for column in range(9)]


def wide() -> Table:
    table = Table("mark", "method", box=box.SIMPLE, title="title", caption="caption")
    for name in MEASURES:
        table.add_column(name, justify="right")
    for row in range(3):
        table.add_row("*", f"method {row}", *(Text(f"0.{row}{column}0 ± 0.012\n+0.0{column}1") for column in range(9)))
    return table


@pytest.mark.parametrize(("width", "count"), [(200, 1), (120, 2), (80, 3), (44, 9)])
def test_every_number_stands_whole_and_once(width: int, count: int) -> None:
    screen = Console(width=width)
    assert len(parts(screen, wide(), keys=2)) == count
    with screen.capture() as shown:
        show(screen, wide(), keys=2)
    said = shown.get()
    assert max(len(line) for line in said.splitlines()) <= width
    for row in range(3):
        assert said.count(f"method {row}") == count
        assert re.findall(rf"0\.{row}\d0 ± 0\.012", said) == [f"0.{row}{column}0 ± 0.012" for column in range(9)]
    assert re.findall(r"measure \d", said) == MEASURES
    assert (said.count("title"), said.count("caption")) == (1, 1)
    assert said.index("title") < said.index("measure 0")
    assert said.index("measure 8") < said.index("caption")


def test_what_is_too_wide_alone_is_folded_and_nothing_of_it_is_lost() -> None:
    table = Table("run", "command", "seconds", box=box.SIMPLE)
    table.add_row("x", "abcdefghij" * 5, "1")
    screen = Console(width=30)
    with screen.capture() as shown:
        show(screen, table)
    assert "".join(re.findall(r"[a-j]+", shown.get().split("command")[1].split("run")[0])) == "abcdefghij" * 5
