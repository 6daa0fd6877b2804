"""``rayfed-ssl leak``: membership inference on what crossed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def leak(
    run: Annotated[Path, typer.Argument(help="A run folder, of a run with evaluation.select.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[data.path=PATH]", help="Where the run's images and files lie now."),
    ] = None,
    round: Annotated[int | None, typer.Option(help="Whose messages; by default the last round's.")] = None,
    client: Annotated[
        list[int] | None, typer.Option(help="May be repeated; by default the first who took part.")
    ] = None,
    images: Annotated[int, typer.Option(min=20, help="Members at most, and as many others.")] = 1000,
    trust_imports: Annotated[
        bool, typer.Option("--trust-imports", help="Run the code that the run folder brings along.")
    ] = False,
) -> None:
    """What a curious server can tell from a client's messages: was this image trained on? Adds RUN/leak.json."""
    from rich import box
    from rich.table import Table

    from rayfed_ssl.leak.audit import summary, suspicious
    from rayfed_ssl.leak.run import leak as audited
    from rayfed_ssl.terminal.progress import console

    screen = console()

    def say(line: str) -> None:
        screen.print(line, markup=False, highlight=False, soft_wrap=True)

    found = audited(run, round, client or (), images, changes=changes or (), trust_imports=trust_imports, say=say)
    table = Table("client", "field", "score", "AUC", "95%", "TPR at 1% FPR", box=box.SIMPLE)
    for one in found.findings:
        told = one.found
        table.add_row(
            str(one.client), one.field, one.score, f"{told.auc:.3f}", f"{told.low:.3f} to {told.high:.3f}",
            f"{told.tpr:.3f}" if one.members >= 100 else "-",  # below, 1% of the others is no image
        )  # fmt: skip
    if len({one.client for one in found.findings}) > 1:
        table.add_section()
        for (field, score), mean in summary(found.findings).items():
            spread = f"clients: {mean['low']:.3f} to {mean['high']:.3f}"
            table.add_row("mean", field, score, f"{mean['mean']:.3f}", spread, "")
    screen.print(table)
    if found.guarantee is not None:
        say(found.guarantee.sentence)
    say(f"0.5 is chance; a score that knows nothing spreads by {found.null_deviation:.3f} around it")
    for one in suspicious(found.findings):
        told = one.found
        say(
            f"client {one.client}: an encoder that knows nothing tells its members from the others ({told.auc:.3f}, "
            f"{told.low:.3f} to {told.high:.3f}): they differ in more than membership, unless it is the one interval "
            "in twenty; read its other areas against this one"
        )
    if found.unaudited:
        say(f"crossed, but no attack here reads it: {', '.join(found.unaudited)}")
    say(f"{'table':<13} {run / 'leak.json'}")
