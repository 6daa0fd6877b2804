"""Shows the progress of a long command: one bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time

import rich.progress as bars
from rich.console import Console

from rayfed_ssl.data.decoding.threads import TOLD_S
from rayfed_ssl.terminal.bars import Bar


class Counter(Bar):
    """Shows how much is done, and of how much: it is called with both numbers."""

    def __init__(self, console: Console, what: str) -> None:
        super().__init__(console, what, bars.MofNCompleteColumn())
        self.what = what
        self.last_line = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if self.bar and self.task is not None:
            self.bar.update(self.task, total=total, completed=done)
        elif time.monotonic() - self.last_line >= TOLD_S and done < total:
            self.last_line = time.monotonic()
            self.line(f"{done:,} of {total:,} {self.what}")
