"""What a command does with a run on Ray: start it, follow it, detach from it, attach to it and stop it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorAlreadyExistsError, ActorUnavailableError, GetTimeoutError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.driver_process import DriverProcess
from actors.failures import DEATHS, unwrapped
from actors.order import OVER, PAUSE_S, RESTARTS, RunOrder, Update
from actors.plan import planned
from actors.session import NAMESPACE, Session, check_paths, cluster_address, connect, in_job
from actors.shares import Plan, discard, environment, trial_group
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.base.user_error import StoppedAtOnce
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.worker import Worker

POLL_S = 0.2
ANSWER_S = 10.0  # how long a driver may take to say where it stands
STOP_S = 60.0  # how long one may take to hear that it is to stop
REASON = 200  # letters of Ray's explanation that are shown
Report = Callable[[Progress], None]


def start(
    config: RunConfig,
    folder: Path,
    session: Session,
    *,
    uri: str | None = None,
    resume: bool = False,
    detached: str | None = None,
    group: str | None = None,
    successor: bool = False,
    factory: Callable[[RunConfig, Federation], Worker] = Worker,
) -> tuple[ActorHandle, Plan]:
    """Start a driver actor for the run. ``detached`` is its name if it is to run by itself; otherwise it waits for
    ``run``.

    Args:
        group: the name of its placement group; by default a new name.
        successor: whether a driver of this run died; then its group with that name is removed first.
    Raises:
        UserError: a relative path in a job, a plan that does not fit, a name that is taken.
    """
    if in_job():
        check_paths(config, folder)
    made = replace(planned(config), prepared=session.threads == config.resources.threads)
    named = group or f"{NAMESPACE}-{uuid.uuid4().hex}"
    order = RunOrder(
        config, folder.absolute(), resume, made, named, tuple(sys.argv), os.getcwd(),
        uri, detached is not None, successor, factory,
    )  # fmt: skip
    quiet = {name: os.environ[name] for name in ("PYTHONWARNINGS",) if name in os.environ}
    variables = environment(config.resources.threads, 0.0) | quiet
    options = {**_place(session), **made.runtime_env(variables), **_lifetime(detached)}
    try:
        early = None if order.successor else (made, named)
        driver = ray.remote(DriverProcess).options(**options).remote(variables, early, ray.cloudpickle.dumps(order))
        return driver, made
    except ActorAlreadyExistsError:
        raise UserError(
            f"name: found '{detached}', which runs on this cluster already; attach to it, stop it, or set another name"
        ) from None


def _place(session: Session) -> dict[str, Any]:
    """Ray's options that place a driver on the node of its run's folder or, in a Tune trial, in the trial's bundle
    0.
    """
    options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0, "max_concurrency": 4}
    if (trial := trial_group()) is None:
        return options | {"scheduling_strategy": NodeAffinitySchedulingStrategy(session.node, soft=False)}
    strategy = PlacementGroupSchedulingStrategy(
        trial, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    return options | {"num_cpus": trial.bundle_specs[0].get("CPU", 0.0), "scheduling_strategy": strategy}


def _lifetime(detached: str | None) -> dict[str, Any]:
    """Ray's options for a driver that a command waits for, or for one that runs by itself under the name
    ``detached``.
    """
    if detached is None:
        return {"max_restarts": 0, "max_task_retries": 0}
    named = {"name": detached, "namespace": NAMESPACE, "lifetime": "detached"}
    return {"max_restarts": RESTARTS, "max_task_retries": RESTARTS, **named}


def run_on_ray(
    config: RunConfig,
    folder: Path,
    *,
    uri: str | None = None,
    resume: bool = False,
    report: Report = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
    factory: Callable[[RunConfig, Federation], Worker] = Worker,
) -> dict[str, Any]:
    """Run on Ray from start to end, as the command ``run`` does. Returns the summary.

    Once ``stopping`` returns True, the run ends after the current round, with a checkpoint.

    Raises:
        UserError, ClientError: as raised in the process where they happened, with its traceback.
    """

    def say(line: str) -> None:
        report(Progress(0, config.train.rounds, line))

    deaths = DriverDeaths(say)
    watched = deaths.watching(report)
    with connect(say=say, threads=config.resources.threads) as session:
        group = f"{NAMESPACE}-{uuid.uuid4().hex}"
        try:
            while True:
                driver, made = start(
                    config, folder, session, uri=uri, resume=resume, group=group, successor=deaths.any, factory=factory
                )
                for line in made.lines if not deaths.any else ():
                    say(line)
                done = driver.run.remote()
                try:
                    follow(driver, watched, stopping, finished=lambda: bool(ray.wait([done], timeout=POLL_S)[0]))  # noqa: B023
                    return ray.get(done)  # type: ignore[no-any-return]
                except RayTaskError as error:
                    raise unwrapped(error)  # noqa: B904 - its cause is the remote traceback
                except DEATHS as error:
                    refuse_successor(session, stopping)
                    deaths.wait(error)
                finally:
                    ray.kill(driver)
        except BaseException:  # a second Ctrl-C, whatever ``report`` raises, a driver that could not start
            if not session.local:
                discard(group)  # a killed driver gives nothing back, and the cluster stays
            raise


def refuse_successor(session: Session, stopping: Callable[[], bool]) -> None:
    """Raise StoppedAtOnce if a process of our own Ray instance died after a stop was requested: a signal to all
    processes of a job (by systemd, by Slurm) ends Ray, too, and nothing more can be started.
    """
    if session.local and stopping():
        raise StoppedAtOnce(
            "stopped at once, because the process that trained ended, too; --resume continues what was saved"
        )


class DriverDeaths:
    """The deaths of a run's driver. ``reasons`` are those of the deaths in a row without a finished round in between;
    ``any`` says whether there was a death at all.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.reasons: list[str] = []
        self.reached, self.any = 0, False

    def watching(self, report: Report) -> Report:
        """``report``, which also notes finished rounds."""

        def seen(progress: Progress) -> None:
            if progress.round > self.reached:
                self.reached = progress.round
                self.reasons.clear()
            report(progress)

        return seen

    def wait(self, error: Exception) -> None:
        """Pause before the next driver. Raises UserError after too many deaths, or the error that kept a driver from
        starting.
        """
        if getattr(error, "actor_init_failed", False):
            raise error
        self.any = True
        self.reasons.append(in_one_line(error, REASON))
        if len(self.reasons) > RESTARTS:
            raise UserError(
                f"resources: the run's driver died {len(self.reasons)} times in a row, the last time of: "
                f"{self.reasons[-1]}; free memory, or ask for fewer actors, and --resume"
            ) from None
        pause = PAUSE_S * 2 ** (len(self.reasons) - 1)
        self.say(f"the driver's process died ({self.reasons[-1]}); another starts in {pause:g} s")
        time.sleep(pause)


def follow(
    driver: ActorHandle,
    report: Report,
    stopping: Callable[[], bool] = lambda: False,
    *,
    finished: Callable[[], bool] | None = None,
    until: Callable[[Update], bool] = lambda update: False,
) -> Update:
    """Report a driver's progress until its run is over, or ``finished`` says so. ``until`` may end this earlier, after
    each report. While ``stopping`` returns True, the driver is asked to stop.

    Raises:
        RayActorError: the driver died more often than it is restarted.
    """
    process, seen = "", 0
    while True:
        if finished is None:
            time.sleep(POLL_S)
        over = finished is not None and finished()
        if stopping():
            driver.stop.remote()
        update = look(driver, seen)
        if update is not None and update.process != process and seen:  # its list started anew
            process, seen = update.process, 0
            update = look(driver, 0)
        if update is None:
            if over:
                return Update(process, [], seen, "failed")
            continue
        if update.process != process:
            process, seen = update.process, 0
        for item in update.progress:
            report(item)
        seen = update.through  # not as many as were told: of a detached run only the newest lines are kept
        if over or until(update) or (finished is None and update.status in OVER):
            return update


def look(driver: ActorHandle, since: int) -> Update | None:
    """The driver's newest report; None while it is being restarted."""
    try:
        return ray.get(driver.progress.remote(since), timeout=ANSWER_S)  # type: ignore[no-any-return]
    except (GetTimeoutError, ActorUnavailableError):
        return None


def find(name: str) -> ActorHandle:
    """The detached driver with this name. Raises UserError if there is none."""
    with contextlib.suppress(ValueError):
        return ray.get_actor(name, namespace=NAMESPACE)
    raise UserError(f"{name}: no such run on this cluster; it has ended, or RAY_ADDRESS names another cluster")


@dataclass(frozen=True)
class Detached:
    """A run that was left running on a cluster: its name, ``Update``'s status, its round, its number of rounds, and
    where it is. If its driver does not answer, only the name is known.
    """

    name: str
    status: str = "no answer"
    round: int | None = None
    rounds: int | None = None
    where: str | None = None


def detached(address: str | None = None) -> list[Detached]:
    """The runs that were left on the cluster. Raises UserError if no cluster is named, or if it does not answer."""
    found = []
    with connect(cluster_address("list --cluster", address)):
        named = ray.util.list_named_actors(all_namespaces=True)
        for name in sorted(one["name"] for one in named if one["namespace"] == NAMESPACE):
            try:
                driver = find(name)
                (status, reached), (where, rounds) = ray.get(
                    [driver.state.remote(), driver.target.remote()], timeout=ANSWER_S
                )
            except (UserError, GetTimeoutError, *DEATHS):
                found.append(Detached(name))
            else:
                found.append(Detached(name, status, reached, rounds, where))
    return found


def detach(
    config: RunConfig,
    folder: Path,
    *,
    uri: str | None = None,
    resume: bool = False,
    report: Report = lambda progress: None,
) -> bool:
    """Start a run that goes on by itself under ``config.name``. Returns once it has begun, so that it refuses nothing
    any more: whether it goes on, and has not ended meanwhile.

    Raises:
        UserError: no cluster is named, the run refused its configuration, or its driver died more often than it is
            restarted.
    """
    with connect(cluster_address("--detach")) as session:
        driver, made = start(config, folder, session, uri=uri, resume=resume, detached=config.name)
        for line in made.lines:
            report(Progress(0, config.train.rounds, line))
        name = config.name
        try:
            update = follow(driver, report, until=lambda update: update.status != "waiting")
        except KeyboardInterrupt:
            report(Progress(0, config.train.rounds, f"{name} runs on; it is ended with: rayfed-ssl stop {name}"))
            raise
        except DEATHS as error:
            raise UserError(_gone(name, error)) from None
        if isinstance(update.result, BaseException):
            ray.kill(driver)
            raise update.result
        return update.status not in OVER


def attach(name: str, report: Report) -> tuple[dict[str, Any], str, int]:
    """Follow a detached run to its end, and then release its driver. Ctrl-C leaves it running.

    Returns:
        The summary, the run's folder or URI, and the number of rounds it was to have.
    Raises:
        UserError: there is no such run, or its driver died more often than it is restarted.
    """
    with connect(cluster_address("attach")):
        driver = find(name)
        try:
            update = follow(driver, report)
            where, rounds = ray.get(driver.target.remote())
        except DEATHS as error:
            raise UserError(_gone(name, error)) from None
        ray.kill(driver)
        if isinstance(update.result, BaseException):
            raise update.result
        return update.result, where, rounds


def stop(name: str) -> tuple[str, str | None]:
    """Have a detached run end after its round, with a checkpoint.

    Returns:
        ``Update``'s status, and why a driver that Ray starts in place of this one would not know that it is to stop;
            None if it would.
    Raises:
        UserError: its driver cannot be reached.
    """
    with connect(cluster_address("stop")):
        driver = find(name)
        try:
            why_not_noted, (status, _) = ray.get([driver.stop.remote(), driver.state.remote()], timeout=STOP_S)
        except GetTimeoutError:
            raise UserError(f"{name}: its driver gave no answer within {STOP_S:g} s; try again") from None
        except DEATHS as error:
            raise UserError(_gone(name, error)) from None
    return status, why_not_noted


def _gone(name: str, error: Exception) -> str:
    reason = in_one_line(error, REASON)
    return f"{name}: its driver died ({reason}); run --resume on its folder goes on from the newest checkpoint"
