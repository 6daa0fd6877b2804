"""``rayfed-ssl methods``: the table of methods, or what one method is, needs and works with, and its keys."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table


def methods(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Methods to be explained, with their keys.")
    ] = None,
    imports: Annotated[
        list[str] | None, typer.Option(help="A file or module that defines methods, objectives, .. of its own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the methods: what each transmits and needs; of those named also what they do, go with and have for keys."""
    from rayfed_ssl import extensions
    from rayfed_ssl.base.schema import UserError
    from rayfed_ssl.methods import METHODS
    from rayfed_ssl.terminal.methods import explained
    from rayfed_ssl.terminal.output import console

    extensions.load(extensions.gather(imports, Path()))
    for name in names or ():
        if name not in METHODS:
            raise UserError(METHODS.unknown("methods", name))
    if names:
        print(explained([METHODS[name] for name in dict.fromkeys(names)], as_json))
        return
    rows = [{"name": name, **asdict(method.info)} for name, method in METHODS.items()]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("name", "paper", "transmits", "state", "mixed encoders", "public data", box=box.SIMPLE)
    for row in rows:
        marks = ("yes" if row[key] else "" for key in ("stateful", "heterogeneous", "public_data"))
        table.add_row(row["name"], row["paper"], row["transmits"], *marks)
    console().print(table)
