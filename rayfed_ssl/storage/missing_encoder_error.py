"""The refusal of a run without encoders that was killed: it names the checkpoint that the run goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.models.exported import NoEncoder
from rayfed_ssl.records.summary_file import known_summary
from rayfed_ssl.storage import checkpoint


@contextmanager
def naming_checkpoint(run: Path) -> Iterator[None]:
    """Where the run in a folder has no encoder because it has not ended, name its newest intact checkpoint, and what
    to do. A run that ended, diverged perhaps, has none to go on from.
    """
    try:
        yield
    except NoEncoder:
        if known_summary(run) or (found := checkpoint.newest(run / "checkpoints")[0]) is None:
            raise
        raise UserError(
            f"{run}: found no encoder in {run / 'encoder'}; the run has not finished, and its checkpoint of round "
            f"{found[0]} is intact: --resume continues the run from there to its end, where it writes encoders"
        ) from None
