"""Executes a run within the user's process, a script or a notebook: progress, Ctrl-C, and the state of the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console

from rayfed_ssl.api.arguments import as_text, check_callable, check_flag
from rayfed_ssl.api.execution import execute
from rayfed_ssl.api.executor import Executor
from rayfed_ssl.api.python_messages import python_words
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage.mirror import place
from rayfed_ssl.terminal.output import console, verbatim
from rayfed_ssl.terminal.progress import Reporter
from rayfed_ssl.terminal.shadow import refuse_shadows
from rayfed_ssl.terminal.signals import interruptions

OnProgress = Callable[[Progress], object]
"""Called with everything that is shown on the terminal. If it returns something true, the run stops after the round."""


def carry_out(
    settings: RunConfig,
    out: str | os.PathLike[str],
    *,
    resume: bool,
    executor: Executor | str,
    progress: bool,
    on_progress: OnProgress | None = None,
) -> str:
    """Run to the last round, or to the end of the round in which Ctrl-C was pressed or ``on_progress`` asked for a
    stop. Returns the folder or the URI of the run.

    Raises:
        UserError, ClientError: see ``rayfed_ssl.run``; and whatever ``on_progress`` raises.
    """
    where = executor_named(executor)
    check_flag(resume, "resume")
    check_flag(progress, "progress")
    check_callable(on_progress, "on_progress")
    out = as_text(out, "out", "a folder, or a URI that pyarrow writes to")
    screen = console(quiet=not progress)
    with python_words(), surroundings(where):
        folder, uri = place(out)
        with Reporter(screen, settings.method.name) as reporter, interruptions(reporter.line) as interrupted:
            report, stopping = listened(reporter, on_progress, interrupted)
            execute(where)(settings, folder, uri=uri, resume=resume, report=report, stopping=stopping)
    return uri or str(folder)


def listened(
    reporter: Reporter, on_progress: OnProgress | None, interrupted: Callable[[], bool]
) -> tuple[Callable[[Progress], None], Callable[[], bool]]:
    """(report, stopping) for a run that ``on_progress`` may stop; it is called after the terminal was updated."""
    if on_progress is None:
        return reporter, interrupted
    asked = False

    def report(progress: Progress) -> None:
        nonlocal asked
        reporter(progress)
        if on_progress(progress) and not asked:
            asked = True
            reporter.line("on_progress asks for a stop: after this round, with a checkpoint")

    return report, lambda: interrupted() or asked


class Listener:
    """Shows the lines of a comparison and passes them to ``on_progress``, which may ask for a stop.

    An exception of ``on_progress`` is kept until the running runs have ended; then :meth:`check` raises it.
    """

    def __init__(self, screen: Console, on_progress: OnProgress | None, runs: int) -> None:
        self.screen, self.on_progress = screen, on_progress
        self.over, self.runs = 0, runs
        self.stop = False
        self.raised: Exception | None = None

    def show(self, text: str) -> None:
        """Print ``text`` as it is."""
        verbatim(self.screen, text)

    def line(self, text: str) -> None:
        """Report a line while no run ends."""
        self.hear(Progress(self.over, self.runs, text))

    def hear(self, progress: Progress) -> None:
        """Report a line together with the number of runs that have ended, and the values of the last of them."""
        self.over, self.runs = progress.round, progress.rounds
        self.show(progress.line)
        if self.on_progress is None or self.raised is not None:
            return
        try:
            asked = bool(self.on_progress(progress))
        except Exception as error:
            self.raised, asked = error, True
        if asked and not self.stop:
            self.stop = True
            self.show("on_progress asks for a stop: after the rounds in hand, with checkpoints")

    def check(self) -> None:
        """Raise the exception that ``on_progress`` raised, if any."""
        if self.raised is not None:
            raise self.raised


def executor_named(executor: Executor | str) -> Executor:
    """The executor of this name. Raises UserError for an unknown name."""
    if executor not in tuple(Executor):
        raise UserError(f"executor: found {executor!r}; must be one of {', '.join(Executor)}")
    return Executor(executor)


@contextmanager
def surroundings(executor: Executor) -> Iterator[None]:
    """Prepares the process for a run, and restores torch's number of threads afterwards. For Ray, it also checks that
    nothing shadows the packages that Ray's workers import.
    """
    threads = torch.get_num_threads()
    if executor is Executor.ray:
        refuse_shadows()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning of Ray's
    try:
        yield
    finally:
        torch.set_num_threads(threads)
