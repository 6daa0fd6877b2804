"""Reports a run to a program: a JSON object per line on standard output; lines for people go to stderr.

    {"event": "round", "round": 3, "rounds": 20, "train/loss": 2.9, "system/round_s": 1.2, ..}
    {"event": "evaluation", "round": 3, "rounds": 20, "eval/knn": 0.91, ..}    beside the next round, or after it
    {"event": "end", "run": "runs/demo", "status": "complete", ..}             the rest is summary.json's,
                                                                               and `verdict`, as in the report

Every finished round has exactly one object of the first kind. Values that are not finite are null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rayfed_ssl.base.files import finite
from rayfed_ssl.base.text import printable
from rayfed_ssl.report.verdict import verdict
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.terminal.output import divert

LONGEST_LINE = 10_000


class Events:
    """Turns the loop's :class:`Progress` into objects, and lines for people. A context manager: within it, all other
    output (such as that of workers, which Ray repeats here) goes to stderr.
    """

    def __init__(self) -> None:
        self.out = sys.stdout
        self.lost = False  # whether standard output can no longer be written to

    def __enter__(self) -> Self:
        sys.stdout = sys.stderr
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout = self.out

    def line(self, text: str) -> None:
        """Print one line for people."""
        print(printable(text, LONGEST_LINE), file=sys.stderr, flush=True)

    def __call__(self, progress: Progress) -> None:
        if not progress.values:
            self.line(progress.line)
            return
        if progress.came_to_nothing:
            self.line(progress.line)
        kind = "round" if progress.finishes_a_round else "evaluation"
        self.say({"event": kind, "round": progress.round, "rounds": progress.rounds, **progress.values})

    def end(self, summary: Mapping[str, Any], where: Path | str) -> None:
        """Print the last object: where the run is, its summary, and the report's verdict on it."""
        self.say({"event": "end", "run": str(where), **summary, "verdict": asdict(verdict(summary))})

    def say(self, event: Mapping[str, Any]) -> None:
        if self.lost:
            return
        try:
            print(json.dumps(finite(event), allow_nan=False), file=self.out, flush=True)
        except OSError as error:
            self.lost = True
            self.line(f"standard output: {error.strerror or error}; going on without it")
            divert(self.out)
