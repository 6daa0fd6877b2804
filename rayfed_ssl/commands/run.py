"""``rayfed-ssl run``: a federation from its first round, or its newest checkpoint, to its last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from rayfed_ssl.api.executor import Executor
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.commands.ending import ended
from rayfed_ssl.terminal.signals import stop_signals


def run(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/demo.yaml.")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Dotted overrides.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="PATH", help="The run folder, or its URI; by default runs/<name>.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest complete checkpoint.")] = False,
    executor: Annotated[Executor, typer.Option(help="Ray actors, or this process alone.")] = Executor.ray,
    check: Annotated[
        bool, typer.Option("--check", help="Say plan, memory, bytes and time expected; start and write nothing.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running on a cluster, under its name.")] = False,
) -> None:
    """Run a federation to its last round."""
    from rayfed_ssl.api.execution import execute, preflight
    from rayfed_ssl.config import load
    from rayfed_ssl.storage.mirror import place
    from rayfed_ssl.terminal.progress import Reporter, console

    screen = console()
    settings = load(config, changes or ())
    if "name" not in settings.model_fields_set:
        settings = settings.model_copy(update={"name": re.sub(r"[^\w.-]+", "-", config.stem).lstrip("-_.") or "run"})
    folder, uri = place(out or run_folder(config, settings.name, resume))
    if check:
        from rayfed_ssl.commands.checked import checked

        for line in checked(settings, folder, uri, resume=resume, executor=executor):
            screen.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    if detach:
        if executor is Executor.local:
            raise UserError("--detach: found --executor local, which ends with its command; allowed: --executor ray")
        from actors.follow import detach as leave

        preflight(settings, folder, uri=uri, resume=resume)

        with Reporter(screen, settings.method.name) as reporter:
            leave(settings, folder, uri=uri, resume=resume, report=reporter)
        reporter.line(f"runs on; follow it with: rayfed-ssl attach {settings.name}")
        return
    with Reporter(screen, settings.method.name) as reporter, stop_signals(reporter.line) as stopping:
        summary = execute(executor)(settings, folder, uri=uri, resume=resume, report=reporter, stopping=stopping)
    ended(screen, summary, uri or folder, settings.train.rounds)


def run_folder(config: Path, name: str, resume: bool) -> Path:
    """runs/<name>; resuming from a run's own config.yaml means that run."""
    if resume and config.name == "config.yaml" and (config.parent / "checkpoints").is_dir():
        return config.parent
    return Path("runs") / name
