"""``rayfed-ssl config``: every key of a file, with its type, default, allowed values and meaning."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class File(StrEnum):
    """The files that have keys."""

    run = "run"
    sweep = "sweep"
    comparison = "comparison"


def schema_of(file: File) -> type[Any]:
    """The schema of a file, a pydantic model."""
    if file is File.run:
        from rayfed_ssl.config import RunConfig

        return RunConfig
    if file is File.sweep:
        from tune.config import SweepConfig

        return SweepConfig
    from tune.variants import CompareConfig

    return CompareConfig


def config(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="A key (train.rounds), a block (data) or a kind (method.fedca)."),
    ] = None,
    of: Annotated[File, typer.Option(help="Whose keys: of a run's file, a sweep's or a comparison's.")] = File.run,
    imports: Annotated[
        list[str] | None, typer.Option(help="A file or module that defines methods, objectives, .. of its own.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every key there is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    as_schema: Annotated[
        bool, typer.Option("--schema", help="The JSON Schema, by which editors complete and check keys.")
    ] = False,
) -> None:
    """Say what keys there are: type, default, what is allowed, and a sentence each."""
    from rayfed_ssl import extensions
    from rayfed_ssl.settings.json_schema import json_schema
    from rayfed_ssl.settings.keys import find, keys
    from rayfed_ssl.terminal.keys import explained, overview

    extensions.load(extensions.gather(imports, Path()))
    model = schema_of(of)
    if as_schema:
        print(json.dumps(json_schema(model, profiles=of is File.run), indent=1))
        return
    known = keys(model)
    found = [key for asked in dict.fromkeys(wanted or ()) for key in find(known, asked)]
    if not wanted and (everything or as_json):
        found = known
    if as_json:
        print(json.dumps([key.as_json() for key in found], indent=1))
    else:
        print("\n".join(explained(found) if found else overview(known)))
