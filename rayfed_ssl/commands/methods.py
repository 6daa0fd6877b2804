"""``rayfed-ssl methods``: the table of methods."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.table import Table


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
