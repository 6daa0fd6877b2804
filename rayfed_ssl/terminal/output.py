"""Survives a closed standard output or a full disk: the work continues, and one line on stderr says so."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from typing import Any, TextIO

from rich.console import Console


class Output(Console):
    """A console for people. Where nobody reads it any more, it says so once on stderr and is silent from then on."""

    def __init__(self, **options: Any) -> None:
        if sys.stdout is None:  # closed before this process began
            options["file"] = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process
        super().__init__(**options)
        self.lost = sys.stdout is None
        if self.lost:
            _say("closed")

    def print(self, *objects: Any, **how: Any) -> None:
        try:
            super().print(*objects, **how)
        except OSError as error:
            self.lose(error.strerror or str(error))

    def on_broken_pipe(self) -> None:
        self.lose("closed by its reader")

    def lose(self, why: str) -> None:
        """Go on without it."""
        self.quiet = True
        if not self.lost:
            self.lost = True
            _say(why)
        divert()


def console(*, quiet: bool = False) -> Output:
    """Standard output: as wide as the terminal, or wide enough for the tables where there is none. In a notebook it is
    plain text, too. ``quiet`` shows nothing.
    """
    notebook = Console().is_jupyter  # whose standard output says that it is a terminal
    if sys.stdout is not None and sys.stdout.isatty() and not notebook:
        return Output(quiet=quiet)
    return Output(width=140, force_jupyter=False, force_terminal=False, quiet=quiet)


def divert(stream: TextIO | None = None) -> None:
    """Let what is still written to standard output, at the end of the process too, go nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (stream or sys.stdout).fileno())
        os.close(null)


def verbatim(console: Console, text: str) -> None:
    """Print text as it is: nothing in it is markup, no part of it is coloured, and no width breaks it."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def prose(console: Console, text: str) -> None:
    """Print a sentence: wrapped between words on a terminal, where no word is cut; elsewhere on one line, which
    programs can read. A minus is a hyphen, since not every encoding has one.
    """
    plain = text.replace("−", "-")
    if console.is_terminal:
        plain = textwrap.fill(plain, console.width, break_long_words=False, break_on_hyphens=False)
    verbatim(console, plain)


def flush() -> None:
    """Write out what was printed. Raises OSError where standard output takes no more; what was left is dropped."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        divert()
        raise


def tell(line: str) -> None:
    """Print to stderr. Where nobody reads it any more, as after its terminal was lost, it is silent from then on."""
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        divert(sys.stderr)


def _say(why: str) -> None:
    tell(f"standard output: {why}; going on without it")
