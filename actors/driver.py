"""The driver: an actor that runs the round loop over a :class:`RayCohort`; a run survives the death of its process.

It needs no CPU of its own and sees no GPU. Restarted, it goes on from the newest complete checkpoint; so it does, in
the same process, when a client's state was lost with a node. :func:`run_on_ray` is what a command line calls.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorAlreadyExistsError, ActorUnavailableError, GetTimeoutError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.client import environment
from actors.cohort import RayCohort
from actors.plan import (
    Plan,
    Reservation,
    autoscaling_ceiling,
    free_nodes,
    living_nodes,
    plan,
    plan_in_trial,
    reserve,
    trial_group,
    what_is_left,
)
from actors.pool import Pool, StateLost, unwrapped
from actors.session import NAMESPACE, Session, check_paths, cluster_address, connect, in_job
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.loop import Progress
from rayfed_ssl.simulation.worker import Worker
from rayfed_ssl.storage import claim

POLL_S = 0.2
LOSSES = 3  # times in a row that state is lost without a round in between before the run gives up
Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Update:
    """What happened since the last look. ``process`` changes when the driver was restarted: its list starts anew."""

    process: str
    progress: list[Progress]
    status: str  # waiting | running | done | failed
    result: Any = None  # the summary, or the exception


@dataclass(frozen=True)
class Order:
    """A run to be driven."""

    config: RunConfig
    folder: Path
    resume: bool
    plan: Plan
    group: str  # name of the placement group, so that a restarted driver finds what its predecessor left
    argv: tuple[str, ...]
    cwd: str
    uri: str | None = None  # where the folder is copied to
    detached: bool = False
    factory: Callable[[RunConfig, Federation], Worker] = Worker


class Driver:
    """Runs one order. Wrapped with ``ray.remote`` where it is used; threads let it answer while it runs."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.plan = order.plan
        self.process = uuid.uuid4().hex
        self.progress_list: list[Progress] = []
        self.status = "waiting"
        self.result: Any = None
        self.stop_wanted = threading.Event()
        self.restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self.under_way = self.restarted
        sys.argv = list(order.argv)  # what environment.json records
        os.chdir(order.cwd)
        if order.detached:  # nobody may be waiting who would ask again after a restart
            self.own_run = ray.get_runtime_context().current_actor.run.remote()

    def run(self) -> dict[str, Any]:
        """Drive the run to its end. Returns the summary; raises what the run raises."""
        self.status = "running"
        try:
            self.result = summary = self._drive()
        except BaseException as error:
            self.status, self.result = "failed", _sendable(error)
            raise
        self.status = "done"
        return summary

    def _drive(self) -> dict[str, Any]:
        resume = self.order.resume or self.restarted
        if self.restarted:
            self._say("the driver's process died: going on from the newest checkpoint")
        with claim.mirrored(self.order.folder, self.order.uri, resume=resume) as saved:
            return self._to_the_end(resume, saved)

    def _to_the_end(self, resume: bool, saved: Callable[[], None]) -> dict[str, Any]:
        """Run, and run on from the newest checkpoint where state was lost."""

        def attempt(resume: bool) -> dict[str, Any]:
            return loop.run(
                self.order.config,
                self.order.folder,
                self._connect,
                resume=resume,
                report=self.progress_list.append,
                stopping=self.stop_wanted.is_set,
                saved=saved,
            )

        def lost(line: str) -> None:
            self.under_way = True
            self._say(line)

        return persisting(attempt, self._reached, lost, resume=resume)

    def _connect(self, config: RunConfig, federation: Federation, ledger: Ledger) -> RayCohort:
        reservation = self._reserve(config)
        pool = Pool(self.plan, reservation)
        return RayCohort(config, federation, ledger, pool, say=self._say, factory=self.order.factory)

    def _reserve(self, config: RunConfig) -> Reservation:
        """The plan's bundles. A run under way that waited in vain goes on with fewer actors, on what is free."""
        while True:
            try:
                return reserve(self.plan, config.resources.wait_s, self.order.group, self._say)
            except UserError as error:
                if not self.under_way or self.plan.actors == 1:
                    raise
                left = what_is_left(self.plan, config.resources, living_nodes(), free_nodes())
                self._say(f"{error}: going on with {left.actors} of {self.plan.actors} actors")
                self.plan = left

    def _reached(self) -> int:
        return self.progress_list[-1].round if self.progress_list else 0

    def _say(self, line: str) -> None:
        self.progress_list.append(Progress(self._reached(), self.order.config.train.rounds, line))

    def progress(self, since: int = 0) -> Update:
        return Update(self.process, self.progress_list[since:], self.status, self.result)

    def stop(self) -> None:
        """End after the round that is running, with a checkpoint."""
        self.stop_wanted.set()

    def target(self) -> tuple[str, int]:
        """The run's folder or URI, and how many rounds it is to have."""
        return self.order.uri or str(self.order.folder), self.order.config.train.rounds


def _sendable(error: BaseException) -> BaseException:
    """The exception itself where another process can read it, else its text."""
    try:
        ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def persisting(
    attempt: Callable[[bool], dict[str, Any]], reached: Callable[[], int], say: Callable[[str], None], *, resume: bool
) -> dict[str, Any]:
    """Run, and run on from the newest checkpoint where state was lost, unless again and again without progress.

    Args:
        attempt: a run, resumed or not.
        reached: the round it is at.
        say: takes a line before another attempt.
    Raises:
        StateLost: ``LOSSES`` times in a row, and no further round in between.
    """
    lost, before = 0, 0
    while True:
        try:
            return attempt(resume)
        except StateLost as error:
            lost, before = (1, now) if (now := reached()) > before else (lost + 1, before)
            if lost >= LOSSES:
                raise
            say(f"{error}; going on from the newest checkpoint")
            resume = True


def planned(config: RunConfig) -> Plan:
    """The plan for the cluster we are connected to, or for the Tune trial we are in. Raises UserError."""
    if (group := trial_group()) is not None:
        return plan_in_trial(config.resources, group.bundle_specs)
    ceiling = autoscaling_ceiling(config.resources.autoscales_to)
    return plan(config.resources, config.cohort_size, living_nodes(), ceiling)


def start(
    config: RunConfig,
    folder: Path,
    session: Session,
    *,
    uri: str | None = None,
    resume: bool = False,
    detached: str | None = None,
    factory: Callable[[RunConfig, Federation], Worker] = Worker,
) -> tuple[ActorHandle, Plan]:
    """A driver actor for the run; ``detached`` is its name if it is to run by itself, else it waits for ``run``.

    Raises:
        UserError: a relative path in a job, a plan that does not fit, a name that is taken.
    """
    if in_job():
        check_paths(config, folder)
    made = planned(config)
    order = Order(
        config, folder.absolute(), resume, made, f"{NAMESPACE}-{uuid.uuid4().hex}", tuple(sys.argv), os.getcwd(),
        uri, detached is not None, factory,
    )  # fmt: skip
    quiet = {name: os.environ[name] for name in ("PYTHONWARNINGS",) if name in os.environ}
    options: dict[str, Any] = {
        "num_cpus": 0,
        "num_gpus": 0,
        "max_concurrency": 4,
        "max_restarts": 1,
        "max_task_retries": 1,
        "runtime_env": {"env_vars": environment(config.resources.threads, 0.0) | quiet},
        "scheduling_strategy": NodeAffinitySchedulingStrategy(session.node, soft=False),  # the run's folder is here
    }
    if (group := trial_group()) is not None:
        options["num_cpus"] = group.bundle_specs[0].get("CPU", 0.0)
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
    if detached is not None:
        options |= {"name": detached, "namespace": NAMESPACE, "lifetime": "detached"}
    try:
        return ray.remote(Driver).options(**options).remote(order), made
    except ActorAlreadyExistsError:
        raise UserError(
            f"name: found '{detached}', which runs on this cluster already; attach to it, stop it, or set another name"
        ) from None


def run_on_ray(
    config: RunConfig,
    folder: Path,
    *,
    uri: str | None = None,
    resume: bool = False,
    report: Report = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
    address: str | None = None,
    factory: Callable[[RunConfig, Federation], Worker] = Worker,
) -> dict[str, Any]:
    """A whole run on Ray, followed to its end; the command line's ``run``. Returns the summary.

    Ctrl-C ends it after the round that is running, with a checkpoint; a second one at once.

    Raises:
        UserError, ClientError: as they were raised where they happened, with the traceback of there.
    """
    with connect(address) as session:
        driver, made = start(config, folder, session, uri=uri, resume=resume, factory=factory)
        for line in made.lines:
            report(Progress(0, config.train.rounds, line))
        done = driver.run.remote()
        try:
            follow(driver, report, stopping, finished=lambda: bool(ray.wait([done], timeout=POLL_S)[0]))
            return ray.get(done)  # type: ignore[no-any-return]
        except RayTaskError as error:
            raise unwrapped(error)  # noqa: B904 - its cause is the remote traceback
        finally:
            ray.kill(driver)


def follow(
    driver: ActorHandle,
    report: Report,
    stopping: Callable[[], bool] = lambda: False,
    *,
    finished: Callable[[], bool] | None = None,
    until: Callable[[], bool] = lambda: False,
) -> Update:
    """Report a driver's progress until its run is over, or ``finished`` says so; then a first Ctrl-C asks it to stop.

    ``until`` ends it earlier, after whatever was reported.

    Raises:
        RayActorError: the driver died more often than it is restarted.
    """
    process, seen, interrupted = "", 0, False
    while True:
        try:
            over = finished() if finished is not None else _slept()
            if interrupted or stopping():
                driver.stop.remote()
            update = _looked(driver, seen)
            if update is not None and update.process != process and seen:
                update = _looked(driver, 0)  # its list started anew; if that look fails, the next one comes here again
            if update is None:
                if over and finished is not None:
                    return Update(process, [], "failed")
                continue
            if update.process != process:
                process, seen = update.process, 0
            for item in update.progress:
                report(item)
            seen += len(update.progress)
            if over or until() or (finished is None and update.status in ("done", "failed")):
                return update
        except KeyboardInterrupt:
            if interrupted or finished is None:
                raise
            interrupted = True


def _slept() -> bool:
    time.sleep(POLL_S)
    return False


def _looked(driver: ActorHandle, since: int) -> Update | None:
    """The driver's news; None while it is being restarted."""
    try:
        return ray.get(driver.progress.remote(since), timeout=10.0)  # type: ignore[no-any-return]
    except (GetTimeoutError, ActorUnavailableError):
        return None


def find(name: str) -> ActorHandle:
    """The detached driver of that name. Raises UserError where there is none."""
    with contextlib.suppress(ValueError):
        return ray.get_actor(name, namespace=NAMESPACE)
    raise UserError(f"{name}: no such run on this cluster; it has ended, or RAY_ADDRESS names another cluster")


def detach(
    config: RunConfig,
    folder: Path,
    *,
    uri: str | None = None,
    resume: bool = False,
    report: Report = lambda progress: None,
    address: str | None = None,
) -> None:
    """Start a run that goes on by itself under ``config.name``; returns when its images are read.

    Raises:
        UserError: no cluster is named, or the run refused what it was told.
    """
    with connect(cluster_address(address, "--detach")) as session:
        driver, made = start(config, folder, session, uri=uri, resume=resume, detached=config.name)
        for line in made.lines:
            report(Progress(0, config.train.rounds, line))
        begun = threading.Event()

        def first(progress: Progress) -> None:
            begun.set()
            report(progress)

        update = follow(driver, first, until=begun.is_set)
        if update.status == "failed":
            ray.kill(driver)
            raise update.result


def attach(name: str, report: Report, address: str | None = None) -> tuple[dict[str, Any], str, int]:
    """Follow a detached run to its end; then its driver is let go. Ctrl-C leaves it running.

    Returns:
        The summary, the folder or URI in which the run is, and how many rounds it was to have.
    """
    with connect(cluster_address(address, "attach")):
        driver = find(name)
        update = follow(driver, report)
        where, rounds = ray.get(driver.target.remote())
        ray.kill(driver)
        if update.status == "failed":
            raise update.result
        return update.result, where, rounds


def stop(name: str, address: str | None = None) -> None:
    """Have a detached run end after its round, with a checkpoint."""
    with connect(cluster_address(address, "stop")):
        ray.get(find(name).stop.remote(), timeout=60.0)
