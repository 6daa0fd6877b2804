"""``rayfed-ssl report``: a run, a comparison or a sweep as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN|COMPARISON|SWEEP", help="The folder of any of them.")],
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Look at a run's images: map, neighbours, projector.")
    ] = True,
    trust_imports: Annotated[
        bool, typer.Option("--trust-imports", help="Run the code that the run folder brings along.")
    ] = False,
) -> None:
    """Write report.html, one page that needs no network, and its figures as SVG, PDF and PNG."""
    from rayfed_ssl.data.decoding.threads import decoding_told
    from rayfed_ssl.terminal.counting import Counter
    from rayfed_ssl.terminal.output import console, verbatim

    screen = console()
    with Counter(screen, "sections of the report") as counter, decoding_told(counter.line):
        from rayfed_ssl.report.dispatch import report_of  # takes seconds, which the bar fills

        page = report_of(folder.expanduser(), images=images, trust_imports=trust_imports, progress=counter)
    for name, path in (("report", page), ("figures", page.parent / "figures")):
        verbatim(screen, f"{name:<13} {path}")
