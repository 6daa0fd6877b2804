"""``rayfed-ssl compare``: methods, variants or finished runs side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rayfed_ssl.api.executor import Executor
from rayfed_ssl.terminal.signals import stop_signals


def compare(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD...|FILE|RUN... [key=value]...",
            help="Methods (with --base), a file of variants, or run folders.",
        ),
    ] = None,
    base: Annotated[Path | None, typer.Option(help="The run's YAML file that the methods share.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each, with seeds one apart; by default 1, or what the file says.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder; by default runs/<base>-compare. Of run folders: none.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run what is not over.")] = False,
    skip_unfit: Annotated[
        bool, typer.Option("--skip-unfit", help="Leave out what the base lacks something for.")
    ] = False,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="MEASURE",
            help="Name the best row by a measure without test labels: rankme, uniformity, alignment, select.PROTOCOL.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print the whole table: all measures, intervals and costs, and all notes.")
    ] = False,
    executor: Annotated[Executor, typer.Option(help="Ray actors, or this process alone.")] = Executor.ray,
) -> None:
    """Compare methods over the same seeds and split: one table, and figures."""
    from rayfed_ssl.records.comparison_choice import named
    from rayfed_ssl.terminal.comparison import print_comparison
    from rayfed_ssl.terminal.output import console, verbatim
    from rayfed_ssl.terminal.progress import report_command
    from tune.request import of_request

    screen = console()
    say = partial(verbatim, screen)
    measure = None if select is None else named(select)  # an unknown measure is refused before anything runs
    request = of_request(what or (), base, seeds, out, resume=resume, skip_unfit=skip_unfit)
    request.refuse_unmeasured(measure)
    with stop_signals(say) as stopping:
        outcome = request.carry_out(local=executor is Executor.local, say=say, stopping=stopping, select=select)
        stopped = stopping()
    if outcome.comparison is not None:
        print_comparison(screen, outcome.comparison, outcome.selection, request.folders, full=full)
        if request.out is not None:
            say(f"{'table':<13} {request.out / 'comparison.md'}")
            say(f"{'report':<13} {report_command(request.out)}")
    if stopped and outcome.left:
        say(f"stopped with {outcome.left} run(s) left; --resume continues")
        raise typer.Exit(stopping.status)
    if outcome.failed:
        say(f"{outcome.failed} run(s) failed; --resume runs them again")
        raise typer.Exit(1)
