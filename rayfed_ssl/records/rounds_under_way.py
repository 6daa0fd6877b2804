"""How many rounds a run under way has finished. Its tables are written only with checkpoints, its event file as it
goes.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

ROUND_OVER = "system/round_s"  # recorded once a round, when it is over
HEAD, TAIL = struct.Struct("<QI"), struct.Struct("<I")  # around a record: length and its checksum; data's checksum
BEFORE_TAG = 80  # bytes at most from the beginning of such a record to the tag
FIRST_READ = 1 << 16  # bytes


def rounds_over(folder: Path) -> int:
    """The last round that is over by the newest event file of the run in ``folder``; 0 where none is, or there is no
    such file that can be read. A record that is being written is not read.

    A resumed run begins a file, which knows nothing of the rounds before it. The file is read from its end, as far as
    the last round: that of a long run is large, and has a record for each value of each client.
    """
    files = sorted(folder.glob("events.out.tfevents.*"))
    with contextlib.suppress(OSError):
        for path in files[-1:]:
            size, most = path.stat().st_size, FIRST_READ
            while True:
                with path.open("rb") as file:
                    file.seek(max(size - most, 0))
                    found = _last_round(file.read(most))
                if found is not None or most >= size:
                    return found or 0
                most *= 8
    return 0


def _last_round(end: bytes) -> int | None:
    """The step of the last whole record in ``end`` that says a round is over; None where there is none."""
    place = end.rfind(ROUND_OVER.encode())
    while place >= 0:
        for start in range(place - HEAD.size, max(place - BEFORE_TAG, -1), -1):
            if (record := _record(end, start)) is not None:
                event = Event.FromString(record)
                if any(value.tag == ROUND_OVER for value in event.summary.value):
                    return int(event.step)
        place = end.rfind(ROUND_OVER.encode(), 0, place)
    return None


def _record(end: bytes, start: int) -> bytes | None:
    """The record that begins at ``start``; None where none does, or not all of it is there."""
    length, checksum = HEAD.unpack_from(end, start)
    begins, ends = start + HEAD.size, start + HEAD.size + length
    if ends + TAIL.size > len(end) or checksum != masked_crc32c(end[start : start + 8]):
        return None
    (checksum,) = TAIL.unpack_from(end, ends)
    return end[begins:ends] if checksum == masked_crc32c(end[begins:ends]) else None
