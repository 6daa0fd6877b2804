"""The command line: ``rayfed-ssl run | attach | stop | methods | evaluate | tune | compare | doctor``.

What a user can mend ends in one line on stderr per mistake and exit status 2; a client that failed shows its own
traceback once, exit status 1; a run that was stopped ends with 130. Everything else is a bug and shows a traceback.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.terminal.output import flush
from rayfed_ssl.terminal.shadow import refuse_shadows

STOPPED = 130
LONGEST_LINE = 10_000
app = typer.Typer(
    name="rayfed-ssl", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def version(wanted: bool) -> None:
    if wanted:
        print(f"rayfed-ssl {metadata.version('rayfed-ssl')}")
        raise typer.Exit


@app.callback()
def program(
    wanted: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=version, is_eager=True)
    ] = False,
) -> None:
    """Federated self-supervised learning, simulated on Ray."""


class Executor(StrEnum):
    """Where clients run: in Ray actors, or one after the other in this process."""

    ray = "ray"
    local = "local"


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/demo.yaml.")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Dotted overrides.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="PATH", help="The run folder, or its URI; by default runs/<name>.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest complete checkpoint.")] = False,
    executor: Annotated[Executor, typer.Option(help="Ray actors, or this process alone.")] = Executor.ray,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running on a cluster, under its name.")] = False,
) -> None:
    """Run a federation to its last round."""
    from rayfed_ssl.config import load
    from rayfed_ssl.storage.mirror import place
    from rayfed_ssl.terminal.progress import Reporter, console

    screen = console()
    settings = load(config, changes or ())
    if "name" not in settings.model_fields_set:
        settings = settings.model_copy(update={"name": re.sub(r"[^\w.-]+", "-", config.stem).lstrip("-_.") or "run"})
    folder, uri = place(out or run_folder(config, settings.name, resume))
    if detach:
        if executor is Executor.local:
            raise UserError("--detach: found --executor local, which ends with its command; allowed: --executor ray")
        from actors.follow import detach as leave

        with Reporter(screen, settings.method.name) as reporter:
            leave(settings, folder, uri=uri, resume=resume, report=reporter)
        reporter.line(f"runs on; follow it with: rayfed-ssl attach {settings.name}")
        return
    with Reporter(screen, settings.method.name) as reporter, stop_signals(reporter.line) as stopping:
        summary = execute(executor)(settings, folder, uri=uri, resume=resume, report=reporter, stopping=stopping)
    ended(screen, summary, uri or folder, settings.train.rounds)


@app.command()
def attach(run: Annotated[str, typer.Argument(help="The name of a run that was started with --detach.")]) -> None:
    """Follow a detached run to its end. Ctrl-C leaves it running."""
    from actors import follow
    from rayfed_ssl.terminal.progress import Reporter, console

    screen = console()
    with Reporter(screen, run) as reporter:
        summary, where, rounds = follow.attach(run, reporter)
    ended(screen, summary, where, rounds)


@app.command()
def stop(run: Annotated[str, typer.Argument(help="The name of a run that was started with --detach.")]) -> None:
    """End a detached run after the round in hand, with a checkpoint."""
    from actors import follow

    follow.stop(run)
    print(f"{run} stops after its round, with a checkpoint; watch it with: rayfed-ssl attach {run}")


def ended(screen: Console, summary: dict[str, Any], where: Path | str, rounds: int) -> None:
    """Say what a run came to; a run that was stopped or diverged ends with a status of its own."""
    from rayfed_ssl.terminal.progress import conclude

    conclude(screen, summary, where)
    if summary["status"] == "stopped":
        screen.print(f"stopped after round {summary['rounds']} of {rounds}; --resume continues it", highlight=False)
        raise typer.Exit(STOPPED)
    if summary["status"] == "diverged":
        screen.print(summary["diverged"]["reason"], markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)


@app.command()
def methods(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the methods: what each transmits, and what it needs."""
    from rayfed_ssl.methods import METHODS
    from rayfed_ssl.terminal.progress import console

    rows = [{"name": name, **asdict(method.info)} for name, method in METHODS.items()]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("name", "paper", "transmits", "state", "mixed encoders", "public data", box=box.SIMPLE)
    for row in rows:
        marks = ("yes" if row[key] else "" for key in ("stateful", "heterogeneous", "public_data"))
        table.add_row(row["name"], row["paper"], row["transmits"], *marks)
    console().print(table)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[evaluation.key=value]...", help="Other settings of protocols than the run's."),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="knn, linear, fewshot, semi, transfer, cluster, rank or angles; by default the run's own."),
    ] = None,
    trust_imports: Annotated[
        bool, typer.Option("--trust-imports", help="Run the code that the run folder brings along.")
    ] = False,
) -> None:
    """Evaluate the encoder(s) of a finished run again; adds to RUN/evaluation.json. --protocol may be repeated."""
    from rayfed_ssl.simulation.reevaluation import reevaluate
    from rayfed_ssl.terminal.progress import console, evaluation_tables

    for table in evaluation_tables(reevaluate(run, protocol or (), changes or (), trust_imports=trust_imports)):
        console().print(table)


@app.command()
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
    from rayfed_ssl.terminal.progress import console
    from tune.config import load
    from tune.results import ranked
    from tune.sweep import run_sweep

    screen = console()

    def say(text: str) -> None:
        screen.print(text, markup=False, highlight=False, soft_wrap=True)

    repeats = config.name == "sweep.yaml" and resume
    folder = (out or (config.parent if repeats else Path("runs") / config.stem)).expanduser()
    with stop_signals(say) as stopping:
        results = run_sweep(load(config, changes or ()), folder, resume=resume, say=say, stopping=stopping)
        stopped = stopping()
    if results.ranking:
        screen.print(ranked(results))
    if results.winner is not None:
        name = f"first of {len(results.level) + 1} level" if results.level else "winner"
        say(f"{name:<13} {folder / 'best.yaml'}")
    say(f"{'table':<13} {folder / 'results.parquet'}")
    say(f"{'curves':<13} tensorboard --logdir {folder}")
    if stopped and results.left:
        say(f"stopped with {results.left} trial(s) left; --resume continues")
        raise typer.Exit(STOPPED)
    if diverged := results.counts.get("diverged"):
        say(f"{diverged} trial(s) diverged, which --resume does not run again")
    if failed := results.counts.get("failed"):
        say(f"{failed} trial(s) failed; --resume runs them again")
        raise typer.Exit(1)


@app.command()
def compare(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD...|FILE|RUN... [key=value]...",
            help="Methods (with --base), a file of variants, or run folders.",
        ),
    ] = None,
    base: Annotated[Path | None, typer.Option(help="The run's YAML file that the methods share.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each, with seeds one apart; by default 1.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder; by default runs/<base>-compare. Of run folders: none.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run what is not over.")] = False,
    skip_unfit: Annotated[
        bool, typer.Option("--skip-unfit", help="Leave out what the base lacks something for.")
    ] = False,
    executor: Annotated[Executor, typer.Option(help="Ray actors, or this process alone.")] = Executor.ray,
) -> None:
    """Compare methods over the same seeds and split: one table, and figures."""
    from rayfed_ssl.reporting.comparison_files import notes
    from rayfed_ssl.terminal.comparison import comparison_table
    from rayfed_ssl.terminal.progress import console
    from tune.request import of_request

    screen = console()

    def say(text: str) -> None:
        screen.print(text, markup=False, highlight=False, soft_wrap=True)

    request = of_request(what or (), base, seeds, out, resume=resume, skip_unfit=skip_unfit)
    with stop_signals(say) as stopping:
        outcome = request.carry_out(local=executor is Executor.local, say=say, stopping=stopping)
        stopped = stopping()
    if outcome.comparison is not None:
        screen.print(comparison_table(outcome.comparison))
        for note in notes(outcome.comparison):
            say(note)
        if request.out is not None:
            say(f"{'table':<13} {request.out / 'comparison.md'}")
    if stopped and outcome.left:
        say(f"stopped with {outcome.left} run(s) left; --resume continues")
        raise typer.Exit(STOPPED)
    if outcome.failed:
        say(f"{outcome.failed} run(s) failed; --resume runs them again")
        raise typer.Exit(1)


@app.command()
def doctor() -> None:
    """Say what this machine or cluster can run, and what is missing."""
    from rayfed_ssl.terminal.doctor import examine

    findings = examine()
    for finding in findings:
        mark = {True: "ok", False: "!!", None: "--"}[finding.ok]
        print(f"{mark}  {finding.name:<22} {finding.found}")
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def run_folder(config: Path, name: str, resume: bool) -> Path:
    """runs/<name>; resuming from a run's own config.yaml means that run."""
    if resume and config.name == "config.yaml" and (config.parent / "checkpoints").is_dir():
        return config.parent
    return Path("runs") / name


def execute(executor: Executor) -> Callable[..., dict[str, Any]]:
    """How a run is carried out: (config, folder, uri=, resume=, report=, stopping=) -> summary."""
    if executor is Executor.local:
        from rayfed_ssl.config import RunConfig
        from rayfed_ssl.simulation import loop
        from rayfed_ssl.simulation.local import LocalCohort
        from rayfed_ssl.storage.mirror import mirrored

        def here(config: RunConfig, folder: Path, *, uri: str | None, resume: bool, **how: Any) -> dict[str, Any]:
            with mirrored(folder, uri, resume=resume) as saved:
                return loop.run(config, folder, LocalCohort, resume=resume, saved=saved, **how)

        return here
    from actors.follow import run_on_ray

    return run_on_ray


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


def quiet() -> None:
    """Other people's warnings stay out, here and in Ray's workers; PYTHONWARNINGS or -W brings them back."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # Ray's future default; asking silences its warning


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exits with 0, 1 (a client or the program failed), 2 (the user can mend it) or 130 (stopped)."""
    quiet()
    try:
        try:
            refuse_shadows()
            app(args=None if arguments is None else list(arguments))
        finally:
            flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        sys.exit(_say_and_status(f"standard output: {error.strerror}", 1))
    except UserError as error:
        sys.exit(_say_and_status(str(error), 2))
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    except RuntimeError as error:
        from rayfed_ssl.federated.messages import ClientError

        if not isinstance(error, ClientError):
            raise
        sys.exit(_say_and_status(str(error), 1))


def _say_and_status(text: str, status: int) -> int:
    for line in text.split("\n"):  # what came from files and names is never a command to the terminal
        print(printable(line, LONGEST_LINE), file=sys.stderr)
    return status
