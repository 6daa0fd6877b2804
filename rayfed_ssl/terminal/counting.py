"""How far a long command is: one bar on a terminal, a line for every tenth elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import rich.progress as bars
from rich.console import Console


class Counter:
    """Told (done, total), it shows both. A context manager: the bar goes when it is left."""

    def __init__(self, console: Console, what: str) -> None:
        self.console, self.what = console, what
        self.bar = self._bar() if console.is_terminal else None
        self.task = self.bar.add_task(what, total=None) if self.bar else None
        self.tenths = 0

    def _bar(self) -> bars.Progress:
        return bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=24),
            bars.MofNCompleteColumn(),
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
        """One line as it is, above the bar if there is one."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __call__(self, done: int, total: int) -> None:
        if self.bar and self.task is not None:
            self.bar.update(self.task, total=total, completed=done)
        elif (tenths := 10 * done // max(total, 1)) > self.tenths and done < total:
            self.tenths = tenths
            self.line(f"{done:,} of {total:,} {self.what}")
