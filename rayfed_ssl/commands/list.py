"""``rayfed-ssl list``: the runs in a folder, and those that were left running on a cluster."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rayfed_ssl.base.text import printable
from rayfed_ssl.base.user_error import UserError

RUNS = Path("runs")


def list_runs(
    folder: Annotated[Path, typer.Argument(help="A folder that holds runs, in folders of its own, too.")] = RUNS,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Also detached runs, on RAY_ADDRESS's cluster; by default if it is set.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List runs: method, status, rounds, last accuracy, size, date."""
    from rayfed_ssl.storage.listing import runs_in
    from rayfed_ssl.terminal.listing import listing_table
    from rayfed_ssl.terminal.output import console, verbatim

    detached = on_cluster() if cluster else on_cluster_if_named()
    default = folder == RUNS and not folder.exists()
    there = [] if default or (detached and not folder.is_dir()) else runs_in(folder)
    if as_json:
        print(json.dumps([*({**asdict(one), "detached": False} for one in there), *detached], indent=1))
        return
    screen = console()
    if there or detached:
        screen.print(listing_table(there, detached))
    none = "no runs yet: there is no folder runs here" if default else f"{folder} holds no run"
    for line in [one.problem for one in there if one.problem] if there or detached else [none]:
        verbatim(screen, printable(line))


def on_cluster() -> list[dict[str, object]]:
    """The detached runs of the cluster. Raises UserError where none is named, or it does not answer."""
    from actors.follow import detached

    return [
        {
            "run": one.name, "status": one.status, "done": one.round, "rounds": one.rounds, "folder": one.where,
            "detached": True,
        }
        for one in detached()
    ]  # fmt: skip


def on_cluster_if_named() -> list[dict[str, object]]:
    """The same where RAY_ADDRESS names a cluster's own address; one that does not answer gets a line on stderr. An
    address of its job server (http://) says nothing of where drivers are.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if not address or address.startswith(("http://", "https://")):
        return []
    try:
        return on_cluster()
    except UserError as error:
        print(printable(error), file=sys.stderr)
        return []
