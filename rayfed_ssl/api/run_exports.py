"""Makes tables of features of a run, exports its encoders and audits its messages, after checking the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayfed_ssl.api.arguments import Images, Place, as_text, check_callable, check_count, check_flag, in_one_word
from rayfed_ssl.api.call_arguments import as_changes
from rayfed_ssl.api.executor import Executor
from rayfed_ssl.api.process_state import surroundings
from rayfed_ssl.api.python_messages import python_words
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.exporting import embed, folder
from rayfed_ssl.exporting.encoders import run_encoder
from rayfed_ssl.leak.members import LEAST
from rayfed_ssl.leak.run import leak


def embedded(
    run: Path,
    uri: str | None,
    data: Images,
    out: Place | None,
    *,
    client: int | str | None,
    id_column: str | None,
    skip_bad: bool,
    overwrite: bool,
    on_note: Callable[[str], object] | None,
) -> pa.Table | Path:
    """Implements :meth:`rayfed_ssl.Run.embed`."""
    data = in_one_word(data)
    file = None if out is None else Path(as_text(out, "out", "a Parquet file to write, or None")).expanduser()
    if client is not None and not isinstance(client, str):
        check_count(client, "client")
    if id_column is not None:
        as_text(id_column, "id_column", "the name of a column, or None")
    check_flag(skip_bad, "skip_bad")
    check_flag(overwrite, "overwrite")
    check_callable(on_note, "on_note")
    if overwrite and file is None:
        raise UserError("overwrite=True: found no out, the file whose place is to be taken")
    with python_words(), surroundings(Executor.local):
        encoder = run_encoder(run, client, trust_imports=True, uri=uri)
        if file is None:
            table, found = embed.table_of(encoder, data, id_column=id_column, skip_bad=skip_bad)
        else:
            found = embed.embed(encoder, data, file, id_column=id_column, skip_bad=skip_bad, overwrite=overwrite)
    if on_note is not None:
        for line in (*found.notes, *(f"left out, cannot be decoded: {name}" for name in found.skipped)):
            on_note(line)
    return table if file is None else file


def exported(run: Path, uri: str | None, to: str, out: Place | None, *, client: int | str | None, licence: str) -> Path:
    """Implements :meth:`rayfed_ssl.Run.export`."""
    as_text(to, "to", f"one of {', '.join(folder.FORMS)}")
    place = None if out is None else Path(as_text(out, "out", "a folder to write, or None")).expanduser()
    if client is not None and not isinstance(client, str):
        check_count(client, "client")
    if not isinstance(licence, str):
        raise UserError(f"license: found {licence!r}; must be an identifier such as apache-2.0")
    if place is None and uri is not None:
        raise UserError("out: not given, and the run is at a URI; name a folder of this machine")
    with python_words(), surroundings(Executor.local):
        folder.check_form(to)
        return folder.export(run_encoder(run, client, trust_imports=True, uri=uri), to, place, licence).folder


def audited(
    run: Path,
    uri: str | None,
    round: int | None,
    *,
    client: int | str | Iterable[int | str] | None,
    images: int,
    moved: Mapping[str, object],
) -> dict[str, Any]:
    """Implements :meth:`rayfed_ssl.Run.leak`."""
    if uri is not None:
        raise UserError(f"{uri}: an audit repeats a round from a checkpoint; copy the run to this machine, and load it")
    if round is not None:
        check_count(round, "round")
    check_count(images, "images")
    if images < LEAST:
        raise UserError(f"images: found {images}; must be {LEAST} or more")
    changes = as_changes(moved)
    with python_words(), surroundings(Executor.local):
        return leak(run, round, _clients(client), images, changes=changes, trust_imports=True).document


def _clients(given: int | str | Iterable[int | str] | None) -> list[int | str]:
    """One, several or no clients as a list of numbers and names. Raises UserError for anything else."""
    if given is None:
        return []
    several: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for client in several:
        if not isinstance(client, str):
            check_count(client, "client")
    return [client if isinstance(client, str) else int(client) for client in several]
