"""A sweep's file: a run's config, what varies in it, how it is searched, what is measured.

    base: ../fedsc_cifar10.yaml              a run's config, relative to this file
    overrides: {resources.gpus_per_client: 0.25}
    space:                                   dotted key of a run -> what it may be
      method.weight: {loguniform: [1e-3, 1]}
    points: [{train.rounds: 2, train.local_epochs: 20}, ...]     keys that vary together (search: grid)
    search: random
    metric: select.knn                       dotted key of summary.json: what the trials are chosen by

``select.*`` is measured on training images that no client holds (``evaluation.select``; with ``data.tasks``, each
client's own); ``accuracy.*`` on the test images, which then choose; ``features.rankme``, RankMe (Garrido et
al. 2023), reads no label at all. Before the first trial starts, every trial's config is built and checked against the
images: a wrong key or value costs no training. If an optimiser proposes the configs, those at the ends of every range
are checked instead.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rayfed_ssl.base.choice import Short
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.config import RESULT_NEUTRAL, RunConfig, build
from rayfed_ssl.evaluation import PROTOCOLS
from rayfed_ssl.extensions import Extension
from rayfed_ssl.methods import METHODS
from rayfed_ssl.methods.parts.tasks import TaskClient
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.settings import files as configfile
from tune.blocks import Dimension, Fifo, Pbt, Scheduler

Point = dict[str, Any]
MISSING = {"select": "none: set evaluation.select.share", "features": "none: name rank in evaluation.protocols"}
TRIALS = 20
MOST = 10_000  # trials: each one's config is built before the first starts
OF_PROTOCOLS = ("select", "accuracy", "best", "untrained", "features")  # parts of a summary with a value per protocol
METRICS = (*OF_PROTOCOLS, "communication", "epsilon", "wall_s", "train_images_per_s")
BYTES = ("communication.up_bytes", "communication.down_bytes")  # a summary's, of all clients
SMALLER = ("features.alignment", "features.uniformity", "communication", "epsilon", "wall_s")  # metrics that begin so
PERTURBED = ("method", "objective", "plugins", "augment", "train")  # blocks that may change under a trained network


class SweepConfig(Block):
    """The keys of a sweep's file."""

    base: Path
    """A run's config, relative to this file."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of the run, the same for every trial."""
    space: dict[str, Dimension] = Field(default_factory=dict)
    """Dotted key of a run -> what it may be."""
    points: tuple[dict[str, Any], ...] = ()
    """Sets of dotted keys that vary together (``search: grid``)."""
    search: Literal["grid", "random", "optuna", "hyperopt"] = "grid"
    """How configurations are chosen."""
    trials: Annotated[int, Field(ge=1)] | None = None
    """Configurations tried; null: the whole grid, else 20."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the search; a run's own is ``overrides.seed``."""
    metric: str = "accuracy.knn"
    """Dotted key of summary.json: what trials are chosen by; ``select.knn`` where the base holds images out,
    ``features.rankme`` where it reads no labels."""
    mode: Literal["max", "min"] = "max"
    """Whether larger or smaller values are better. Where it is not given, smaller ones are of ``features.alignment``,
    ``features.uniformity``, ``communication``, ``epsilon`` and ``wall_s``.
    """
    scheduler: Annotated[Scheduler, Short(lambda: ("none", "asha", "pbt"))] = Fifo()
    """Which trials end early; its name alone is short for its defaults."""
    repeat: Annotated[int, Field(ge=1)] = 1
    """Trials of each configuration, with seeds one apart."""
    score: Literal["worst", "mean", "best"] = "mean"
    """What of a configuration's repeats counts, worst and best by ``mode``. The worst is mostly the hardest split."""
    concurrent: Annotated[int, Field(ge=1)] | None = None
    """Trials at a time; null: as many as fit."""

    @model_validator(mode="before")
    @classmethod
    def _better(cls, document: Any) -> Any:
        """Set the mode if none is given, and turn a score ``min`` or ``max``, as older files have it, into today's
        words.
        """
        if not isinstance(document, dict):
            return document
        smaller = str(document.get("metric", "")).startswith(SMALLER)
        filled = {**document, "mode": document.get("mode", "min" if smaller else "max")}
        if filled.get("score") in ("min", "max"):
            filled["score"] = "best" if filled["score"] == filled["mode"] else "worst"
        return filled

    @field_validator("scheduler", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.space and not self.points:
            raise ValueError("space: found nothing; a sweep varies at least one key, by space or points")
        if self.points and self.search != "grid":
            raise ValueError(f"points: found with search={self.search}; allowed with search=grid")
        for key in {key for point in self.points for key in point} & self.space.keys():
            raise ValueError(f"space.{key}: found in points too; must be in one of them")
        for key, dimension in self.space.items():
            if self.search == "grid" and dimension.grid is None:
                raise ValueError(f"space.{key}: found a range or a choice with search=grid; must be grid: [...]")
        self._few_enough()
        for key in self.keys:
            if key.split(".")[0] in (*RESULT_NEUTRAL, "profile"):
                raise ValueError(f"space.{key}: found a key that changes no result; set it in overrides")
        if "seed" in self.keys and self.repeat > 1:
            raise ValueError("space.seed: found with repeat > 1, which varies the seed; must be one of them")
        if self.metric.split(".")[0] not in METRICS:
            raise ValueError(f"metric: found '{self.metric}'; must be a key of summary.json under {', '.join(METRICS)}")
        if self.metric.startswith("communication") and self.metric not in BYTES:
            raise ValueError(f"metric: found '{self.metric}'; must be {' or '.join(BYTES)}")
        if self.scheduler.name != "none" and not self.metric.startswith(("select.", "accuracy.", "features.")):
            raise ValueError(
                f"metric: found '{self.metric}' with scheduler={self.scheduler.name}; must be select.PROTOCOL, "
                "accuracy.PROTOCOL or features.NAME"
            )
        if isinstance(self.scheduler, Pbt):
            self._can_be_perturbed()
        return self

    def _few_enough(self) -> None:
        """Raise ValueError for more trials than a sweep takes."""
        configurations, found = self.trials or TRIALS, f"trials: found {self.trials}"
        if self.search == "grid" and (self.trials is None or self.trials > _grid_size(self)):
            configurations = _grid_size(self)
            found = f"space: found a grid of {configurations} configurations"
        if configurations * self.repeat > MOST:
            times = f" with repeat={self.repeat}" if self.repeat > 1 else ""
            raise ValueError(f"{found}{times}; a sweep has at most {MOST} trials")

    def _can_be_perturbed(self) -> None:
        if self.repeat > 1:
            raise ValueError("repeat: found more than 1 with scheduler=pbt; must be 1")
        if self.search != "random":
            raise ValueError(f"search: found {self.search} with scheduler=pbt; must be random")
        for key in self.keys:
            if key.split(".")[0] not in PERTURBED or key in ("train.rounds", "method.name", "objective.name"):
                raise ValueError(
                    f"space.{key}: found with scheduler=pbt; allowed: keys of {', '.join(PERTURBED)} that may change "
                    "in the middle of a run"
                )

    @property
    def keys(self) -> list[str]:
        """The keys that vary, in the file's order."""
        return list(dict.fromkeys([*self.space, *(key for point in self.points for key in point)]))


@dataclass(frozen=True)
class Sweep:
    """A sweep's settings over a run's document (its profile applied, not yet validated)."""

    settings: SweepConfig
    document: Mapping[str, Any]
    origin: str
    imports: tuple[Extension, ...] = ()  # what the run's `imports` named

    def config_of(self, point: Mapping[str, Any], repetition: int = 0, name: str | None = None) -> RunConfig:
        """The config of a trial. Raises UserError naming what the run's schema refuses."""
        changes: dict[str, Any] = {**self.settings.overrides, **point}
        config = build(self.document, changes, origin=self.origin, imports=self.imports)
        update: dict[str, Any] = {"seed": config.seed + repetition}
        if name is not None:
            update["name"] = name
        if self.settings.scheduler.name == "pbt":  # who is copied needs a checkpoint of the round it is copied at
            update["checkpoint"] = config.checkpoint.model_copy(update={"every": 1})
        return config.model_copy(update=update)

    @property
    def configurations(self) -> list[Point] | None:
        """All configurations, if they are known beforehand; None if an optimiser proposes them."""
        settings = self.settings
        if settings.search == "grid":
            return list(itertools.islice(_grid(settings), settings.trials))
        if settings.search == "random":
            return [draw(settings, number) for number in range(self.count)]
        return None

    @property
    def count(self) -> int:
        """How many configurations are tried."""
        if self.settings.search == "grid":
            return sum(1 for _ in itertools.islice(_grid(self.settings), self.settings.trials))
        return self.settings.trials or TRIALS

    def check(self) -> list[tuple[Point, RunConfig]]:
        """Build the config of every configuration, or of those at the ends of every range, and return them.

        Raises:
            UserError: the schema refuses a config, or a run would not measure the metric that trials are chosen by.
        """
        points = self.configurations
        if points is None:
            points = [draw(self.settings, 0), *_ends(self.settings)]
        runs = [(point, self.config_of(point)) for point in points]
        kind, _, rest = self.settings.metric.partition(".")
        for _, config in runs:
            measured = measured_by(config, kind)
            name, _, part = rest.partition(".")
            whole = part == "value" if kind == "best" else not part or part.isdecimal()  # one client's
            if kind in OF_PROTOCOLS and (name not in measured or not whole):
                value = ".value" if kind == "best" else ""  # beside the round it is of
                allowed = ", ".join(f"{kind}.{name}{value}" for name in measured)
                allowed = allowed or MISSING.get(kind, "none: nothing is evaluated")
                raise UserError(f"metric: found '{self.settings.metric}'; this sweep's runs have {allowed}")
            if self.settings.scheduler.name != "none" and not config.evaluation.every:
                raise UserError(
                    f"evaluation.every: found 0 with scheduler={self.settings.scheduler.name}, which needs accuracies "
                    "on the way; must be at least 1"
                )
        return runs


def measured_by(config: RunConfig, kind: str) -> list[str]:
    """The keys that a run's summary has under ``accuracy``, ``select`` or ``features``."""
    if kind == "features":
        return list(config.evaluation.describing)
    tasks = config.data.tasks is not None and _learns_tasks(config.method.name, config.objective.name)
    return [
        *(["task"] if tasks else []),
        *(config.evaluation.selecting if kind == "select" else config.evaluation.scores),
    ]


def _learns_tasks(method: str, objective: str) -> bool:
    """Whether each client of a run with ``data.tasks`` learns its own, by labels, and so is measured by it."""
    return issubclass(METHODS[method].client, TaskClient) and OBJECTIVES[objective].labelled


def default_metric(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> str:
    """The metric if a sweep's file sets none: RankMe if its runs read no labels, held-out images if they have
    any, else ``accuracy.knn``, which is measured on test images. The runs' blocks are not validated yet: wrong ones are
    refused when their configs are built.
    """
    run = configfile.merge(document, overrides)
    data, evaluation = (known if isinstance(known := run.get(name), Mapping) else {} for name in ("data", "evaluation"))
    if data.get("tasks") is not None and _may_learn_tasks(run):
        return "select.task"
    named = evaluation.get("protocols")
    protocols = [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else []
    protocols = protocols or ["knn"]
    if not any(getattr(PROTOCOLS.get(name), "needs_labels", False) for name in protocols) and "rank" in protocols:
        return "features.rankme"
    if evaluation.get("select") is None:
        return "accuracy.knn"
    return f"select.{'knn' if 'knn' in protocols else protocols[0]}"


def _may_learn_tasks(run: Mapping[str, Any]) -> bool:
    """``_learns_tasks`` of a run whose blocks are not validated yet; also True if they do not say."""
    blocks = (known if isinstance(known := run.get(name), Mapping) else {} for name in ("method", "objective"))
    method, objective = (str(block.get("name", "")) for block in blocks)
    if method not in METHODS:
        return True
    objective = objective or METHODS[method].objective
    return objective not in OBJECTIVES or _learns_tasks(method, objective)


def draw(settings: SweepConfig, number: int) -> Point:
    """Configuration ``number`` of a random search: each key has its own seeded generator."""
    return {key: d.draw(numpy_generator(settings.seed, "sweep", number, key)) for key, d in settings.space.items()}


def _grid(settings: SweepConfig) -> Iterator[Point]:
    """Every point with every combination of the grids, the last key varying fastest; duplicates count once."""
    axes = [
        [(key, value) for value in {_text(value): value for value in dimension.grid or ()}.values()]
        for key, dimension in settings.space.items()
    ]
    seen = set()
    for point in settings.points or ({},):
        for combination in itertools.product(*axes):
            whole = {**point, **dict(combination)}
            if (text := _text(whole)) not in seen:
                seen.add(text)
                yield whole


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _grid_size(settings: SweepConfig) -> int:
    """The number of combinations of the grids and points, duplicates included."""
    sizes = [len(dimension.grid or ()) for dimension in settings.space.values()]
    return math.prod(sizes) * max(1, len(settings.points))


def _ends(settings: SweepConfig) -> Iterator[Point]:
    """Configurations with each key at its extreme values and the others at their first."""
    first = {key: dimension.extremes[0] for key, dimension in settings.space.items()}
    for key, dimension in settings.space.items():
        for value in dimension.extremes:
            yield {**first, key: value}
