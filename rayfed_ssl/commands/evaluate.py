"""``rayfed-ssl evaluate``: the encoders of a finished run again, by other protocols, settings or images."""

from __future__ import annotations

from typing import Annotated

import typer


def evaluate(
    run: Annotated[str, typer.Argument(help="A run folder, or its URI.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[evaluation.key=value]...",
            help="Other settings of protocols than the run's; data.path=PATH: where its images lie now.",
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="knn, linear, fewshot, semi, transfer, cluster, rank or angles; by default the run's own."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Other images than the run's: a folder, a Parquet, .csv or .npz file, digits, hub:OWNER/NAME, .."
        ),
    ] = None,
    exclude_trained: Annotated[
        bool, typer.Option("--exclude-trained", help="Leave out test images of --data that the run trained on.")
    ] = False,
    trust_imports: Annotated[
        bool, typer.Option("--trust-imports", help="Run the code that the run folder brings along.")
    ] = False,
) -> None:
    """Evaluate the encoder(s) of a finished run again; adds to RUN/evaluation.json. --protocol may be repeated."""
    from rayfed_ssl.records.outcomes import FILE as OUTCOMES
    from rayfed_ssl.records.tables import EVALUATION
    from rayfed_ssl.report.evaluated import sentence_of
    from rayfed_ssl.simulation.reevaluation import reevaluate
    from rayfed_ssl.storage.fetch import at_hand, is_about_encoders, renewing
    from rayfed_ssl.terminal.fitting import show
    from rayfed_ssl.terminal.output import console, prose
    from rayfed_ssl.terminal.progress import evaluation_tables

    with at_hand(run, is_about_encoders, put_back=(EVALUATION, OUTCOMES)) as folder:
        document = reevaluate(
            folder, protocol or (), changes or (), data=data, exclude_trained=exclude_trained,
            trust_imports=trust_imports, renew=renewing(run, folder, EVALUATION),
        )  # fmt: skip
        sentence = sentence_of(folder, document, other=data is not None)
    about, tables = evaluation_tables(document, other=data is not None)
    if about is not None:
        typer.echo(about)
    for table in tables:
        show(console(), table)
    if sentence is not None:
        prose(console(), sentence.sentence)
