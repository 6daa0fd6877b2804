"""How a command that trained ends: it prints the run's results and sets the exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from rayfed_ssl.terminal.signals import STOPPED


def ended(screen: Console, summary: dict[str, Any], where: Path | str, rounds: int, stopped: int = STOPPED) -> None:
    """Print what a run came to. Exits with status 1 if it diverged, and with ``stopped`` if it was stopped."""
    from rayfed_ssl.terminal.output import verbatim
    from rayfed_ssl.terminal.progress import conclude

    conclude(screen, summary, where)
    if summary["status"] == "stopped":
        verbatim(screen, f"stopped after round {summary['rounds']} of {rounds}; --resume continues it")
    elif summary["status"] == "diverged":
        verbatim(screen, summary["diverged"]["reason"])
    if status := exit_status(summary, stopped):
        raise typer.Exit(status)


def exit_status(summary: dict[str, Any], stopped: int = STOPPED) -> int:
    """The exit status of a run: 0 if it is complete, 1 if it diverged, ``stopped`` if it was stopped."""
    return {"stopped": stopped, "diverged": 1}.get(summary["status"], 0)
