"""Ctrl-C, SIGTERM and a lost terminal: the first asks for a stop after the round in hand, the second ends at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED = 130  # the exit status of what was stopped


@contextmanager
def stop_signals(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Ctrl-C, SIGTERM or a lost terminal asks for a stop after the round in hand; a second one ends the process at
    once. What was being ignored (SIGHUP under nohup) stays ignored.
    """
    asked = said = ended = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked, ended
        if asked:
            ended = True
            raise SystemExit(STOPPED)
        asked = True  # and nothing else: it may have come in the middle of a line

    def stopping() -> bool:
        nonlocal said
        if asked and not said:
            said = True
            say("stopping after this round, with a checkpoint; once more stops at once")
        return asked

    wanted = [signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)]
    heard = {number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield stopping
    except (KeyboardInterrupt, SystemExit) as error:  # Ray makes its own of an exception raised while it waits
        if ended or isinstance(error, KeyboardInterrupt):
            raise SystemExit(STOPPED) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
