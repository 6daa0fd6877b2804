"""The command line: one command a file of ``rayfed_ssl/commands``.

What a user can mend ends in one line on stderr per mistake and exit status 2; a client that failed shows its own
traceback once, exit status 1; what a signal stopped ends with 128 and its number, 130 for Ctrl-C. Everything else is a
bug and shows a traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from rayfed_ssl.base.text import printable
from rayfed_ssl.base.user_error import UserError
from rayfed_ssl.commands.compare import compare
from rayfed_ssl.commands.config import config
from rayfed_ssl.commands.detached import attach, stop
from rayfed_ssl.commands.doctor import doctor
from rayfed_ssl.commands.embed import embed
from rayfed_ssl.commands.evaluate import evaluate
from rayfed_ssl.commands.export import export
from rayfed_ssl.commands.leak import leak
from rayfed_ssl.commands.list import list_runs
from rayfed_ssl.commands.methods import methods
from rayfed_ssl.commands.new import new
from rayfed_ssl.commands.report import report
from rayfed_ssl.commands.run import run
from rayfed_ssl.commands.tune import tune
from rayfed_ssl.terminal.output import flush, tell
from rayfed_ssl.terminal.shadow import refuse_shadows
from rayfed_ssl.terminal.signals import STOPPED, interrupted, unwinding

COMMANDS = (run, attach, stop, list_runs, config, methods, evaluate, report, embed, export, tune, compare, new,
            leak, doctor)  # fmt: skip
NAMES = {"list_runs": "list"}  # of those that are not named as their function
LONGEST_LINE = 10_000
app = typer.Typer(
    name="rayfed-ssl", no_args_is_help=True, pretty_exceptions_enable=False,
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


for command in COMMANDS:
    app.command(NAMES.get(command.__name__))(command)


def quiet() -> None:
    """Other people's warnings stay out, here and in Ray's workers; PYTHONWARNINGS or -W brings them back."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # Ray's future default; asking silences its warning


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exits with 0, 1 (a client or the program failed), 2 (the user can mend it), or 128 plus the
    number of the signal that stopped it.
    """
    quiet()
    try:
        try:
            refuse_shadows()
            given = sys.argv[1:] if arguments is None else list(arguments)
            _refuse_empty_out(given)
            with unwinding():
                status = app(args=given, prog_name=app.info.name, standalone_mode=False)
        finally:
            flush()
        sys.exit(status or 0)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        sys.exit(_say_and_status(f"standard output: {error.strerror}", 1))
    except TyperException as error:
        sys.exit(_say_and_status(_usage(error), 2))
    except UserError as error:
        sys.exit(_say_and_status(_with_notes(error), 2))
    except KeyboardInterrupt:
        sys.exit(_say_and_status(interrupted(signal.SIGINT), STOPPED))
    except RuntimeError as error:
        from rayfed_ssl.federated.messages import ClientError

        if not isinstance(error, ClientError):
            raise
        sys.exit(_say_and_status(_with_notes(error), 1))


def _with_notes(error: Exception) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _refuse_empty_out(arguments: Sequence[str]) -> None:
    """Raise UserError for an ``--out`` without a place, which would be the folder that the command is given in."""
    if "--out=" in arguments or ("--out", "") in pairwise(arguments):
        raise UserError("--out: found nothing, as where a variable is not set; must be a place, or be left out")


def _usage(error: TyperException) -> str:
    """One line on arguments that do not fit; nothing where there were none, so that the help was shown."""
    text = error.format_message().replace("Value error, ", "").rstrip(".")
    context = getattr(error, "ctx", None)
    if not text or context is None:
        return text
    text = _as_key(str(getattr(error, "option_name", "")), context.command.params) or text
    return f"{context.command_path}: {text[0].lower()}{text[1:]}; see {context.command_path} --help"


def _as_key(option: str, parameters: Sequence[Any]) -> str:
    """What to say of a configuration key that is given as an option, where the command takes keys; "" else."""
    taken = {parameter.name for parameter in parameters}
    if "." not in option or "changes" not in taken:
        return ""
    key = option.lstrip("-")
    said = f"no such option: {option}; keys are given without dashes: {key}=VALUE"
    if key.startswith("data.") and "data" in taken:
        said += " where the run's images have moved, --data VALUE for other images"
    return said


def _say_and_status(text: str, status: int) -> int:
    for line in text.split("\n") if text else ():  # what came from files and names is never a command to the terminal
        tell(printable(line, LONGEST_LINE))
    return status
