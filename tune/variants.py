"""The variants of one run that a comparison runs: methods by name, or those that a file lists.

    base: ../demo.yaml                       a run's config, relative to this file
    overrides: {train.rounds: 10}            of all variants
    seeds: 3                                 runs of each variant, with seeds one apart
    variants:                                the first is what the others are compared with
      fedsimclr:                             nothing: the method of that name
      near: {method.name: fedprox, method.mu: 0.1}

Every variant's config is built for every seed and checked against the images, before any run starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rayfed_ssl import extensions
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.config import RESULT_NEUTRAL, RunConfig
from rayfed_ssl.methods import METHODS
from rayfed_ssl.records.comparison_choice import named
from rayfed_ssl.settings import files as configfile
from tune.config import Point, Sweep, SweepConfig, measured_by
from tune.dealing import refusals
from tune.files import read_base

EVERY = "all"  # in place of methods' names: every method there is
NEUTRAL = (*RESULT_NEUTRAL, "profile")  # blocks that change no result


class CompareConfig(Block):
    """The keys of a comparison's file. A variant that is null is the method with that name."""

    base: Path
    """A run's config, relative to this file."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of the run, the same for every variant."""
    seeds: Annotated[int, Field(ge=1)] = 1
    """Runs of each variant, with seeds one apart."""
    variants: Annotated[dict[str, dict[str, Any] | None], Field(min_length=1)]
    """Name -> dotted keys of the run; null: the method of that name."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """Name -> why ``--skip-unfit`` left it out; ``compare`` writes it."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: dict[str, str] = {}
        for name, point in self.points.items():
            if not name.isprintable() or not name.strip():
                raise ValueError(f"variants: found the name {name!r}; must be text of one line")
            for key in point:
                if key.split(".")[0] in NEUTRAL:
                    raise ValueError(f"variants.{name}.{key}: found a key that changes no result; set it in overrides")
                if key == "seed":
                    raise ValueError(f"variants.{name}.seed: found; variants share their seeds: set it in overrides")
            same = json.dumps(point, sort_keys=True, default=str)
            if same in seen:
                raise ValueError(f"variants: found {seen[same]} and {name} with the same keys; each once")
            seen[same] = name
        return self

    @property
    def points(self) -> dict[str, Point]:
        """Variant's name -> its changes of the base, by dotted keys."""
        return {name: {"method.name": name} if v is None else configfile.flat(v) for name, v in self.variants.items()}


@dataclass(frozen=True)
class Variants:
    """A comparison's settings over a run's document. ``unfit``: variants that do not fit it, and why."""

    settings: CompareConfig
    document: Mapping[str, Any]
    origin: str
    imports: tuple[extensions.Extension, ...] = ()
    unfit: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> dict[str, Point]:
        """The variants that fit, by name."""
        return {name: point for name, point in self.settings.points.items() if name not in self.unfit}

    @property
    def left_out(self) -> dict[str, str]:
        """The variants that did not fit, now or when the comparison began, and why."""
        return {**self.settings.left_out, **self.unfit}

    def sweep(self, metric: str = "wall_s") -> Sweep:
        """The runs of all variants as a sweep's trials: those of variant i are the repeats of configuration i."""
        settings = self.settings
        wanted = {
            "base": settings.base, "overrides": settings.overrides, "points": list(self.points.values()),
            "repeat": settings.seeds, "metric": metric, "mode": "max",
        }  # fmt: skip
        return Sweep(
            configfile.validate(SweepConfig, wanted, origin=self.origin), self.document, self.origin, self.imports
        )

    def configs(self) -> list[RunConfig]:
        """The config of each variant's run with the first seed."""
        sweep = self.sweep()
        return [sweep.config_of(point) for point in self.points.values()]


def from_methods(base: Path, names: Sequence[str], changes: Sequence[str] = (), seeds: int | None = None) -> Variants:
    """Methods by name, each replacing the base's ``method`` block with its own defaults (the base's own method keeps
    the base's settings). ``changes`` are ``key=value`` for all of them. Raises UserError.
    """
    document, imports, overrides = read_base(base, configfile.parse_overrides(changes))
    extensions.load(imports)
    names = list(METHODS) if list(names) == [EVERY] else names
    if not names:
        raise UserError(f"compare: found no method beside --base; name some of {', '.join(METHODS)}, or {EVERY}")
    for name in names:
        if name not in METHODS:
            raise UserError(METHODS.unknown("compare", name))
        if names.count(name) > 1:
            raise UserError(f"compare: found {name} twice; each method once")
    wanted = {"base": base, "overrides": overrides, "seeds": _at_least_one(seeds), "variants": dict.fromkeys(names)}
    settings = configfile.validate(CompareConfig, wanted, origin="compare")
    return _fitted(Variants(settings, document, str(base), imports))


def from_file(path: Path, changes: Sequence[str] = (), seeds: int | None = None) -> Variants:
    """The variants that a file lists; ``changes`` and ``seeds`` take precedence over the file. Raises UserError."""
    written = configfile.read(path)
    settings = configfile.validate(CompareConfig, written, origin=str(path))
    base = path.parent / settings.base
    given = {**settings.overrides, **configfile.parse_overrides(changes)}
    document, imports, overrides = read_base(base, given, path.parent)
    update = {"overrides": overrides, "seeds": settings.seeds if seeds is None else _at_least_one(seeds)}
    extensions.load(imports)
    for name, point in settings.variants.items():
        if point is None and name not in METHODS:
            raise UserError(METHODS.unknown(f"variants.{name}", name))
    return _fitted(Variants(settings.model_copy(update=update), document, f"{path} (base {base})", imports))


def _at_least_one(seeds: int | None) -> int:
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds: found {seeds}; must be at least 1")
    return seeds or 1


# -- what fits ---------------------------------------------------------------------------------------------------------


def _fitted(variants: Variants) -> Variants:
    """The same, with those marked that do not fit: the config cannot be built, or the images do not suit it."""
    sweep, seeds = variants.sweep(), range(variants.settings.seeds)
    runs: list[tuple[str, RunConfig]] = []
    unfit: dict[str, str] = {}
    for name, point in variants.points.items():
        try:
            runs += [(name, sweep.config_of(point, repetition)) for repetition in seeds]
        except UserError as error:
            unfit[name] = str(error)
    refused = refusals([config for _, config in runs])
    for place, (name, _) in enumerate(runs):
        if place in refused:
            unfit.setdefault(name, refused[place])
    unfit = {name: unfit[name] for name in variants.points if name in unfit}
    return replace(variants, unfit=unfit)


def refusal(variants: Variants) -> str | None:
    """A line for each reason why something does not fit; None if everything fits."""
    lines = [f"{name}: {line}" for name, why in variants.unfit.items() for line in why.splitlines()]
    return "\n".join(lines) or None


def shown_metric(variants: Variants, select: str | None) -> str:
    """The metric shown in a line about a run: the one that ``select`` chooses by, or without ``select`` the first
    accuracy; the time if not all variants have that.
    """
    kind, _, name = ("accuracy/" if select is None else named(select)).partition("/")
    first, *others = [measured_by(config, kind) for config in variants.configs()]
    return next((f"{kind}.{m}" for m in first if name in ("", m) and all(m in other for other in others)), "wall_s")


def refuse_unmeasured(variants: Variants, measure: str) -> None:
    """Raise UserError if no run will have the measure that is to choose: ``select/PROTOCOL`` or ``features/NAME``."""
    kind, _, name = measure.partition("/")
    configs = variants.configs()
    if configs and not any(name in measured_by(config, kind) for config in configs):
        allowed = sorted({measured for config in configs for measured in measured_by(config, kind)})
        remedy = {"select": "set evaluation.select.share", "features": "name rank in evaluation.protocols"}[kind]
        raise UserError(f"--select: found {name}; these runs will have {', '.join(allowed) or f'none: {remedy}'}")
