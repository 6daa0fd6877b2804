"""Writes the report for a folder, whose files say whether it holds a comparison, a sweep or a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.report import comparison, run, sweep


def report_of(
    folder: Path,
    *,
    images: bool = True,
    trust_imports: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Path:
    """Write ``report.html`` and ``figures/`` into ``folder`` and return the page's path.

    Args:
        images: whether to load a run's images, for what they show of its encoder.
        trust_imports: whether to run code that a run folder brings along.
        progress: called with the number of a run's sections that are done, and the number of all.

    Raises:
        UserError: the folder holds nothing to report on, a file that the page cannot do without is damaged, the folder
            is removed meanwhile, or nothing can be written there.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: found no such folder; must be the folder of a run, a comparison or a sweep")
    try:
        if (folder / comparison.FILE).is_file():
            return comparison.report(folder)
        if (folder / sweep.RESULTS).is_file():
            return sweep.report(folder)
        for file, what, part in (("comparison.yaml", "comparison", "run"), ("sweep.yaml", "sweep", "trial")):
            if (folder / file).is_file():
                raise UserError(f"{folder}: found a {what} of which no {part} has ended: nothing to report yet")
        return run.report(folder, images=images, trust_imports=trust_imports, progress=progress)
    except OSError as error:
        if not folder.is_dir():
            raise UserError(f"{folder}: was removed or moved meanwhile, and no report was written") from error
        if error.errno is None:
            raise
        raise UserError(f"{folder}: cannot write the report ({os.strerror(error.errno)})") from error
