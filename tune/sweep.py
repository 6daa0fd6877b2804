"""Runs a sweep: as many trials at a time as fit, each in an ordinary run folder. A sweep can be stopped at any moment
and continued later.

OUT/sweep.yaml  base.yaml      what was asked, complete in itself
OUT/trials.json                what was begun
OUT/trial-00003/               a run folder
OUT/results.parquet  best.yaml  choice.json  figures/parallel.png
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util.placement_group import placement_group_table

from actors.order import RESTARTS
from actors.session import Session, check_paths, connect, in_job
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import four_digits, printable
from rayfed_ssl.config import RunConfig
from rayfed_ssl.simulation.placing import of_others, refuse_among_images
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage import failure
from rayfed_ssl.storage.claim import claimed, writable
from tune.book import OVER, Book, Entry, measured, scheduled, trial_name
from tune.config import Point, Sweep
from tune.dealing import refusals
from tune.files import dump, load, refuse_changed
from tune.groups import scheduled_groups
from tune.results import Results, collect
from tune.room import Patience, TrialSlots, trial_slots
from tune.schedulers import members, scheduler
from tune.search import Proposals, installed
from tune.trial import STOP, Trial, TrialOrder, finish_exchange
from tune.watch import Population, StoppedBeforePlacement, Watch

Ended = Callable[[Progress], None]

TUNE_FILES = ".tune"
MEASURED = {"accuracy": "eval", "select": "select", "features": "features"}  # block of a summary -> group of tags
SETTINGS = {  # Tune's environment: no tables, no logs of its own, no signal handler, no change of directory
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # what is interrupted ends without a score
}


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    stopping: Callable[[], bool] = lambda: False,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
) -> Results:
    """Run every trial that is not over, and return the results of all of them; the folder holds the same.

    Args:
        resume: go on with the sweep in ``folder``, if there is one.
        stopping: once it returns True, running trials end after their round, with a checkpoint, and no other starts.
        num_cpus, num_gpus: what a Ray instance that is started here pretends to have.
    Raises:
        UserError: a key, a value, the folder or the resources cannot be used, or another command works in the folder;
            nothing is half-written. Or no trial found a place within ``resources.wait_s``, or the disk is full.
    """
    refuse_uri(folder)
    with disk_in_one_line(folder), claimed(folder) as why_not:
        examine(sweep, folder, resume)
        if sweep.configurations is None:  # an optimiser proposes them
            installed(sweep.settings.search)
        folder = folder.absolute()
        begun = (folder / "trials.json").exists()  # then a trial that the images refuse has failed, and is kept so
        trials = sweep.check()
        first = trials[0][1]
        if not begun:
            say_first(folder, [config for _, config in trials], say)
            refuse_unfit(sweep, trials)
        say_unlocked(folder, why_not, say)
        book = run_trials(sweep, folder, first, say=say, stopping=stopping, num_cpus=num_cpus, num_gpus=num_gpus)
        return collect(sweep, book)


@contextlib.contextmanager
def disk_in_one_line(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk, or of a folder that can no longer be written to, into one line that says how to go
    on. Raises UserError; any other error is raised unchanged.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and not _refused(folder, error):
            raise
        way = "make room: --resume goes on" if full else "--resume goes on once it can be written to"
        raise UserError(f"--out: cannot write into {folder} ({os.strerror(error.errno or 0)}); {way}") from error


def _refused(folder: Path, error: OSError) -> bool:
    """Whether the error is that the folder, or a file in it, may no longer be written to."""
    if isinstance(error.filename, str) and not Path(error.filename).absolute().is_relative_to(folder.absolute()):
        return False
    if isinstance(error, PermissionError):
        return isinstance(error.filename, str)
    return error.errno in (errno.EROFS, errno.EFBIG)


def refuse_unfit(sweep: Sweep, trials: Sequence[tuple[Point, RunConfig]]) -> None:
    """Check the configs of all trials, each with its own seed, against the images.

    Raises:
        UserError: a run would refuse one; the text is what the run would say, and names the trial.
    """
    seeds = [
        config.model_copy(update={"seed": config.seed + repetition})
        for repetition in range(sweep.settings.repeat)
        for _, config in trials
    ]
    if found := refusals(seeds):
        place = min(found)
        point, _ = trials[place % len(trials)]
        keys = "  ".join(f"{key}={value}" for key, value in {**point, "seed": seeds[place].seed}.items())
        lines = [f"{line} (the trial with {printable(keys)})" for line in found[place].splitlines()]
        raise UserError("\n".join(lines))


def run_trials(
    sweep: Sweep,
    folder: Path,
    first: RunConfig,
    *,
    say: Callable[[str], None] = lambda line: None,
    ended: Ended | None = None,
    stopping: Callable[[], bool] = lambda: False,
    on_begin: Callable[[], None] = lambda: None,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
) -> Book:
    """Run every trial that is not over, and return the result of each. The caller has claimed the folder, and examined
    it and the sweep.

    Args:
        first: the config of one of the trials; all trials share its ``resources``.
        ended: called for every trial that ends; by default ``say`` gets its line.
        on_begin: called once, when the folder exists and no trial has started.
    Raises:
        UserError: the resources cannot be used, no trial found a place within ``resources.wait_s``, or the disk takes
            no more.
    """
    with connect(num_cpus=num_cpus, num_gpus=num_gpus, say=say) as session, disk_in_one_line(folder):
        if in_job():
            check_paths(first, folder)
        space = trial_slots(
            first.resources, sweep.settings.concurrent, sweep.count * sweep.settings.repeat, _node(session)
        )
        for path in folder.glob("trial-*"):
            finish_exchange(path)
        book = Book(folder, sweep.settings.repeat)
        hear = ended or (lambda progress: say(progress.line))

        def propose() -> Proposals:
            return Proposals(sweep, book, lambda entry: hear(trial_ended(sweep, book, entry)), stopping)

        proposals = propose()
        (folder / STOP).unlink(missing_ok=True)
        begin(sweep, book, on_begin)
        say(f"{opening(sweep, book)}; {space.line}")
        try:
            died = _fit(sweep, folder, first, space, proposals, say, stopping) if proposals.left else []
            for _ in range(RESTARTS):
                if not died or stopping():
                    break
                say(f"{len(died)} trial(s) whose process died go on from their newest checkpoints")
                shutil.rmtree(folder / TUNE_FILES, ignore_errors=True)
                for entry in died:
                    entry.status = "waiting"
                died = _fit(sweep, folder, first, space, propose(), say, stopping)
        finally:
            shutil.rmtree(folder / TUNE_FILES, ignore_errors=True)
            (folder / STOP).unlink(missing_ok=True)
    return book


def begin(sweep: Sweep, book: Book, on_begin: Callable[[], None]) -> None:
    """Write down what was asked, then what is to be done. A trial that is over has not failed, whatever an earlier
    attempt left in its folder.
    """
    book.folder.mkdir(parents=True, exist_ok=True)
    dump(sweep, book.folder)  # first: trials are nothing without what was asked
    on_begin()
    book.save()
    for entry in book.entries:
        if entry.status in OVER:
            failure.clear(book.folder / entry.name)


def say_first(folder: Path, configs: Sequence[RunConfig], say: Callable[[str], None]) -> None:
    """Called before anything is written: say what the folder holds that belongs to no run. Raises UserError if it lies
    among the images of one of the runs.
    """
    for config in configs:
        refuse_among_images(config, folder)
    if note := of_others(folder):
        say(note)


def say_unlocked(folder: Path, why_not: str, say: Callable[[str], None]) -> None:
    """If the folder could not be locked, say so."""
    if why_not:
        say(f"{folder} cannot be locked ({why_not}): nothing keeps a second command from writing there")


def opening(sweep: Sweep, book: Book) -> str:
    """A line on how many trials there are, and how many of them are over."""
    over = sum(entry.status in OVER for entry in book.entries)
    total = f"{sweep.count * sweep.settings.repeat} trials"
    return total + (f", {over} of them over already" if over else "")


def refuse_uri(folder: Path) -> None:
    """Raise UserError for a URI: trials lie in folders."""
    if re.match(r"[A-Za-z][\w+.-]*:/", str(folder)):
        raise UserError(
            f"--out: found {folder}; a sweep lies in a folder of this machine or of shared storage: give a path"
        )


def examine(sweep: Sweep, folder: Path, resume: bool) -> None:
    """Refuse to overwrite a sweep, or to go on with a different one; writes nothing."""
    existing = folder / "sweep.yaml"
    if existing.exists() and not resume:
        raise UserError(f"--out: {folder} already holds a sweep; add --resume to continue it, or name another folder")
    if (folder / "config.yaml").exists():
        raise UserError(f"--out: {folder} holds a run; name another folder")
    if (folder / "trials.json").exists() and not existing.exists():
        raise UserError(f"--out: {folder} holds trials.json but no sweep.yaml to go on with; name another folder")
    writable(folder)
    if existing.exists():
        refuse_changed(load(existing), sweep, folder)


def _node(session: Session) -> str:
    """The resource that names this node."""
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == session.node)
    return next(str(name) for name in resources if name.startswith("node:") and not name.startswith("node:__"))


def _fit(
    sweep: Sweep,
    folder: Path,
    first: RunConfig,
    space: TrialSlots,
    proposals: Proposals,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
) -> list[Entry]:
    """Run the proposed trials. Returns the trials that failed because their process died."""
    book = proposals.book
    os.environ.update(SETTINGS)
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    population = sweep.settings.scheduler.name == "pbt"
    watch = (Population if population else Watch)(
        folder, proposals, say, stopping, Patience(first.resources, space, say, placement_group_table())
    )
    order = TrialOrder(sweep, folder, os.getcwd(), tuple(sys.argv), space.trials)
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
        with scheduled_groups():
            tuner.fit()
    except StoppedBeforePlacement:
        pass
    finally:  # a proposal that never ran is to run yet
        for entry in proposals.running.values():
            entry.status = "stopped" if entry.status == "stopped" else "waiting"  # by the scheduler, a moment ago
        book.save()
    return [entry for entry in book.entries if entry.name in watch.died]


def _name(trial: Any) -> str:
    return trial_name(trial.config["trial"])


def trial_ended(sweep: Sweep, book: Book, entry: Entry) -> Progress:
    """The report on a trial that ended: how many trials are over, of how many, a line on how this one ended, and the
    values in its summary, by tag.
    """
    over = sum(entry.status in (*OVER, "failed") for entry in book.entries)
    summary = (None if entry.status == "failed" else book.summary(entry)) or {}
    values = {
        f"{group}/{name}": value
        for key, group in MEASURED.items()
        for name in summary.get(key) or {}
        if (value := measured(summary, f"{key}.{name}")) is not None
    }
    return Progress(over, sweep.count * sweep.settings.repeat, trial_line(sweep, book, entry), values)


def trial_line(sweep: Sweep, book: Book, entry: Entry) -> str:
    """A line on how a trial ended. A trial that the scheduler stopped is shown at the round that it is still in."""
    value = book.value(entry, sweep.settings.metric)
    seed = f" repeat {entry.repetition}" if sweep.settings.repeat > 1 else ""
    point = scheduled(book.folder / entry.name, entry.point)
    shown = "  ".join(f"{key}={value}" for key, value in point.items())
    scored = "-" if value is None else four_digits(value)
    if entry.status == "stopped" and entry.reports:
        scored += f" at round {entry.reports[-1][0]}"
    status = "interrupted" if entry.status == "waiting" else entry.status
    line = f"{entry.name}  {status}  {sweep.settings.metric} {scored}  {shown}{seed}"
    if entry.status == "diverged" and (summary := book.summary(entry)) is not None:
        line += f": {summary['diverged']['reason']}"
    return line
