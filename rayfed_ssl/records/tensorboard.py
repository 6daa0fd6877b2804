"""A run's metrics for TensorBoard: scalars ``group/name``, the config as a text panel, figures.

The event files stay small: what clients measure has one curve per client up to 64 clients, under its name if it has
one, and beyond that the mean, the extremes and the quartiles over the clients of the round. Parquet keeps every value
in either case.
"""

from __future__ import annotations

import os
import re
import socket
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary as untyped

from rayfed_ssl.records.tables import Metric

summary: Any = untyped  # torch's functions say nothing of types
CURVES = 64  # the most clients that have a curve of their own
FILE = re.compile(r"events\.out\.tfevents\.(\d+)\..*")


class EventFile:
    """One ``events.out.tfevents.*``, every record on its way to the disk when ``add`` returns.

    torch's SummaryWriter writes in a thread, which on a full disk prints a traceback and loses what it held.

    Raises:
        OSError: the disk is full; ``add`` and ``close`` raise it, too.
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names: this one last, whatever the clock says.
        others = (FILE.fullmatch(path.name) for path in folder.iterdir())
        began = max([int(time.time()), *(int(match[1]) + 1 for match in others if match)])
        name = f"events.out.tfevents.{began:010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=purge_step, session_log=start))

    def add(self, values: Any, step: int, wall_time: float | None = None) -> None:
        """Write a ``Summary``; without ``wall_time`` as of now."""
        self._add(Event(wall_time=time.time() if wall_time is None else wall_time, step=int(step), summary=values))

    def close(self) -> None:
        self._file.close()

    def _add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()


class TensorBoard:
    """Writes ``events.out.tfevents.*`` into the run folder.

    Args:
        folder: the run folder.
        clients: how many clients the run has.
        names: the clients' names, if they have any.
        purge_step: a resumed run's first step: TensorBoard forgets what was written at and after it. What was written
            once before that step (text, figures) is not written again.
        epoch_s: the time at which the run's ``wall_s`` was 0, in seconds since 1970.

    Raises:
        OSError: the disk is full; everything that writes raises it, too.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clients: int,
        names: Sequence[str] | None = None,
        purge_step: int | None,
        epoch_s: float,
    ) -> None:
        self.aggregates = clients > CURVES
        self._curves = [str(client) for client in range(clients)] if names is None else curves(names)
        self._first_step = purge_step or 0
        self._epoch_s = epoch_s
        self._file = EventFile(folder, purge_step)

    def scalars(self, rows: Iterable[Metric]) -> None:
        """Write metrics; beyond 64 clients, ``rows`` must hold all clients' values of a round and tag together."""
        together: dict[tuple[int, str], list[Metric]] = {}
        for row in rows:
            name = row.tag.removeprefix("client/")
            if row.client is None:
                self._scalar(row.tag, row.value, row.round, row.wall_s)
            elif self.aggregates:
                together.setdefault((row.round, name), []).append(row)
            else:
                self._scalar(f"client/{name}/{self._curves[row.client]}", row.value, row.round, row.wall_s)
        for (round, name), group in together.items():
            for statistic, value in spread(np.array([row.value for row in group])).items():
                self._scalar(f"client/{name}/{statistic}", value, round, group[-1].wall_s)

    def text(self, tag: str, markdown: str, step: int) -> None:
        if step >= self._first_step:
            self._file.add(summary.text(tag, markdown), step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        """``image`` (H, W, 3) uint8."""
        if step >= self._first_step:
            self._file.add(summary.image(tag, image, dataformats="HWC"), step)

    def close(self) -> None:
        self._file.close()

    def _scalar(self, tag: str, value: float, step: int, wall_s: float) -> None:
        self._file.add(summary.scalar(tag, value), step, self._epoch_s + wall_s)


def curves(names: Sequence[str]) -> list[str]:
    """The last part of each client's tags: its name without slashes, with its number where others are called alike."""
    plain = [name.replace("/", "_") for name in names]
    times = Counter(plain)
    return [name if times[name] == 1 else f"{name} ({client})" for client, name in enumerate(plain)]


def spread(values: np.ndarray) -> dict[str, float]:
    """Mean, extremes and quartiles (linear interpolation) of ``values`` (N,), NaN left out; NaN where only NaN is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all NaN: the answer is NaN, and that is said in the curve
        p25, p50, p75 = np.nanpercentile(values, [25, 50, 75])
        return {
            "mean": float(np.nanmean(values)),
            "min": float(np.nanmin(values)),
            "max": float(np.nanmax(values)),
            "p25": float(p25),
            "p50": float(p50),
            "p75": float(p75),
        }
