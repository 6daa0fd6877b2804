"""``rayfed-ssl tune``: sweeps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from rayfed_ssl.terminal.signals import stop_signals


def tune(
    config: Annotated[Path, typer.Argument(help="A sweep's YAML file, such as configs/tune/fedfoa_lambda.yaml.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value]...", help="Keys of the sweep (trials=4), or of its runs (data.path=PATH)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; by default runs/<name>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run the trials that are not over.")] = False,
) -> None:
    """Sweep over keys of a run with Ray Tune; every trial is a run folder."""
    from rayfed_ssl.terminal.fitting import show
    from rayfed_ssl.terminal.output import console, prose, verbatim
    from rayfed_ssl.terminal.progress import curves_command, report_command
    from tune.files import load
    from tune.results import answer, legend, ranked
    from tune.sweep import run_sweep

    screen = console()
    say = partial(verbatim, screen)
    repeats = config.name == "sweep.yaml" and resume
    folder = (out or (config.parent if repeats else Path("runs") / config.stem)).expanduser()
    with stop_signals(say) as stopping:
        results = run_sweep(load(config, changes or ()), folder, resume=resume, say=say, stopping=stopping)
        stopped = stopping()
    prose(screen, answer(results))
    if results.choice.ranking:
        show(screen, ranked(results), keys=2)
        for line in filter(None, (legend(results), *results.remarks)):
            prose(screen, line)
    if results.choice.winner is not None:
        equals = len(results.choice.level) + len(results.choice.apart)
        name = f"first of {equals + 1}" if equals else "winner"
        say(f"{name:<13} rayfed-ssl run {quote(str(folder / 'best.yaml'))}")
    say(f"{'table':<13} {folder / 'results.parquet'}")
    say(f"{'curves':<13} {curves_command(folder)}")
    if results.choice.ranking:
        say(f"{'report':<13} {report_command(folder)}")
    if stopped and results.left:
        say(f"stopped with {results.left} trial(s) left; --resume continues")
        raise typer.Exit(stopping.status)
    if diverged := results.counts.get("diverged"):
        say(f"{diverged} trial(s) diverged, which --resume does not run again")
    if failed := results.counts.get("failed"):
        say(f"{failed} trial(s) failed; --resume runs them again")
        raise typer.Exit(1)
