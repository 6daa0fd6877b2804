"""The driver: an actor that runs the round loop with a :class:`RayCohort`. A run survives the death of the driver's
process.

It needs no CPU of its own and sees no GPU. When it is restarted, it goes on from the newest complete checkpoint; it
does the same, within the process, when a client's state was lost with a node. ``actors.follow`` starts it and follows
its progress.

When memory runs out, Ray's monitor kills actors that it may restart before those that it may not, and among these the
youngest first. So Ray may not restart a driver that a command waits for: it is killed last, and the command starts the
next. Nothing else would start a detached driver again, so Ray may restart it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.experimental import internal_kv as kv

from actors.client_process import StartedActors
from actors.cohort import RayCohort
from actors.failures import StateLost
from actors.order import PAUSE_S, RunOrder, Update
from actors.plan import await_ready, free_nodes, living_nodes, reserve, what_is_left
from actors.pool import Pool
from actors.shares import Reservation, restarted
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.base.user_error import StoppedAtOnce
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage import failure
from rayfed_ssl.storage.mirror import mirrored

NEWEST = 100  # lines of a detached run that its driver keeps: nobody reads them, its folder has all
STOPS = "rayfed-ssl stops"  # in the memory of Ray's head, which outlives a driver: the groups of runs that are to stop
STATE_LOSSES = 3  # times in a row that state is lost without a round in between before the run gives up


class ProgressLog:
    """Keeps what a run reports until its reader has it, or the newest of it for readers that come and go, so that
    memory does not grow with the rounds.

    Args:
        kept: how many of the newest lines to keep, whoever has read them; None: all unread lines.
    """

    def __init__(self, kept: int | None = None) -> None:
        self.round = 0  # the furthest that was reported
        self._lines: deque[Progress] = deque(maxlen=kept)
        self._before = self._given = 0  # how many lines are gone, and how many were read at least once
        self._lock = threading.Lock()

    def append(self, progress: Progress) -> None:
        with self._lock:
            if len(self._lines) == self._lines.maxlen:
                self._before += 1  # the append lets the oldest go
            self._lines.append(progress)
            self.round = max(self.round, progress.round)  # an evaluation may come in late

    def since(self, count: int) -> tuple[list[Progress], int]:
        """The lines after the first ``count``, as far as they are kept, and the number of lines reported so far. The
        caller has the earlier lines if they came from this process: the reader of a restarted driver still counts the
        lines of the previous one.
        """
        with self._lock:
            if self._lines.maxlen is None:
                for _ in range(min(count, self._given) - self._before):
                    self._lines.popleft()
                    self._before += 1
            self._given = self._before + len(self._lines)
            return list(self._lines)[max(count - self._before, 0) :], self._given


class Driver:
    """Drives one :class:`RunOrder`; threads let it answer while the run goes on. Ray starts it within a
    ``DriverProcess``.

    Args:
        begun: its client actors, if they have been started already.
    """

    def __init__(self, order: RunOrder, begun: StartedActors | None = None) -> None:
        self.order, self.begun = order, begun
        self.plan = order.plan
        self.process = uuid.uuid4().hex
        self.reported = ProgressLog(kept=NEWEST if order.detached else None)
        self.status = "waiting"
        self.result: Any = None
        self.stop_wanted = threading.Event()
        self.stop_noted = kv._internal_kv_exists(order.group, namespace=STOPS)
        if self.stop_noted:
            self.stop_wanted.set()
        self.reconstructed = restarted()
        self.restarted = self.under_way = self.reconstructed or order.successor
        sys.argv = list(order.argv)  # what environment.json records
        os.chdir(order.cwd)
        if order.detached:  # nobody may be waiting who would ask again after a restart
            self.own_run = ray.get_runtime_context().current_actor.run.remote()

    def run(self) -> dict[str, Any]:
        """Drive the run to its end. Returns the summary; raises what the run raises."""
        if self.reconstructed:  # by Ray, at once: whatever killed the process may not be over
            time.sleep(PAUSE_S)
        try:
            try:
                self.result = summary = self._drive()
            finally:
                if self.begun is not None:  # something was refused before they were used
                    self.begun.close()
        except BaseException as error:
            self.result = _sendable(error)
            # only now: who reads it may kill this process
            self.status = "stopped" if isinstance(error, StoppedAtOnce) else "failed"
            raise
        self.status = "stopped" if summary.get("status") == "stopped" else "done"
        return summary

    def _drive(self) -> dict[str, Any]:
        resume = self.order.resume or self.restarted
        if self.restarted:
            self._say("the driver's process died: going on from the newest checkpoint")
        with mirrored(self.order.folder, self.order.uri, resume=resume) as saved:
            return self._to_the_end(resume, saved)

    def _to_the_end(self, resume: bool, saved: Callable[[], None]) -> dict[str, Any]:
        """Run, and continue from the newest checkpoint whenever state was lost. If a run under way is stopped while it
        waits to go on, it did not fail: what the loss wrote into its folder is removed.
        """

        def attempt(resume: bool) -> dict[str, Any]:
            begun = (self.order.folder / "config.yaml").exists()
            return loop.run(
                self.order.config,
                self.order.folder,
                self._connect,
                resume=resume and (begun or self.order.resume),
                report=self.reported.append,
                stopping=self.stop_wanted.is_set,
                saved=saved,
                begun=self._running,
            )

        def lost(line: str) -> None:
            self.under_way = True
            self._say(line)

        try:
            return persisting(attempt, self._reached, lost, resume=resume)
        except StoppedAtOnce:
            if self.under_way:
                failure.clear(self.order.folder)
            raise

    def _connect(self, config: RunConfig, federation: Federation, ledger: Ledger) -> RayCohort:
        if self.begun is not None:
            wait_s, stopping = config.resources.wait_s, self.stop_wanted.is_set
            await_ready(self.plan, self.begun.reservation, wait_s, self._say, stopping)
            pool = Pool(self.plan, self.begun.reservation, self.begun.actors)
            self.begun = None  # they are the pool's
        else:
            reservation = self.reserve_bundles(config)  # which may change the plan
            pool = Pool(self.plan, reservation)
        return RayCohort(config, federation, ledger, pool, say=self._say, factory=self.order.factory)

    def reserve_bundles(self, config: RunConfig) -> Reservation:
        """Reserve the plan's bundles. A run under way that waited in vain goes on with fewer actors, on what is free.
        Raises UserError, StoppedAtOnce among them.
        """
        wait_s, stopping = config.resources.wait_s, self.stop_wanted.is_set
        while True:
            try:
                return reserve(self.plan, wait_s, self.order.group, self._say, stopping)
            except StoppedAtOnce:
                raise
            except UserError as error:
                if not self.under_way or self.plan.actors == 1:
                    raise
                left = what_is_left(self.plan, config.resources, living_nodes(), free_nodes())
                self._say(f"{error}: going on with {left.actors} of {self.plan.actors} actors")
                self.plan = left

    def _running(self) -> None:
        self.status = "running"

    def _reached(self) -> int:
        return self.reported.round

    def _say(self, line: str) -> None:
        self.reported.append(Progress(self._reached(), self.order.config.train.rounds, line))

    def progress(self, since: int = 0) -> Update:
        """The lines after the first ``since``, which the reader has, and where the run stands."""
        status, result = self.status, self.result  # before the lines: after the end there are no more
        return Update(self.process, *self.reported.since(since), status, result)

    def state(self) -> tuple[str, int]:
        """Where the run stands: ``Update``'s status, and the current round."""
        return self.status, self._reached()

    def stop(self) -> str | None:
        """End after the current round, with a checkpoint; a restarted driver ends at the newest one. Returns why a
        restarted one would not know of it; None if it would.
        """
        self.stop_wanted.set()
        if self.stop_noted:
            return None
        self.stop_noted = True  # now: the attempt may take long, and a second one would take another thread
        try:
            kv._internal_kv_put(self.order.group, b"", namespace=STOPS)
        except RayError as error:
            self.stop_noted = False
            return in_one_line(error)
        return None

    def target(self) -> tuple[str, int]:
        """The run's folder or URI, and its number of rounds."""
        return self.order.uri or str(self.order.folder), self.order.config.train.rounds


def _sendable(error: BaseException) -> BaseException:
    """The exception itself if another process can read it, else its text."""
    try:
        ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def persisting(
    attempt: Callable[[bool], dict[str, Any]], reached: Callable[[], int], say: Callable[[str], None], *, resume: bool
) -> dict[str, Any]:
    """Run, and continue from the newest checkpoint whenever state was lost, unless that repeats without progress.

    Args:
        attempt: does the run, resumed or not.
        reached: returns the current round.
        say: takes a line before another attempt.
    Raises:
        UserError: state was lost ``STATE_LOSSES`` times in a row without a further round in between.
    """
    lost, before = 0, 0
    while True:
        try:
            return attempt(resume)
        except StateLost as error:
            lost, before = (1, now) if (now := reached()) > before else (lost + 1, before)
            if lost >= STATE_LOSSES:
                raise UserError(
                    f"resources: {error}, {STATE_LOSSES} times in a row and no further round in between; --resume goes "
                    "on from the newest checkpoint"
                ) from None
            say(f"{error}; going on from the newest checkpoint")
            resume = True
