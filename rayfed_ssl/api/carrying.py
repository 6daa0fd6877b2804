"""A configured run, or whatever else trains, carried out in a process that is not ours: a script's or a notebook's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from rayfed_ssl.api.execution import execute
from rayfed_ssl.api.executor import Executor
from rayfed_ssl.api.words import python_words
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage.mirror import place
from rayfed_ssl.terminal.progress import Reporter, console
from rayfed_ssl.terminal.shadow import refuse_shadows
from rayfed_ssl.terminal.signals import interruptions

OnProgress = Callable[[Progress], object]
"""Called with everything that the terminal is told; what it returns, if true, asks for a stop after the round."""


def carry_out(
    settings: RunConfig,
    out: str | os.PathLike[str],
    *,
    resume: bool,
    executor: Executor | str,
    progress: bool,
    on_progress: OnProgress | None = None,
) -> str:
    """Run to the last round, or to the round after which Ctrl-C was pressed or ``on_progress`` asked for a stop.
    Returns where: the folder, or the URI.

    Raises:
        UserError, ClientError: see ``rayfed_ssl.run``; and whatever ``on_progress`` raises.
    """
    where = executor_named(executor)
    screen = console(quiet=not progress)
    with python_words(), surroundings(where):
        folder, uri = place(os.fspath(out))
        with Reporter(screen, settings.method.name) as reporter, interruptions(reporter.line) as interrupted:
            report, stopping = listened(reporter, on_progress, interrupted)
            execute(where)(settings, folder, uri=uri, resume=resume, report=report, stopping=stopping)
    return uri or str(folder)


def listened(
    reporter: Reporter, on_progress: OnProgress | None, interrupted: Callable[[], bool]
) -> tuple[Callable[[Progress], None], Callable[[], bool]]:
    """(report, stopping) of a run that ``on_progress`` hears of, after the terminal, and may have stopped."""
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


def executor_named(executor: Executor | str) -> Executor:
    """Raises UserError for a name that is none."""
    if executor not in tuple(Executor):
        raise UserError(f"executor: found {executor!r}; must be one of {', '.join(Executor)}")
    return Executor(executor)


@contextmanager
def surroundings(executor: Executor) -> Iterator[None]:
    """What a run needs of its process, and leaves as it was: torch's threads; our packages where Ray looks for them."""
    threads = torch.get_num_threads()
    if executor is Executor.ray:
        refuse_shadows()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # asking silences Ray's warning
    try:
        yield
    finally:
        torch.set_num_threads(threads)
