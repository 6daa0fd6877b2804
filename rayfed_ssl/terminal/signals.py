"""Ctrl-C, SIGTERM and a lost terminal: the first asks for a stop after the current round, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rayfed_ssl.base.user_error import INTERRUPTED, StoppedAtOnce
from rayfed_ssl.terminal.output import tell

STOPPED = 130  # the exit status of Ctrl-C; also that of a run which was stopped by no signal to this process
HANGUP = getattr(signal, "SIGHUP", None)  # a shell passes it on, and the kernel sends it once more as the shell ends
ENDING = {signal.SIGTERM, HANGUP or signal.SIGTERM}  # the signals that end a command, beside Ctrl-C
_requests: list[StopRequest] = []  # those under way, the outermost first


def exit_status(number: int) -> int:
    """The exit status of a command that a signal ended, as shells count: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


def status_asked_for() -> int | None:
    """The exit status of a stop that was asked for; None if none was."""
    return next((request.status for request in _requests if request.number is not None), None)


class StopRequest:
    """Says whether one of the signals came, when it is called; the first time that one did, ``say`` takes a line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.said = say, False
        self.number: int | None = None  # the first signal that came

    def __call__(self) -> bool:
        if self.number is not None and not self.said:
            self.said = True
            self.say("stopping after this round, with a checkpoint; once more stops at once")
        return self.number is not None

    @property
    def status(self) -> int:
        """The exit status of a command that was stopped."""
        return STOPPED if self.number is None else exit_status(self.number)


@contextmanager
def unwinding() -> Iterator[None]:
    """For any command: SIGTERM and a lost terminal end it as Ctrl-C does, so that it removes its temporary files, and
    one line says so. Python handles signals in its main thread only: in another thread nothing changes.

    Raises:
        SystemExit: with the signal's exit status, whatever the block does with the KeyboardInterrupt that a signal
            raises. There is no line if the block turns it into SystemExit (:func:`left_running`).
    """
    heard: int | None = None

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if heard is None or number != HANGUP:
            heard = heard or number
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        with _handled({signal.SIGINT, *ENDING}, end):
            yield
    except (KeyboardInterrupt, SystemExit) as error:
        if heard is None:
            raise
        if isinstance(error, SystemExit):
            raise SystemExit(exit_status(heard)) from None
    if heard is not None:  # Typer turns a KeyboardInterrupt into an exit status
        tell(interrupted(heard))
        raise SystemExit(exit_status(heard))


@contextmanager
def left_running() -> Iterator[None]:
    """For a command that has said what runs on without it: a signal sets its exit status, without another line."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None


def interrupted(number: int) -> str:
    """The line of a command that a signal ended."""
    return INTERRUPTED.format(signal.Signals(number).name)


@contextmanager
def stop_signals(say: Callable[[str], None]) -> Iterator[StopRequest]:
    """For a command: Ctrl-C, SIGTERM or a lost terminal asks for a stop after the current round; a second signal ends
    the process at once, with one line. Signals that were ignored (SIGHUP under nohup) stay ignored.
    """
    ended = False

    def end() -> NoReturn:
        nonlocal ended
        ended = True
        raise SystemExit(stopping.status)

    with _first_asks({signal.SIGINT, *ENDING}, say, end) as stopping:
        try:
            yield stopping
        except StoppedAtOnce as error:
            tell(str(error))
            raise SystemExit(stopping.status) from None
        except (KeyboardInterrupt, SystemExit) as error:  # Ray replaces an exception that is raised while it waits
            if ended or isinstance(error, KeyboardInterrupt):
                tell("stopped at once; --resume continues what was saved")
                raise SystemExit(stopping.status) from None
            raise


@contextmanager
def interruptions(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """For a script or a notebook: Ctrl-C asks for a stop after the current round; a second one raises KeyboardInterrupt
    at once. Python handles signals in its main thread only: in another thread no stop is ever asked for.
    """
    ended = False

    def end() -> NoReturn:
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
    wanted: Collection[signal.Signals], say: Callable[[str], None], end: Callable[[], NoReturn]
) -> Iterator[StopRequest]:
    """Yields the request that says whether one of the signals came; a second signal calls ``end``."""
    stopping = StopRequest(say)

    def handle(number: int, frame: FrameType | None) -> None:
        if stopping.number is None:
            stopping.number = number  # and nothing else: it may have come in the middle of a line
        elif number != HANGUP:  # a second hangup is no second request
            end()

    _requests.append(stopping)
    try:
        with _handled(wanted, handle):
            yield stopping
    finally:
        _requests.remove(stopping)


@contextmanager
def _handled(wanted: Collection[signal.Signals], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let ``handle`` handle these signals within, except those that are ignored."""
    heard = {number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
