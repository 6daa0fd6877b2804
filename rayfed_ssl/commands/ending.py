"""How a command that trained ends: it prints the run's results and sets the exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from rayfed_ssl.terminal.signals import STOPPED


def ended(screen: Console, summary: dict[str, Any], where: Path | str, rounds: int, stopped: int = STOPPED) -> None:
    """Say what a run came to; a run that diverged ends with status 1, one that was stopped with ``stopped``."""
    from rayfed_ssl.terminal.progress import conclude

    conclude(screen, summary, where)
    if summary["status"] == "stopped":
        screen.print(f"stopped after round {summary['rounds']} of {rounds}; --resume continues it", highlight=False)
    elif summary["status"] == "diverged":
        screen.print(summary["diverged"]["reason"], markup=False, highlight=False, soft_wrap=True)
    if status := exit_status(summary, stopped):
        raise typer.Exit(status)


def exit_status(summary: dict[str, Any], stopped: int = STOPPED) -> int:
    """0 of a complete run, 1 of one that diverged, ``stopped`` of one that was stopped."""
    return {"stopped": stopped, "diverged": 1}.get(summary["status"], 0)
