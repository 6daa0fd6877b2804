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
    in_folder = [] if default or (detached and not folder.is_dir()) else runs_in(folder)
    if as_json:
        print(json.dumps([*({**asdict(run), "detached": False} for run in in_folder), *detached], indent=1))
        return
    screen = console()
    if not in_folder and not detached:
        none = "no runs yet: there is no folder runs here" if default else f"{folder} holds no run"
        verbatim(screen, printable(none))
        return
    screen.print(listing_table(in_folder, detached))
    for run in in_folder:
        if run.problem:
            verbatim(screen, printable(run.problem))


def on_cluster() -> list[dict[str, object]]:
    """The detached runs of the cluster. Raises UserError if RAY_ADDRESS names none, or if it does not answer."""
    from actors.follow import detached

    return [
        {
            "run": run.name, "status": run.status, "done": run.round, "rounds": run.rounds, "folder": run.where,
            "detached": True,
        }
        for run in detached()
    ]  # fmt: skip


def on_cluster_if_named() -> list[dict[str, object]]:
    """The detached runs of the cluster if RAY_ADDRESS is its own address; if it does not answer, a line on stderr says
    so. The address of its job server (http://) does not tell where drivers are: there are none then.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if not address or address.startswith(("http://", "https://")):
        return []
    try:
        return on_cluster()
    except UserError as error:
        print(printable(error), file=sys.stderr)
        return []
