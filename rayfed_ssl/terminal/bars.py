"""Shows progress: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import rich.progress as bars
from rich.console import Console

from rayfed_ssl.terminal.output import verbatim


class Bar:
    """Shows a bar, with lines above it, if the console is a terminal; elsewhere only the lines. A context manager, at
    the end of which the bar is removed.

    Args:
        name: what is under way.
        column: the column between the bar and the remaining time; it may show the task's field ``shown``.
    """

    def __init__(self, console: Console, name: str, column: bars.ProgressColumn) -> None:
        self.console = console
        self.bar = self._bar(column) if console.is_terminal else None
        self.task = self.bar.add_task(name, total=None, shown="") if self.bar else None

    def _bar(self, column: bars.ProgressColumn) -> bars.Progress:
        return bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=24),
            column,
            bars.TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def line(self, text: str) -> None:
        """Print one line as it is, above the bar if there is one."""
        verbatim(self.console, text)
