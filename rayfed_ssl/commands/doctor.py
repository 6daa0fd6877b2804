"""``rayfed-ssl doctor``: what this machine or cluster can run."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Say what this machine or cluster can run, and what is missing."""
    from rayfed_ssl.terminal.doctor import examine

    checks = examine()
    for check in checks:
        mark = {True: "ok", False: "!!", None: "--"}[check.ok]
        print(f"{mark}  {check.name:<22} {check.found}")
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)
