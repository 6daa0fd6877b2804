"""A sweep or a comparison for TensorBoard's HParams: each trial's folder gets an event file with its varied keys and
its results.

The file is written anew whenever the results are.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary as untyped

from rayfed_ssl.base.files import replace_file

summary: Any = untyped  # torch's functions say nothing of types
FILE = "events.out.tfevents.0000000001.sweep.hparams"  # read before the run's own
SWEEP, COMPARISON = "sweep/", "comparison/"  # before a metric's name


def write(
    folder: Path,
    varied: Mapping[str, object],
    results: Mapping[str, float | None],
    rounds: int | None,
    *,
    over: bool,
    group: str = SWEEP,
) -> None:
    """Write the event file of one trial into its run folder: the keys that ``varied``, and its results as scalars
    ``<group><metric>`` at step ``rounds``.

    Args:
        results: values by metric; None if there is none yet.
        over: whether the trial is over.

    Raises:
        OSError: the disk is full.
    """
    tags, now = {f"{group}{metric}": value for metric, value in results.items()}, time.time()
    shown = {key: _hparams_value(value) for key, value in varied.items()}
    experiment, start, end = summary.hparams(shown, dict.fromkeys(tags, 0.0))
    events = [Event(wall_time=now, file_version="brain.Event:2")]
    events += [
        Event(wall_time=now, summary=part) for part in ((experiment, start, end) if over else (experiment, start))
    ]
    events += [
        Event(wall_time=now, step=rounds or 0, summary=summary.scalar(tag, value))
        for tag, value in tags.items()
        if value is not None
    ]
    stream = io.BytesIO()
    records = RecordWriter(stream)
    for event in events:
        records.write(event.SerializeToString())
    replace_file(folder / FILE, lambda draft: draft.write_bytes(stream.getvalue()))


def _hparams_value(value: object) -> bool | int | float | str:
    """A value that HParams can show; everything else, and null, becomes JSON."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
