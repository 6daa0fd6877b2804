"""``rayfed-ssl export``: a run's encoder as a folder that works elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[str, typer.Option(help="torch, onnx, torchscript or hub-folder.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write; by default RUN/exported/FORM, or FORM-client-NUMBER there."),
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Number or name of the client whose encoder it is; by default the global one.")
    ] = None,
    licence: Annotated[
        str, typer.Option("--license", help="The licence of the weights, for the model card, such as apache-2.0.")
    ] = "unknown",
    trust_imports: Annotated[
        bool, typer.Option("--trust-imports", help="Run the code that the run folder brings along.")
    ] = False,
) -> None:
    """Export a run's encoder with its transform and a model card."""
    from rayfed_ssl.exporting.encoders import run_encoder
    from rayfed_ssl.exporting.folder import check_form
    from rayfed_ssl.exporting.folder import export as exporting
    from rayfed_ssl.terminal.output import console, verbatim

    check_form(to)
    encoder = run_encoder(run, client, trust_imports=trust_imports)
    exported = exporting(encoder, to, None if out is None else out.expanduser(), licence)
    lines = {
        "exported": f"{encoder.architecture}, {encoder.module.dim} features, {encoder.file.stem}",
        "folder": str(exported.folder),
        "files": ", ".join(exported.files),
        "checked": f"features differ from the run's by at most {exported.difference:.1e}",
    }
    screen = console()
    for name, text in lines.items():
        verbatim(screen, f"{name:<13} {text}")
