"""The command line: each command is a file in ``rayfed_ssl/commands``.

A mistake that a user can mend is one line on stderr, and exit status 2. A client that failed shows its own traceback
once, with exit status 1. A command that a signal stopped ends with 128 plus the signal's number, 130 for Ctrl-C.
Everything else is a bug and shows a traceback.
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
from rayfed_ssl.base.user_error import StoppedAtOnce, UserError
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
NAMES = {"list_runs": "list"}  # commands that are not called like their function
LONGEST_LINE = 10_000
app = typer.Typer(
    name="rayfed-ssl", no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def version(wanted: bool) -> None:
    """Print the version and exit, if it is ``wanted``."""
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
    """Switch the warnings of other libraries off, here and in Ray's workers; PYTHONWARNINGS or -W keeps them."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # Ray's future default; setting it avoids a warning


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
        sys.exit(_say_and_status(_with_notes(error), STOPPED if isinstance(error, StoppedAtOnce) else 2))
    except KeyboardInterrupt:
        sys.exit(_say_and_status(interrupted(signal.SIGINT), STOPPED))
    except RuntimeError as error:
        from rayfed_ssl.federated.messages import ClientError

        if not isinstance(error, ClientError):
            raise
        sys.exit(_say_and_status(_with_notes(error), 1))


def _with_notes(error: Exception) -> str:
    """The error's text and the notes that were added to it."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _refuse_empty_out(arguments: Sequence[str]) -> None:
    """Raise UserError for an ``--out`` without a place, which would be the folder that the command is given in."""
    if "--out=" in arguments or ("--out", "") in pairwise(arguments):
        raise UserError("--out: found nothing, as where a variable is not set; must be a place, or be left out")


def _usage(error: TyperException) -> str:
    """One line on arguments that do not fit; "" if there were no arguments, as the help was shown then."""
    text = error.format_message().replace("Value error, ", "").rstrip(".")
    context = getattr(error, "ctx", None)
    if not text or context is None:
        return text
    text = _as_key(str(getattr(error, "option_name", "")), context.command.params) or text
    return f"{context.command_path}: {text[0].lower()}{text[1:]}; see {context.command_path} --help"


def _as_key(option: str, parameters: Sequence[Any]) -> str:
    """The message for a configuration key that was given as an option, if the command takes keys; else ""."""
    names = {parameter.name for parameter in parameters}
    if "." not in option or "changes" not in names:
        return ""
    key = option.lstrip("-")
    message = f"no such option: {option}; keys are given without dashes: {key}=VALUE"
    if key.startswith("data.") and "data" in names:
        message += " where the run's images have moved, --data VALUE for other images"
    return message


def _say_and_status(text: str, status: int) -> int:
    """Print the lines of ``text`` on stderr, and return ``status``."""
    for line in text.split("\n") if text else ():
        tell(printable(line, LONGEST_LINE))  # text from files and names must not control the terminal
    return status
