"""``rayfed-ssl run``: a federation from its first round, or its newest checkpoint, to its last."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayfed_ssl.api.executor import Executor
from rayfed_ssl.base.lazy import importing
from rayfed_ssl.base.user_error import UserError
from rayfed_ssl.commands.ending import ended, exit_status
from rayfed_ssl.terminal.signals import left_running, stop_signals


def run(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/demo.yaml.")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Dotted overrides.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="PATH", help="Folder or URI; by default runs/<name>, of RUN/config.yaml: RUN.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest complete checkpoint; train.rounds may grow.")
    ] = False,
    executor: Annotated[Executor, typer.Option(help="Ray actors, or this process alone.")] = Executor.ray,
    check: Annotated[
        bool, typer.Option("--check", help="Say plan, memory, bytes, time; write nothing, but to RAYFED_SSL_CACHE.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running on a cluster, under its name.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print mistakes only.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object per round, per evaluation and at the end; lines on stderr.")
    ] = False,
) -> None:
    """Run a federation to its last round."""
    from rayfed_ssl.commands.early import refuse_early

    if quiet and as_json:
        raise UserError("--quiet: found beside --json, which prints objects; allowed: one of them")
    refuse_early(config, changes or (), out, resume)
    with importing():
        from rayfed_ssl.api.call_arguments import named_after, run_folder
        from rayfed_ssl.config import load
    settings = named_after(load(config, changes or ()), config)
    from rayfed_ssl.api.execution import execute, preflight
    from rayfed_ssl.storage.mirror import place
    from rayfed_ssl.terminal.events import Events
    from rayfed_ssl.terminal.output import console, verbatim
    from rayfed_ssl.terminal.progress import Reporter

    folder, uri = place(out or run_folder(config, settings.name, resume))
    screen = console(quiet=quiet)
    if check:
        from rayfed_ssl.commands.checked import checked

        for line in checked(settings, folder, uri, resume=resume, executor=executor, quiet=quiet):
            verbatim(screen, line)
        return
    reporter = Events() if as_json else Reporter(screen, settings.method.name)
    if detach:
        if executor is Executor.local:
            raise UserError("--detach: found --executor local, which ends with its command; allowed: --executor ray")
        from actors.follow import detach as leave

        preflight(settings, folder, uri=uri, resume=resume)
        with reporter as report, left_running():
            goes_on = leave(settings, folder, uri=uri, resume=resume, report=report)
        reporter.line(f"{'runs on' if goes_on else 'has ended'}; see it with: rayfed-ssl attach {settings.name}")
        return
    with reporter as report, stop_signals(reporter.line) as stopping:
        summary = execute(executor)(settings, folder, uri=uri, resume=resume, report=report, stopping=stopping)
    if isinstance(reporter, Events):
        reporter.end(summary, uri or folder)
        raise typer.Exit(exit_status(summary, stopping.status))
    ended(screen, summary, uri or folder, settings.train.rounds, stopping.status)
