"""Tune's schedulers for a sweep: ASHA that continues an earlier session, and a population whose members wait for each
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining, TrialScheduler

from tune.blocks import Asha, Pbt
from tune.book import Book, scheduled
from tune.config import Sweep
from tune.search import SCORE, Proposals, domain


def scheduler(sweep: Sweep, book: Book) -> TrialScheduler | None:
    """Tune's scheduler. ASHA gets the values that all trials reported in earlier sessions."""
    settings = sweep.settings
    match settings.scheduler:
        case Asha(grace=grace, reduction=reduction):
            longest = max(sweep.config_of(e.point).train.rounds for e in book.entries) if book.entries else 0
            return LastingAsha(
                book, time_attr="round", metric=SCORE, mode=settings.mode, grace_period=grace,
                reduction_factor=reduction, max_t=max(longest, sweep.check()[0][1].train.rounds, grace + 1),
            )  # fmt: skip
        case Pbt(interval=interval, quantile=quantile, resample=resample):
            mutations = {
                key: list(values) if (values := dimension.values) else domain(dimension)
                for key, dimension in settings.space.items()
            }
            return SynchronousPopulation(
                time_attr="round", metric=SCORE, mode=settings.mode, perturbation_interval=interval,
                quantile_fraction=quantile, resample_probability=resample, hyperparam_mutations=mutations,
                custom_explore_fn=WithinRanges(sweep), require_attrs=False, log_config=False,
                synch=True,  # all are compared at the same round, in whichever order they started
            )  # fmt: skip
    return None


@dataclass(frozen=True)
class Named:
    """A trial as ASHA's rungs know it: by its name, because Tune's own ``trial_id`` changes with every session."""

    trial_id: str


class LastingAsha(AsyncHyperBandScheduler):  # type: ignore[misc]
    """ASHA over several sessions. Its rungs hold what the trials of ``book`` reported before: a trial that goes on is
    not judged a second time at a rung that it passed, by what it measured later, nor by a round that it reports again
    because its checkpoint is of an earlier one. Trials that it stops are marked as stopped in the book, too.
    """

    def __init__(self, book: Book, **settings: Any) -> None:
        super().__init__(**settings)
        self.book = book
        self.judged = {entry.name: entry.reports[-1][0] for entry in book.entries if entry.reports}  # up to which round
        for entry in book.entries:
            past = Named(entry.name)
            super().on_trial_add(None, past)
            results = [{"round": round, SCORE: value} for round, value in entry.reports]
            for result in results:
                super().on_trial_result(None, past, result)
            if entry.status == "stopped" and results:  # Tune tells ASHA of the same round again as it ends a trial
                super().on_trial_complete(None, past, results[-1])

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, Named(str(trial)))

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_remove(tune_controller, Named(str(trial)))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result["round"] <= self.judged.get(str(trial), 0):
            return str(self.CONTINUE)
        self.judged[str(trial)] = result["round"]
        decision = str(super().on_trial_result(tune_controller, Named(str(trial)), result))
        for entry in self.book.entries if decision == self.STOP else ():
            if entry.name == str(trial):
                entry.status = "stopped"
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        super().on_trial_complete(tune_controller, Named(str(trial)), result)


class SynchronousPopulation(PopulationBasedTraining):  # type: ignore[misc]
    """Members wait for each other at every exchange, but not for one that failed or was stopped before it got there."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        chosen = super().choose_trial_to_run(tune_controller)
        waiting = [trial for trial in tune_controller.get_trials() if not trial.is_finished()]
        if chosen is None and waiting and all(trial.status == trial.PAUSED for trial in waiting):
            latest = max(self._trial_state[trial].last_train_time for trial in waiting)
            self._next_perturbation_sync = latest + self._perturbation_interval
            chosen = super().choose_trial_to_run(tune_controller)
        return chosen


@dataclass(frozen=True)
class WithinRanges:
    """Keeps values that population-based training multiplies within the sweep's ranges."""

    sweep: Sweep

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        kept = dict(config)
        for key, dimension in self.sweep.settings.space.items():
            if dimension.values is None:
                kept[key] = dimension.within(kept[key])
        return kept


def members(proposals: Proposals) -> dict[str, Any]:
    """The trials to run, as Tune's parameter space: a grid of their numbers, from which their keys are looked up."""
    points = {e.trial: scheduled(proposals.book.folder / e.name, e.point) for e in proposals.todo}
    keys = {key: tune.sample_from(Lookup(points, key)) for key in proposals.sweep.settings.space}
    return {"trial": tune.grid_search(list(points)), **keys}


@dataclass(frozen=True)
class Lookup:
    """Looks up one key of the trial with the chosen number."""

    points: dict[int, dict[str, Any]]
    key: str

    def __call__(self, spec: Any) -> Any:
        return self.points[spec.config.trial][self.key]
