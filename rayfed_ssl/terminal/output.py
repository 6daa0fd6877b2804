"""Survives a closed standard output or a full disk: the work continues, and one line on stderr says so."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from typing import Any, TextIO

from rich.console import Console


class Output(Console):
    """A console for people. If it can no longer be written to, it says so once on stderr and is silent from then on."""

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
        """Print nothing from now on; the first time, a line on stderr says ``why``."""
        self.quiet = True
        if not self.lost:
            self.lost = True
            _say(why)
        divert()


def console(*, quiet: bool = False) -> Output:
    """Standard output, as wide as the terminal, or wide enough for tables if there is no terminal. In a notebook it is
    plain text, too. With ``quiet`` nothing is shown.
    """
    notebook = Console().is_jupyter  # a notebook's standard output claims to be a terminal
    if sys.stdout is not None and sys.stdout.isatty() and not notebook:
        return Output(quiet=quiet)
    return Output(width=140, force_jupyter=False, force_terminal=False, quiet=quiet)


def divert(stream: TextIO | None = None) -> None:
    """Discard all that is written from now on to ``stream`` (standard output by default), also as the process ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (stream or sys.stdout).fileno())
        os.close(null)


def verbatim(console: Console, text: str) -> None:
    """Print text as it is, without markup, colours or wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def prose(console: Console, text: str) -> None:
    """Print a sentence: on a terminal wrapped between words, elsewhere on one line, which programs can read. A minus is
    written as a hyphen, because not every encoding has one.
    """
    plain = text.replace("−", "-")
    if console.is_terminal:
        plain = textwrap.fill(plain, console.width, break_long_words=False, break_on_hyphens=False)
    verbatim(console, plain)


def flush() -> None:
    """Write out what was printed. Raises OSError, and discards the rest, if standard output cannot be written to."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        divert()
        raise


def tell(line: str) -> None:
    """Print a line to stderr. If it can no longer be written to, as after its terminal was lost, it is silent."""
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        divert(sys.stderr)


def _say(why: str) -> None:
    tell(f"standard output: {why}; going on without it")
