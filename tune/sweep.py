"""Run a sweep: as many trials at a time as fit, each an ordinary run folder; stop it at any moment and go on later.

OUT/sweep.yaml  base.yaml      what was asked, complete in itself
OUT/trials.json                what was begun
OUT/trial-00003/               a run folder
OUT/results.parquet  best.yaml  figures/parallel.png
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from ray import tune
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining, TrialScheduler
from ray.util.placement_group import placement_group_table

from actors.plan import SILENT_S, Plan, autoscaling_ceiling, describe, free_now, living_nodes, plan
from actors.session import Session, check_paths, connect, in_job
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import deal
from rayfed_ssl.settings.blocks import ResourcesConfig
from rayfed_ssl.simulation.loop import check_labels, check_shards
from rayfed_ssl.storage.checkpoint import writable
from tune import config as sweep_config
from tune.book import Book, Entry, scheduled, trial_name
from tune.config import Asha, Pbt, Sweep
from tune.results import Results, collect
from tune.search import SCORE, Proposals, domain
from tune.trial import ERROR, LOG, STOP, Order, Trial, settle

TUNE_FILES = ".tune"
LOOK_S = 1.0  # between looks at what trials say, and at what they wait for
SETTINGS = {  # of Tune: no tables, no logs of its own, no signal handler, no change of directory
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # what is interrupted ends without a score
}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Room:
    """How many trials run at a time, and what each has: the trial's own bundle first, then its client actors'."""

    trials: int
    plan: Plan
    node: str  # the resource that only the command's node has

    @property
    def bundles(self) -> list[dict[str, float]]:
        return [{self.node: 0.001}, *self.plan.bundles]

    @property
    def line(self) -> str:
        actors = f"{self.plan.actors} client actor(s) of {describe(self.plan.cpus, self.plan.gpus)}"
        return f"{self.trials} trial(s) at a time, each with {actors}"


def room(resources: ResourcesConfig, concurrent: int | None, trials: int, node: str = "node") -> Room:
    """Divide the cluster among trials. Pure, but for looking at the cluster's nodes.

    ``resources.actors`` counts for each trial, by default 1. With ``concurrent`` set, so many trials share what there
    is, GPUs by fraction; else the shares are what ``resources`` says and as many trials run as fit.
    Raises UserError where not even one fits, or not as many as asked for.
    """
    nodes, actors = living_nodes(), resources.actors or 1
    ceiling = autoscaling_ceiling(resources.autoscales_to)
    many = actors * (concurrent or 1)
    shared = plan(resources.model_copy(update={"actors": many}), many, nodes, ceiling)
    each = Plan(actors, shared.cpus, shared.gpus, shared.threads, shared.strategy, kind=shared.kind)
    if concurrent is None:
        fixed = resources.model_copy(update={"actors": None, "gpus_per_client": shared.gpus})
        concurrent = plan(fixed, actors * trials, nodes, ceiling).actors // actors
    return Room(max(1, min(concurrent, trials)), each, node)


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    resume: bool = False,
    say: Say = lambda line: None,
    stopping: Callable[[], bool] = lambda: False,
    address: str | None = None,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
) -> Results:
    """Run every trial that is not over, and return what all of them came to; the folder holds the same.

    Args:
        resume: go on with the sweep in ``folder``, if there is one.
        stopping: once it says so, running trials end after their round, with a checkpoint, and no other starts.
        num_cpus, num_gpus: what an instance of Ray of our own pretends to have.
    Raises:
        UserError: a key, a value, the folder or the resources cannot be used; nothing is half-written. Or no trial
            found a place within ``resources.wait_s``.
    """
    folder = folder.absolute()
    _examine(sweep, folder, resume)
    first = sweep.check()
    federation = deal(first)
    check_shards(first, federation)
    check_labels(first, federation)
    with connect(address, num_cpus=num_cpus, num_gpus=num_gpus) as session:
        if in_job():
            check_paths(first, folder)
        space = room(first.resources, sweep.settings.concurrent, sweep.count * sweep.settings.repeat, _node(session))
        for path in folder.glob("trial-*"):
            settle(path)
        book = Book(folder, sweep.settings.repeat)
        proposals = Proposals(sweep, book, lambda entry: say(_line(sweep, book, entry)), stopping)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STOP).unlink(missing_ok=True)
        sweep_config.dump(sweep, folder)  # first: trials are nothing without what was asked
        book.save()
        over = sum(entry.status in ("complete", "stopped") for entry in book.entries)
        say(
            f"{sweep.count * sweep.settings.repeat} trials"
            + (f", {over} of them over already" if over else "")
            + f"; {space.line}"
        )
        try:
            if proposals.left:
                _fit(sweep, folder, first, space, book, proposals, say, stopping)
        finally:
            shutil.rmtree(folder / TUNE_FILES, ignore_errors=True)
    return collect(sweep, book)


def _examine(sweep: Sweep, folder: Path, resume: bool) -> None:
    """Refuse to write over a sweep, or to go on with another one; writes nothing."""
    existing = folder / "sweep.yaml"
    if existing.exists() and not resume:
        raise UserError(f"--out: {folder} already holds a sweep; add --resume to continue it, or name another folder")
    if (folder / "config.yaml").exists():
        raise UserError(f"--out: {folder} holds a run; name another folder")
    if (folder / "trials.json").exists() and not existing.exists():
        raise UserError(f"--out: {folder} holds trials.json but no sweep.yaml to go on with; name another folder")
    writable(folder)
    if existing.exists():
        sweep_config.refuse_changed(sweep_config.load(existing), sweep, folder)


def _node(session: Session) -> str:
    """The resource of this node's own name."""
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == session.node)
    return next(str(name) for name in resources if name.startswith("node:") and not name.startswith("node:__"))


def _fit(
    sweep: Sweep,
    folder: Path,
    first: RunConfig,
    space: Room,
    book: Book,
    proposals: Proposals,
    say: Say,
    stopping: Callable[[], bool],
) -> None:
    os.environ.update(SETTINGS)
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    population = sweep.settings.scheduler.name == "pbt"
    watch = (Population if population else Watch)(
        folder, proposals, say, stopping, Patience(first.resources, space, say, placement_group_table())
    )
    order = Order(sweep, folder, os.getcwd(), tuple(sys.argv), space.trials)
    group = tune.PlacementGroupFactory(space.bundles, strategy=space.plan.strategy)
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(Trial, order=order), group),
        param_space=members(proposals) if population else None,
        tune_config=tune.TuneConfig(
            search_alg=None if population else proposals,
            scheduler=scheduler(sweep, book),
            num_samples=1 if population else proposals.left,
            # A population's members all have to be there to be compared; those without a place are paused.
            max_concurrent_trials=None if population else space.trials,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
            reuse_actors=True,  # a trial finds the last one's processes warm
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(folder / TUNE_FILES),
            callbacks=[watch],
            checkpoint_config=tune.CheckpointConfig(num_to_keep=4, checkpoint_at_end=False),  # some are being exploited
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    except Nothing:
        pass
    finally:  # a proposal that never ran is to run yet
        for entry in proposals.running.values():
            entry.status = "waiting"
        book.save()


def _name(trial: Any) -> str:
    return trial_name(trial.config["trial"])


class Nothing(Exception):
    """A stop was asked for while no trial had a place to run in."""


class Patience:
    """Waits, aloud, while the cluster has no place for a trial: others hold it, or an autoscaler starts nodes."""

    def __init__(self, resources: ResourcesConfig, space: Room, say: Say, before: Iterable[str] = ()) -> None:
        self.wait_s, self.say = max(resources.wait_s, 1.0), say
        self.before = frozenset(before)  # placement groups that have nothing to do with this sweep
        self.awaited = f"{space.plan.actors} x {describe(space.plan.cpus, space.plan.gpus)}"
        self.grows = autoscaling_ceiling(resources.autoscales_to) is not None
        self.began = False  # whether a trial ever had a place
        self.since, self.said = time.monotonic(), False

    def look(self) -> bool:
        """Whether some trial has a place. Raises UserError where none ever had one, and none is coming."""
        if placed(self.before):
            self.began, self.since, self.said = True, time.monotonic(), False
            return True
        waited = time.monotonic() - self.since
        for_ever = self.began or self.grows
        if not self.said and waited >= min(SILENT_S, self.wait_s):
            self.said = True
            limit = "" if for_ever else f" up to {self.wait_s:g} s"
            self.say(f"waiting{limit} for a trial's {self.awaited}; free now: {free_now()}")
        if waited >= self.wait_s and not for_ever and not growing():
            raise UserError(
                f"resources.wait_s: waited {self.wait_s:g} s for a trial's {self.awaited}; free now: {free_now()} "
                "(wait longer, or lower resources.actors)"
            )
        return False


def placed(before: frozenset[str]) -> bool:
    """Whether some placement group that this process asked for is there, but for those of ``before``. A group's id ends
    with its job's.
    """
    job = ray.get_runtime_context().get_job_id()
    groups = placement_group_table().items()
    return any(key.endswith(job) and group["state"] == "CREATED" for key, group in groups if key not in before)


def growing() -> bool:
    """Whether an autoscaler is starting nodes."""
    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    return bool(status.pending_launches or status.pending_nodes)


class Watch(tune.Callback):  # type: ignore[misc]
    """Passes a wish to stop on to the trials, and says what they log, what they wait for, and why one failed."""

    def __init__(
        self,
        folder: Path,
        proposals: Proposals,
        say: Say,
        stopping: Callable[[], bool],
        patience: Patience | None = None,
    ) -> None:
        self.folder, self.proposals, self.say, self.stopping = folder, proposals, say, stopping
        self.patience = patience
        self.seen = {path: path.stat().st_size for path in folder.glob(f"trial-*/{LOG}")}
        self.told: set[str] = set()
        self.looked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Tune writes down what it is given, for a restore of its own that we do not use: nothing."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if stop := self.stopping():
            (self.folder / STOP).touch()
        if time.monotonic() < self.looked + LOOK_S:
            return
        self.looked = time.monotonic()
        self.read_on()
        if self.patience is not None and not self.patience.look() and stop:
            raise Nothing

    def read_on(self) -> None:
        """Say what trials wrote into their logs since the last look; the same of the same trial once."""
        for path in sorted(self.folder.glob(f"trial-*/{LOG}")):
            if (size := path.stat().st_size) == (seen := self.seen.get(path, 0)):
                continue
            with path.open("rb") as file:
                file.seek(seen)
                new = file.read(size - seen)
            whole = new[: new.rfind(b"\n") + 1]
            self.seen[path] = seen + len(whole)
            lines = [f"{path.parent.name}: {line.partition(' ')[2]}" for line in whole.decode().splitlines()]
            for line in dict.fromkeys(lines):
                if line not in self.told:
                    self.told.add(line)
                    self.say(line)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.read_on()
        told = self.folder / str(trial) / ERROR
        reason = f"{told.read_text().splitlines()[-1]} ({told})" if told.exists() else "its process died"
        self.say(f"{trial} failed: {reason}")


class Population(Watch):
    """Tells the proposals what becomes of trials from Tune's own list: population-based training has no searcher."""

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if trial.trial_id not in self.proposals.running:
            self.proposals.begin(trial.trial_id, self.proposals.book.entries[int(str(trial).removeprefix("trial-"))])

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.proposals.on_trial_result(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.proposals.on_trial_complete(trial.trial_id, trial.last_result)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        super().on_trial_error(iteration, trials, trial)
        self.proposals.on_trial_complete(trial.trial_id, error=True)


def members(proposals: Proposals) -> dict[str, Any]:
    """The trials that are to run, as Tune's own kind of list: their numbers a grid, their keys looked up by number."""
    points = {e.trial: scheduled(proposals.book.folder / e.name, e.point) for e in proposals.todo}
    keys = {key: tune.sample_from(Lookup(points, key)) for key in proposals.sweep.settings.space}
    return {"trial": tune.grid_search(list(points)), **keys}


@dataclass(frozen=True)
class Lookup:
    """One key of the trial with the number that was chosen."""

    points: dict[int, dict[str, Any]]
    key: str

    def __call__(self, spec: Any) -> Any:
        return self.points[spec.config.trial][self.key]


def _line(sweep: Sweep, book: Book, entry: Entry) -> str:
    value = book.value(entry, sweep.settings.metric)
    seed = f" repeat {entry.repetition}" if sweep.settings.repeat > 1 else ""
    point = scheduled(book.folder / entry.name, entry.point)
    shown = "  ".join(f"{key}={value}" for key, value in point.items())
    measured = "-" if value is None else f"{value:.4g}"
    status = "interrupted" if entry.status == "waiting" else entry.status
    return f"{entry.name}  {status}  {sweep.settings.metric} {measured}  {shown}{seed}"


def scheduler(sweep: Sweep, book: Book) -> TrialScheduler | None:
    """Tune's scheduler, told of the trials that are over already."""
    settings = sweep.settings
    match settings.scheduler:
        case Asha(grace=grace, reduction=reduction):
            longest = max(sweep.run(e.point).train.rounds for e in book.entries) if book.entries else 0
            made = AsyncHyperBandScheduler(
                time_attr="round", metric=SCORE, mode=settings.mode, grace_period=grace, reduction_factor=reduction,
                max_t=max(longest, sweep.check().train.rounds, grace + 1),
            )  # fmt: skip
            for entry in book.entries:
                if entry.status in ("complete", "stopped"):
                    past = SimpleNamespace(trial_id=f"past-{entry.trial}")
                    made.on_trial_add(None, past)
                    for round, value in entry.reports:
                        made.on_trial_result(None, past, {"round": round, SCORE: value})
            return made
        case Pbt(interval=interval, quantile=quantile, resample=resample):
            mutations = {
                key: list(values) if (values := dimension.values) else domain(dimension)
                for key, dimension in settings.space.items()
            }
            return Together(
                time_attr="round", metric=SCORE, mode=settings.mode, perturbation_interval=interval,
                quantile_fraction=quantile, resample_probability=resample, hyperparam_mutations=mutations,
                custom_explore_fn=Within(sweep), require_attrs=False, log_config=False,
                synch=True,  # all are compared at the same round, whoever started first
            )  # fmt: skip
    return None


class Together(PopulationBasedTraining):  # type: ignore[misc]
    """Members wait for each other at every exchange, but not for one that failed or was stopped on its way there."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        chosen = super().choose_trial_to_run(tune_controller)
        waiting = [trial for trial in tune_controller.get_trials() if not trial.is_finished()]
        if chosen is None and waiting and all(trial.status == trial.PAUSED for trial in waiting):
            latest = max(self._trial_state[trial].last_train_time for trial in waiting)
            self._next_perturbation_sync = latest + self._perturbation_interval
            chosen = super().choose_trial_to_run(tune_controller)
        return chosen


@dataclass(frozen=True)
class Within:
    """Keeps what population-based training multiplies within the sweep's ranges."""

    sweep: Sweep

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        kept = dict(config)
        for key, dimension in self.sweep.settings.space.items():
            if dimension.values is None:
                low, high = dimension.range
                clipped = min(max(kept[key], low), high)
                kept[key] = round(clipped) if dimension.randint else sweep_config.rounded(float(clipped))
        return kept
