"""Ctrl-C, SIGTERM and a lost terminal: the first asks for a stop after the current round, the second ends at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED = 130  # the exit status of what was stopped


@contextmanager
def stop_signals(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """For a command: Ctrl-C, SIGTERM or a lost terminal asks for a stop after the round in hand; a second one ends the
    process at once, with one line. What was being ignored (SIGHUP under nohup) stays ignored.
    """
    ended = False

    def end() -> None:
        nonlocal ended
        ended = True
        raise SystemExit(STOPPED)

    wanted = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    with _first_asks(wanted, say, end) as stopping:
        try:
            yield stopping
        except (KeyboardInterrupt, SystemExit) as error:  # Ray makes its own of an exception raised while it waits
            if ended or isinstance(error, KeyboardInterrupt):
                print("stopped at once; --resume continues what was saved", file=sys.stderr)
                raise SystemExit(STOPPED) from None
            raise


@contextmanager
def interruptions(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """For a script or a notebook: Ctrl-C asks for a stop after the round in hand; a second one raises KeyboardInterrupt
    at once. Python hears signals in its main thread only: in another one, nobody asks.
    """
    ended = False

    def end() -> None:
        nonlocal ended
        ended = True
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    with _first_asks({signal.SIGINT}, say, end) as stopping:
        try:
            yield stopping
        except SystemExit:
            if ended:
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _first_asks(
    wanted: Collection[signal.Signals], say: Callable[[str], None], end: Callable[[], None]
) -> Iterator[Callable[[], bool]]:
    """Gives what says whether one of the signals came; at a second one, ``end`` is called."""
    asked = said = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            end()
        asked = True  # and nothing else: it may have come in the middle of a line

    def stopping() -> bool:
        nonlocal said
        if asked and not said:
            said = True
            say("stopping after this round, with a checkpoint; once more stops at once")
        return asked

    heard = {number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
