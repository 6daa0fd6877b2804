"""How many rounds a run under way has finished. Its tables are written only with checkpoints, its event file as it
goes.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.tensorflow_stub.errors import OpError

ROUND_OVER = "system/round_s"  # recorded once a round, when it is over


def rounds_over(folder: Path) -> int:
    """The last round that is over by the newest event file of the run in ``folder``; 0 where none is, or there is no
    such file that can be read. A record that is being written is not read.

    A resumed run begins a file, which knows nothing of the rounds before it.
    """
    files = sorted(folder.glob("events.out.tfevents.*"))
    steps = [0]
    with contextlib.suppress(OSError, OpError):
        for event in EventFileLoader(str(files[-1])).Load() if files else ():
            if any(value.tag == ROUND_OVER for value in event.summary.value):
                steps.append(event.step)
    return max(steps)
