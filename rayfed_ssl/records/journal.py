"""Writes a run's metrics and bookings as Parquet parts while it runs, and the same metrics for TensorBoard.

Rows are kept in memory until ``commit``, which belongs to a checkpoint and comes before the checkpoint's marker, or
until there are so many that ``spill`` writes them between checkpoints. A crash loses only rows that the resumed run
makes again, and nothing appears twice: the resumed run removes the parts past its checkpoint, and TensorBoard is purged
from the first step that these parts, or uncommitted rows, may have touched. To make this possible, late rows of a round
that is already committed (an evaluation that came in late) are sent to TensorBoard only with the next commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayfed_ssl.federated.ledger import Booking
from rayfed_ssl.records.tables import (
    COMMUNICATION,
    DROPPED,
    EVALUATED,
    METRICS,
    Commit,
    Drop,
    Metric,
    bookings_table,
    communication_parts,
    communication_totals,
    dropped_parts,
    metrics_parts,
    table,
)
from rayfed_ssl.records.tensorboard import TensorBoard

BEFORE_THE_RUN = Commit(-1, 0)
SPILL = 10_000  # rows that a run without checkpoints may hold in memory: a few MB


class Journal:
    """The tables and the event file of one run folder.

    Args:
        folder: the run folder.
        resume_round: the checkpoint the run continues from. None starts afresh and removes what an earlier attempt
            recorded in this folder.
        clients: the number of the run's clients; beyond 64, TensorBoard gets their mean, extremes and quartiles.
        names: the clients' names, if they have any.

    Raises:
        OSError: the disk is full. Everything that records raises it, too, because TensorBoard's file is written at
            once.
    """

    def __init__(
        self, folder: Path, *, resume_round: int | None = None, clients: int, names: Sequence[str] | None = None
    ) -> None:
        self._metrics = metrics_parts(folder, names)
        self._communication = communication_parts(folder, names)
        self._dropped = dropped_parts(folder, names)
        self._committed = BEFORE_THE_RUN if resume_round is None else Commit(resume_round, 0)
        kept = self._metrics.read(up_to=self._committed)
        sent = self._communication.read(["direction", "bytes"], up_to=self._committed)
        self._totals = communication_totals(sent)
        self._open_round = self._told_round = self._committed.round  # of the communication scalars
        self._rows: list[Metric] = []
        self._held: list[Metric] = []
        self._drops: list[Drop] = []
        self._bookings: list[pa.Table] = []
        already_s = pc.max(kept["wall_s"]).as_py() or 0.0
        self._zero = time.monotonic() - already_s
        purge = self._purge_step(folder)
        self._board = TensorBoard(
            folder, clients=clients, names=names, purge_step=purge, epoch_s=time.time() - already_s
        )
        if purge is not None:
            touched = kept.filter(pc.greater_equal(kept["round"], purge))
            self._board.scalars(Metric(**row) for row in touched.to_pylist())
        self._metrics.remove_after(self._committed)
        self._communication.remove_after(self._committed)
        self._dropped.remove_after(self._committed)

    @property
    def wall_s(self) -> float:
        """Seconds since the run's records were opened, including those before a resume, but without the start-up."""
        return time.monotonic() - self._zero

    def metric(self, round: int, tag: str, value: float, client: int | None = None) -> None:
        """Record ``value`` under ``group/name`` for the whole federation or one client; NaN is recorded as it is."""
        row = Metric(round, client, tag, float(value), self.wall_s)
        self._rows.append(row)
        if client is not None and self._board.aggregates:
            self._held.append(row)
        else:
            self._board.scalars([row])

    def communication(self, bookings: Iterable[Booking]) -> None:
        """Record the ledger's rows, in the order of their rounds.

        Each round also gets the metrics ``communication/up_mb`` and ``communication/down_mb``: millions of bytes since
        the run started. Bytes booked to a round after its commit show in the next round's figure.
        """
        rows = list(bookings)
        for row in rows:
            if row.round > self._open_round:
                self._tell_totals()
                self._open_round = row.round
            self._totals[f"{row.direction}_bytes"] += row.bytes
        if rows:
            self._bookings.append(bookings_table(rows))

    def dropped(self, rows: Iterable[Drop]) -> None:
        """Record clients that were dropped."""
        self._drops += rows

    def text(self, tag: str, markdown: str, round: int = 0) -> None:
        """A Markdown panel in TensorBoard, e.g. the config at the start; a resumed run does not repeat it."""
        self._board.text(tag, markdown, round)

    def image(self, tag: str, image: np.ndarray, round: int = 0) -> None:
        """An image (H, W, 3) uint8 in TensorBoard."""
        self._board.image(tag, image, round)

    def commit(self, round: int) -> None:
        """Write everything recorded so far as the parts of ``round``, atomically.

        Call it before the checkpoint of ``round`` gets its marker. Called for the same round again, it writes what came
        after that checkpoint.

        Raises:
            ValueError: a later round is already committed.
            OSError: the disk is full; a resumed run removes what was written.
        """
        self.write(round)
        self._board.scalars(self._held)
        self._held = []

    def spill(self, round: int) -> None:
        """Write the rows if they are many, so that memory does not grow with rounds. Call it between checkpoints, when
        round ``round`` is over and nothing of the next is recorded. Evaluations that may still be coming in client by
        client reach TensorBoard, which draws their spread, only with the next commit.
        """
        if len(self._rows) + sum(len(bookings) for bookings in self._bookings) < SPILL:
            return
        self.write(round)
        waiting = [row for row in self._held if row.tag.startswith(EVALUATED)]
        self._board.scalars(row for row in self._held if not row.tag.startswith(EVALUATED))
        self._held = waiting

    def write(self, round: int) -> None:
        """Everything recorded so far as the parts of ``round``."""
        if round < self._committed.round:
            raise ValueError(f"round {self._committed.round} is committed: round {round} comes too late")
        self._tell_totals()
        late = self._committed.late + 1 if round == self._committed.round else 0
        if self._rows or self._bookings or self._drops:
            at = Commit(round, late)
            if self._drops:
                self._dropped.write(at, table(self._drops, DROPPED))
            self._communication.write(at, pa.concat_tables([COMMUNICATION.empty_table(), *self._bookings]))
            self._metrics.write(at, table(self._rows, METRICS))
            self._committed = at
        elif not late:
            self._committed = Commit(round, 0)
        self._rows, self._bookings, self._drops = [], [], []

    def close(self) -> None:
        """Close the event file. What was not committed is not written."""
        self._board.close()

    def _purge_step(self, folder: Path) -> int | None:
        """The first step at which TensorBoard may hold something that the run will record again: a checkpoint's own
        round is evaluated after it. None: a new run.
        """
        if self._committed == BEFORE_THE_RUN:
            for path in folder.glob("events.out.tfevents.*"):
                path.unlink()
            return None
        lost = pc.min(self._metrics.read(["round"], after=self._committed)["round"]).as_py()
        return self._committed.round if lost is None else min(self._committed.round, int(lost))

    def _tell_totals(self) -> None:
        if self._open_round > self._told_round:
            self._told_round = self._open_round
            self.metric(self._open_round, "communication/up_mb", self._totals["up_bytes"] / 1e6)
            self.metric(self._open_round, "communication/down_mb", self._totals["down_bytes"] / 1e6)
