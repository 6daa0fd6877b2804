"""Shows the progress of a long command: one bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time

import rich.progress as bars
from rich.console import Console

from rayfed_ssl.data.decoding.threads import TOLD_S
from rayfed_ssl.terminal.bars import Bar


class Counter(Bar):
    """Told (done, total), it shows both."""

    def __init__(self, console: Console, what: str) -> None:
        super().__init__(console, what, bars.MofNCompleteColumn())
        self.what = what
        self.told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if self.bar and self.task is not None:
            self.bar.update(self.task, total=total, completed=done)
        elif time.monotonic() - self.told >= TOLD_S and done < total:
            self.told = time.monotonic()
            self.line(f"{done:,} of {total:,} {self.what}")
