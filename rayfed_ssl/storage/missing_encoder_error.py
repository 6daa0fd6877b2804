"""The error for a run that was killed before it wrote encoders, which names the checkpoint to continue from."""

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
    """If NoEncoder is raised within this context and the run has not ended, name its newest intact checkpoint and what
    to do. Otherwise the error is raised as it is: a run that has ended, or has no checkpoint, cannot be continued.
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
