"""``rayfed-ssl doctor``: what this machine or cluster can run."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Say what this machine or cluster can run, and what is missing."""
    from rayfed_ssl.terminal.doctor import examine

    findings = examine()
    for finding in findings:
        mark = {True: "ok", False: "!!", None: "--"}[finding.ok]
        print(f"{mark}  {finding.name:<22} {finding.found}")
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)
