"""Chooses the next trial: first recorded trials that are not over, then new configurations from a list or an optimiser.

Tune asks a ``Searcher``. This one gives every trial its number, keeps ``trials.json``, and tells an optimiser the score
of a configuration once all its repeats are over.
"""

from __future__ import annotations

import importlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from rayfed_ssl.base.schema import UserError
from tune.blocks import Dimension
from tune.book import OVER, SCORED, Book, Entry, scheduled, score
from tune.config import Sweep

SCORE = "score"  # what trials report


class Proposals(Searcher):  # type: ignore[misc]
    """The trials of a sweep, one at a time.

    Args:
        finished: called with each trial that ends in a way that Tune reports to its searcher.
        stopping: returns True if no new trial shall start.
    """

    def __init__(
        self, sweep: Sweep, book: Book, finished: Callable[[Entry], None], stopping: Callable[[], bool]
    ) -> None:
        super().__init__(metric=SCORE, mode=sweep.settings.mode)
        self.sweep, self.book, self.finished, self.stopping = sweep, book, finished, stopping
        known = sweep.configurations
        for point in (known or [])[book.configurations :]:
            book.add(point)
        self.optimiser = optimiser(sweep, book) if known is None else None
        self.todo = deque(entry for entry in book.entries if entry.status == "waiting")
        self.running: dict[str, Entry] = {}

    def __getstate__(self) -> dict[str, Any]:
        """An empty state: Tune pickles its searcher for a restore of its own, which is not used here."""
        return {}

    @property
    def left(self) -> int:
        """How many trials are yet to run."""
        unknown = self.sweep.count - self.book.configurations if self.optimiser else 0
        return len(self.todo) + unknown * self.book.repeat

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        """The next trial's number and keys; FINISHED if there is none, None if there will be one later."""
        if self.stopping():
            return Searcher.FINISHED
        if not self.todo and self.optimiser and self.book.configurations < self.sweep.count:
            point = self.optimiser.suggest(_name(self.book.configurations))
            if point is None:
                return None
            self.todo += self.book.add({key: d.within(point[key]) for key, d in self.sweep.settings.space.items()})
        if not self.todo:
            return Searcher.FINISHED
        entry = self.todo.popleft()
        self.begin(trial_id, entry)
        return {"trial": entry.trial, **scheduled(self.book.folder / entry.name, entry.point)}

    def begin(self, trial_id: str, entry: Entry) -> None:
        """Note which of Tune's trials this trial is."""
        self.running[trial_id] = entry
        entry.status = "running"
        self.book.save()

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._note(self.running[trial_id], result)
        self.book.save()

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        entry = self.running.pop(trial_id)
        if error:
            entry.status = "failed"
        elif (ended := self.book.ended(entry)) is not None:
            entry.status = ended
        elif entry.status != "stopped" and self.stopping():  # not by the scheduler, but to be continued
            entry.status = "waiting"
        else:
            entry.status = "stopped"
        if entry.status != "waiting":  # then the round that it ended in need not be one that is measured
            self._note(entry, result or {})
        self.book.save()
        self.finished(entry)
        if self.optimiser:
            tell(self.optimiser, self.sweep, self.book, entry.configuration)

    def _note(self, entry: Entry, result: dict[str, Any]) -> None:
        if (value := result.get(SCORE)) is not None:
            entry.reports = [r for r in entry.reports if r[0] < result["round"]] + [(result["round"], value)]

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the book is the record."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the book is the record."""


def configuration_score(sweep: Sweep, book: Book, configuration: int) -> float | None:
    """The score from all repeats of a configuration; None if one has no value, is not over, failed or diverged."""
    entries = book.of(configuration)
    if any(entry.status not in SCORED for entry in entries):
        return None
    settings = sweep.settings
    return score([book.value(entry, settings.metric) for entry in entries], settings.score, settings.mode)


def tell(search: Searcher, sweep: Sweep, book: Book, configuration: int) -> None:
    """Tell an optimiser the score of a configuration once all its repeats are over, or that it has none."""
    if all(entry.status in (*OVER, "failed") for entry in book.of(configuration)):
        value = configuration_score(sweep, book, configuration)
        result = None if value is None else {SCORE: value, "training_iteration": 1}
        search.on_trial_complete(_name(configuration), result, error=value is None)


def _name(configuration: int) -> str:
    return f"configuration-{configuration}"


def optimiser(sweep: Sweep, book: Book) -> Searcher:
    """Optuna's or HyperOpt's search (both TPE), in the state of having proposed the configurations of the book. Raises
    UserError if it is not installed.

    It is told the scores of configurations that are over. Configurations of an earlier session that are not over are
    given out again by the book, and it is told their scores when they are.
    """
    settings = sweep.settings
    space = {key: domain(dimension) for key, dimension in settings.space.items()}
    past = [book.of(c)[0].point for c in range(book.configurations)]
    search: Searcher
    if settings.search == "optuna":
        installed("optuna").logging.set_verbosity(logging.WARNING)
        from ray.tune.search.optuna import OptunaSearch

        search = OptunaSearch(
            OptunaSearch.convert_search_space(space), metric=SCORE, mode=settings.mode,
            seed=settings.seed + len(past), points_to_evaluate=past,
        )  # fmt: skip
    else:
        installed("hyperopt")
        from ray.tune.search.hyperopt import HyperOptSearch

        search = HyperOptSearch(
            HyperOptSearch.convert_search_space(space), metric=SCORE, mode=settings.mode,
            random_state_seed=settings.seed + len(past), points_to_evaluate=past or None,
        )  # fmt: skip
    for configuration in range(len(past)):  # ``points_to_evaluate`` are what it proposes first
        search.suggest(_name(configuration))
        tell(search, sweep, book, configuration)
    return search


def installed(package: str) -> Any:
    """An optimiser's package. Raises UserError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UserError(
            f"search: found {package}, which is not installed; pip install {package}, or set search=random"
        ) from None


def domain(dimension: Dimension) -> Any:
    """The dimension as Tune's domain."""
    if dimension.values is not None:
        return tune.choice(list(dimension.values))
    low, high = dimension.bounds
    if dimension.randint is not None:
        return tune.randint(int(low), int(high) + 1)
    return tune.loguniform(low, high) if dimension.loguniform else tune.uniform(low, high)
