"""A trial: the round loop in an actor that Tune starts, its clients in the other bundles of its placement group.

The loop runs in a thread. With a scheduler it waits at every evaluation until it may go on, so that a stopped trial
ends at the round it was stopped for, as an ordinary run folder with a checkpoint. The trial's actor needs no CPU and
runs on the node of the command, where the run folders are. When a trial is over, the next one takes over its processes.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ray import tune

from actors.cohort import RayCohort
from actors.driver import persisting
from actors.ending import end_at_sigterm
from actors.plan import planned, reserve
from actors.pool import Pool
from rayfed_ssl.base.files import write_json
from rayfed_ssl.config import RunConfig
from rayfed_ssl.evaluation import by_client, of_client
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.results import Evaluated, EvaluatedEncoder
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage import checkpoint, failure
from tune.book import SCHEDULE, history, measured, trial_name
from tune.config import Point, Sweep
from tune.search import SCORE

STOP = ".stop"  # a file of this name in the sweep's folder: every trial ends after its round
DONOR = "donor.json"
LOG = "trial.log"  # in a run folder: lines, each with its time, on what became of the trial's actors
EXCHANGE, DRAFT = ".exchange", ".exchange.new"  # in a run folder: an exploit that is to be finished; one in the making


@dataclass(frozen=True)
class TrialOrder:
    """What all trials of a sweep share."""

    sweep: Sweep
    folder: Path
    cwd: str
    argv: tuple[str, ...]
    at_a_time: int = 1  # trials that share the nodes' object stores


class Abandoned(BaseException):
    """The trial goes on elsewhere, or not at all: nothing more may be written here."""


class RoundsMeasured:
    """Collects evaluations as they come in, until all of a round are there."""

    def __init__(self) -> None:
        self.holders: dict[int, dict[int | None, Sequence[int | None]]] = {}  # round -> holder -> clients it counts for
        self.known: dict[int, dict[int | None, dict[str, float]]] = {}  # round -> client -> values

    def expect(self, round: int, encoders: Sequence[EvaluatedEncoder]) -> None:
        """Say which encoders' evaluations make up a round; one encoder that several clients hold counts for each of
        them.
        """
        self.holders[round] = {encoder.client: encoder.holders or (encoder.client,) for encoder in encoders}

    def take(self, evaluated: Iterable[Evaluated]) -> None:
        for round, holder, values in evaluated:
            for client in self.holders[round][holder]:
                self.known.setdefault(round, {})[client] = of_client(values, client)

    def complete(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each round that is complete, once, with the values that its summary would have under ``accuracy``, ``select``
        and ``features``.
        """
        for round in sorted(self.known):
            if len(self.known[round]) == sum(map(len, self.holders[round].values())):
                by_tag: dict[str, dict[int | None, float]] = {}
                for holder, values in self.known.pop(round).items():
                    for client, part in by_client(holder, values).items():
                        for tag, value in part.items():
                            by_tag.setdefault(tag, {})[client] = value
                groups: dict[str, dict[str, dict[int | None, float]]] = {}
                for tag, clients in by_tag.items():
                    group, _, name = tag.rpartition("/")
                    counted = {None} if None in clients else clients.keys()
                    groups.setdefault(group or "accuracy", {})[name] = {client: clients[client] for client in counted}
                yield round, groups


class WatchedCohort(RayCohort):
    """A cohort that knows when all evaluations of a round are in."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.measured = RoundsMeasured()
        super().__init__(*args, **options)

    def evaluate(self, round: int, encoders: Sequence[EvaluatedEncoder]) -> None:
        self.measured.expect(round, encoders)
        super().evaluate(round, encoders)

    def evaluations(self, *, wait: bool = False) -> list[Evaluated]:
        evaluations = super().evaluations(wait=wait)
        self.measured.take(evaluations)
        return evaluations


class Trial(tune.Trainable):  # type: ignore[misc]
    """Tune's view of a run: a step lasts from one evaluation to the next, or to the end without a scheduler."""

    def setup(self, config: dict[str, Any], order: TrialOrder) -> None:
        end_at_sigterm()
        self.order, self.sweep = order, order.sweep
        self.pool: Pool | None = None
        sys.argv = list(order.argv)  # what environment.json records
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as a driver: the GPUs are the clients'
        for name in ("ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial."""
        self._end()
        self._take(new_config)
        return True

    def _take(self, config: Mapping[str, Any]) -> None:
        os.chdir(self.order.cwd)  # Tune may have gone elsewhere
        self.number = int(self.trial_name.removeprefix("trial-"))  # the config's may be a donor's
        self.folder = self.order.folder / trial_name(self.number)
        self.point: Point = {key: value for key, value in config.items() if key != "trial"}
        self.thread: threading.Thread | None = None
        self.news: queue.Queue[dict[str, Any] | BaseException] = queue.Queue()
        self.go = threading.Semaphore(0)
        self.stop_wanted, self.abandoned = threading.Event(), threading.Event()
        self.reached = 0  # the round it is at

    # -- Tune's side ---------------------------------------------------------------------------------------------------

    def step(self) -> dict[str, Any]:
        if self.thread is None:
            if self._interrupted():
                return {"round": 0, "done": True}
            self.thread = threading.Thread(target=self._work, daemon=True)
            self.thread.start()
        else:
            self.go.release()
        news = self.news.get()
        if isinstance(news, BaseException):
            raise news
        return news

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the newest checkpoint of the run, if there is one, for trials that exploit this one."""
        newest, _ = checkpoint.newest(self.folder / "checkpoints")
        if newest is not None:
            shutil.copytree(newest[1], Path(checkpoint_dir) / newest[1].name)
        (Path(checkpoint_dir) / DONOR).write_text(json.dumps({"trial": self.number, "point": self.point}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        donor = json.loads((Path(checkpoint_dir) / DONOR).read_text())
        checkpoints = checkpoint.complete(Path(checkpoint_dir))
        if donor["trial"] != self.number and checkpoints:
            exploit(self.folder, checkpoints[-1], donor, self._config(self.point), self.point)

    def cleanup(self) -> None:
        self._end()
        self._drop()

    def _end(self) -> None:
        """End a trial that the scheduler stopped: write a summary and encoders as after a last round. A member of a
        population just leaves.
        """
        if self.thread is None:
            return
        (self.abandoned if self.sweep.settings.scheduler.name == "pbt" else self.stop_wanted).set()
        while self.thread.is_alive():
            self.go.release()
            self.thread.join(0.1)

    # -- the loop's side -----------------------------------------------------------------------------------------------

    def _config(self, point: Mapping[str, Any]) -> RunConfig:
        return self.sweep.config_of(point, self.number % self.sweep.settings.repeat, trial_name(self.number))

    def _interrupted(self) -> bool:
        return (self.order.folder / STOP).exists()

    def _stopping(self) -> bool:
        if self.abandoned.is_set():
            raise Abandoned
        return self.stop_wanted.is_set() or self._interrupted()

    def _work(self) -> None:
        import torch

        try:
            config = self._config(self.point)
            torch.set_num_threads(config.resources.threads)
            failure.clear(self.folder)
            summary = self._drive(config)
            failure.clear(self.folder)  # of an attempt made meanwhile
        except Abandoned:
            return
        except BaseException as error:
            failure.keep(self.folder, error)
            self.news.put(error)
            return
        value = None if summary["status"] == "diverged" else measured(summary, self.sweep.settings.metric)
        self.news.put({"round": summary["rounds"], "done": True} | ({} if value is None else {SCORE: value}))

    def _drive(self, config: RunConfig) -> dict[str, Any]:
        finish_exchange(self.folder)

        def attempt(resume: bool) -> dict[str, Any]:
            begun = (self.folder / "config.yaml").exists()  # if not, it is no run yet, whatever was lost
            return loop.run(
                config,
                self.folder,
                self._connect,
                resume=resume and begun,
                report=self._report,
                stopping=self._stopping,
            )

        def lost(line: str) -> None:
            self._drop()
            self._say(line)

        return persisting(attempt, lambda: self.reached, lost, resume=(self.folder / "config.yaml").exists())

    def _connect(self, config: RunConfig, federation: Federation, ledger: Ledger) -> RayCohort:
        """A cohort in the actors of the previous trial, or in new ones if these are all gone or a node was lost."""
        if self.pool is not None and not self.pool.slots:
            self._drop()
        if self.pool is None:
            plan = planned(config)
            self.pool = Pool(plan, reserve(plan, config.resources.wait_s, say=self._say))
        self.cohort = WatchedCohort(
            config, federation, ledger, self.pool, keep=True, say=self._say, sharing=self.order.at_a_time
        )
        return self.cohort

    def _drop(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def _say(self, line: str) -> None:
        """Write a line into the log; the command shows it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now():%Y-%m-%dT%H:%M:%S} {' '.join(line.split())}\n")

    def _report(self, progress: Progress) -> None:
        """Report a round's values to Tune, and wait for its decision. The last round is reported with the summary."""
        self.reached = max(self.reached, progress.round)  # an evaluation may come in late
        if self.sweep.settings.scheduler.name == "none" or not any(
            key.startswith(("eval/", "features/")) for key in progress.values
        ):
            return
        for round, summary in self.cohort.measured.complete():
            value = measured(summary, self.sweep.settings.metric)
            if not 0 < round < progress.rounds or value is None or self.stop_wanted.is_set():
                continue
            self.news.put({"round": round, SCORE: value, "done": False})
            self.go.acquire()
            if self.abandoned.is_set():
                raise Abandoned


# -- population-based training -----------------------------------------------------------------------------------------


def exploit(folder: Path, found: tuple[int, Path], donor: Mapping[str, Any], config: RunConfig, point: Point) -> None:
    """Let the run in ``folder`` go on from another trial's checkpoint with a changed config.

    ``config.yaml`` holds the new settings; ``schedule.json`` says since which round, what the settings were before, and
    whose weights were taken. A kill at any moment leaves the run as it was, or an exchange that :func:`finish_exchange`
    finishes.
    """
    finish_exchange(folder)
    round, source = found
    change = {"round": round, "from": trial_name(donor["trial"]), "from_point": donor["point"], "point": point}
    draft = folder / DRAFT
    shutil.copytree(source, draft / "checkpoints" / source.name)
    configfile.dump(config, draft / "config.yaml")
    write_json(draft / SCHEDULE, {"changes": [*history(folder), change]})
    draft.rename(folder / EXCHANGE)  # from here on it holds
    finish_exchange(folder)


def finish_exchange(folder: Path) -> None:
    """Finish an exploit that was interrupted, or forget one that was not yet complete. No run may be going on in the
    folder.
    """
    shutil.rmtree(folder / DRAFT, ignore_errors=True)
    whole = folder / EXCHANGE
    if not whole.exists():
        return
    if (whole / "checkpoints").exists():
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (whole / "checkpoints").rename(folder / "checkpoints")
    for name in ("config.yaml", SCHEDULE):
        if (whole / name).exists():
            (whole / name).replace(folder / name)
    shutil.rmtree(whole)
