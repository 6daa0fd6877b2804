"""Reproduces the messages of a round. A run folder contains none, but repeating the round from a checkpoint gives the
same messages, bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import SERVER, OperationResult, State
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.loop import RunLoop
from rayfed_ssl.simulation.resuming import check_same
from rayfed_ssl.simulation.worker import Worker
from rayfed_ssl.storage import checkpoint

# Resuming a run needs these files, and a checkpoint.
KEPT = ("config.yaml", "environment.json", "partition.parquet", "imports", "metrics.parquet")


@dataclass(frozen=True)
class RecordedExchange:
    """One exchange with one client: the server's message, and the client's reply. ``round`` is the round in which it
    began; FedBuff may use a reply much later.
    """

    round: int
    client: int
    operation: str
    message: Mapping[str, Any]
    reply: Mapping[str, Any]


class RecordingWorker(Worker):
    """A worker that, while ``recording`` is set, records the exchanges of some clients, and which clients take part."""

    def __init__(self, config: RunConfig, federation: Federation) -> None:
        super().__init__(config, federation)
        self.clients: frozenset[int] = frozenset()  # whose exchanges are recorded
        self.recording = False
        self.present: set[int] = set()  # who took part
        self.recorded: list[RecordedExchange] = []

    def execute(
        self, operation: str, client: int, round: int, message: Mapping[str, Any], state: State | None, visit: int = 0
    ) -> tuple[OperationResult, State]:
        result, new = super().execute(operation, client, round, message, state, visit)
        if self.recording and client != SERVER:
            self.present.add(client)
        if self.recording and client in self.clients:
            self.recorded.append(RecordedExchange(round, client, operation, dict(message), dict(result.reply)))
        return result, new


def replayed(
    config: RunConfig,
    run: Path,
    round: int,
    clients: Callable[[Federation], Sequence[int]],
    say: Callable[[str], None] = lambda line: None,
) -> tuple[RecordingWorker, list[RecordedExchange]]:
    """Repeat ``round`` of a run in this process, from the newest earlier checkpoint. The run folder is not changed.

    Args:
        config: the run's configuration; its paths may differ if the same images and files are there.
        clients: returns the clients whose exchanges to record. Not all of them need to take part in the round.
        say: called with a line on how many rounds are repeated.
    Returns:
        The worker that repeated the round, with its images and networks, and the exchanges of the clients in the round.
    Raises:
        UserError: the images are not the run's.
    """
    before = [(t, path) for t, path in checkpoint.complete(run / "checkpoints") if t < round]
    with TemporaryDirectory(prefix="rayfed-leak-") as temporary:
        folder = Path(temporary)
        for path in (run / name for name in KEPT):
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            elif path.exists():
                shutil.copy2(path, folder / path.name)
        for _, path in before[-1:]:
            shutil.copytree(path, folder / "checkpoints" / path.name)
        first = before[-1][0] + 1 if before else 1
        this = RunLoop(config, folder, _RecordingCohort, resume=True, report=lambda progress: None)
        try:
            check_same(config, run, this.federation)  # RunLoop does so only if it finds results to resume from
            assert isinstance(this.cohort, LocalCohort)
            worker = this.cohort.worker
            assert isinstance(worker, RecordingWorker)
            worker.clients = frozenset(clients(this.federation))
            newest = f"the newest checkpoint before is of round {first - 1}" if before else "no checkpoint lies before"
            several = f" to {round}: {newest} (checkpoint.every says how often there is one)"
            say(f"repeating round{'s' * (first < round)} {first}{several if first < round else ''}")
            for t in range(this.start + 1, round + 1):
                worker.recording = t == round
                this.round(t)
            return worker, worker.recorded
        finally:
            this.close()


class _RecordingCohort(LocalCohort):
    """Clients in this process, whose exchanges are recorded."""

    def __init__(self, config: RunConfig, federation: Federation, ledger: Ledger) -> None:
        super().__init__(config, federation, ledger)
        self.worker: Worker = RecordingWorker(config, federation)

    def conclude(self, operation: str, clients: Sequence[int]) -> None:
        """Do nothing: what clients do by themselves after the last round is no message."""
