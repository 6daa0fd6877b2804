"""``rayfed-ssl embed``: a Parquet table of features from a run's encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def embed(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        str,
        typer.Argument(
            help="Images: a folder, a Parquet file, pattern or folder, a .csv or .npz file, hub:OWNER/NAME, .."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    client: Annotated[
        str | None, typer.Option(help="Number or name of the client whose encoder it is; by default the global one.")
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="The column of ids, of Parquet (by default id) or of CSV."),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be decoded.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a file that is there.")] = False,
    trust_imports: Annotated[
        bool, typer.Option("--trust-imports", help="Run the code that the run folder brings along.")
    ] = False,
) -> None:
    """Write a row per image: its id, its label if it has one, and what the run's encoder makes of it."""
    from rayfed_ssl.exporting import embed as embedding
    from rayfed_ssl.exporting.encoders import run_encoder
    from rayfed_ssl.terminal.counting import Counter
    from rayfed_ssl.terminal.output import console

    screen, out = console(), out.expanduser()
    encoder = run_encoder(run, client, trust_imports=trust_imports)
    with Counter(screen, "images") as counter:
        table = embedding.embed(
            encoder, data, out, id_column=id_column, skip_bad=skip_bad, overwrite=overwrite, progress=counter
        )
    for note in table.notes:
        counter.line(f"{'note':<13} {note}")
    for name in table.skipped[:5]:
        counter.line(f"left out      {name}")
    left_out = f", {len(table.skipped)} left out that cannot be decoded" if table.skipped else ""
    counter.line(f"{'embeddings':<13} {out}: {table.images} images, {table.dim} numbers each{left_out}")
