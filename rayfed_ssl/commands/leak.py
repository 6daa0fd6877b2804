"""``rayfed-ssl leak``: membership inference on the messages of a run, or of a comparison's runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer


def leak(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, of a run with evaluation.select, or that of a comparison."),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[data.path=PATH]", help="Where the run's images and files lie now."),
    ] = None,
    round: Annotated[int | None, typer.Option(help="Whose messages; by default the last finished one.")] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(help="Its number or name; may be repeated; by default the first with images enough."),
    ] = None,
    images: Annotated[int, typer.Option(min=20, help="Members at most, and as many others.")] = 1000,
    trust_imports: Annotated[
        bool, typer.Option("--trust-imports", help="Run the code that the run folder brings along.")
    ] = False,
) -> None:
    """What a curious server can tell from a client's messages: was this image trained on? Adds to RUN/leak.json."""
    from rayfed_ssl.base.schema import UserError
    from rayfed_ssl.leak.run import Leak
    from rayfed_ssl.leak.run import leak as audited
    from rayfed_ssl.terminal.leak import show
    from rayfed_ssl.terminal.output import console, verbatim
    from rayfed_ssl.terminal.progress import report_command
    from tune.comparison import read_comparison
    from tune.request import is_comparison

    screen = console()
    say = partial(verbatim, screen)

    def audit(folder: Path) -> Leak:
        return audited(folder, round, client or (), images, changes=changes or (), trust_imports=trust_imports, say=say)

    if not is_comparison(run):
        show(screen, audit(run), run)
        return
    refused = 0
    for row in read_comparison(run).trained:
        for seed, trained in row.runs.items():
            say(f"{row.name}, seed {seed}: {trained.folder}")
            try:
                show(screen, audit(trained.folder), trained.folder)
            except UserError as error:
                say(f"{row.name}, seed {seed}: {error}")
                refused += 1
    say(f"{'compared':<13} rayfed-ssl compare {quote(str(run))}")
    say(f"{'report':<13} {report_command(run)}")
    if refused:
        say(f"{refused} run(s) could not be audited")
        raise typer.Exit(1)
