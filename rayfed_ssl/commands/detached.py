"""``rayfed-ssl attach`` and ``rayfed-ssl stop``: runs that were left running on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from rayfed_ssl.commands.ending import ended
from rayfed_ssl.terminal.signals import left_running


def attach(run: Annotated[str, typer.Argument(help="The name of a run that was started with --detach.")]) -> None:
    """Follow a detached run to its end. Ctrl-C leaves it running."""
    from actors import follow
    from rayfed_ssl.terminal.output import console
    from rayfed_ssl.terminal.progress import Reporter

    screen = console()
    with Reporter(screen, run) as reporter, left_running():
        try:
            summary, where, rounds = follow.attach(run, reporter)
        except KeyboardInterrupt:
            reporter.line(f"{run} runs on; follow it again with: rayfed-ssl attach {run}")
            raise
    ended(screen, summary, where, rounds)


def stop(run: Annotated[str, typer.Argument(help="The name of a run that was started with --detach.")]) -> None:
    """End a detached run after the round in hand, with a checkpoint."""
    from actors import follow
    from actors.order import OVER

    status, why_not_noted = follow.stop(run)
    if status in OVER:
        print(f"{run} has ended before; see how with: rayfed-ssl attach {run}")
        return
    when = "before its next round" if status == "waiting" else "after its round, with a checkpoint"
    if why_not_noted is not None:
        when += f", unless its driver dies before: Ray's head did not note it ({why_not_noted})"
    print(f"{run} stops {when}; watch it with: rayfed-ssl attach {run}")
